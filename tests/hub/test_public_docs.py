"""Every public name has a docstring that a user can work with."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import toolway
from toolway import Hub

METHODS = [name for name, member in vars(Hub).items() if not name.startswith("_") and inspect.isfunction(member)]


@pytest.mark.parametrize("name", [name for name in toolway.__all__ if name != "__version__"])
def test_public_class_has_docstring_with_example(name: str) -> None:
    text = inspect.getdoc(getattr(toolway, name)) or ""
    assert "\nExample:\n" in text, name


@pytest.mark.parametrize("name", METHODS)
def test_method_documents_parameters_result_and_example(name: str) -> None:
    method: Any = getattr(Hub, name)
    text = inspect.getdoc(method) or ""
    signature = inspect.signature(method)
    assert "\nExample:\n" in text
    for parameter in list(signature.parameters)[1:]:
        assert f"    {parameter}: " in text, parameter
    if signature.return_annotation not in ("None", None):
        assert "\nReturns:\n" in text
