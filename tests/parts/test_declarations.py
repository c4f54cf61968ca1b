"""What the declarations of the parts name exists, and is what it is named for."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

import pytest

from toolway.part_api import registry
from toolway.part_api.part import Part

PARTS = tuple(registry.built_in())
VALUES = {"routes": Sequence, "schemas": Mapping, "tables": Sequence}


@pytest.mark.parametrize(
    ("part", "method"),
    [(part, method) for part in PARTS for method in part.code],
    ids=lambda each: getattr(each, "name", each),
)
def test_code_names_needs_of_the_method(part: Part, method: str) -> None:
    found = part._find(method)
    if method in VALUES:
        assert isinstance(found, VALUES[method])
        return
    declared = [*inspect.signature(getattr(part, method)).parameters]
    expected = ["part", *declared] if method == "open" else declared
    assert [*inspect.signature(found).parameters][: len(expected)] == expected


@pytest.mark.parametrize("part", PARTS, ids=lambda each: getattr(each, "name", each))
def test_code_names_methods_of_a_part(part: Part) -> None:
    assert not part.code.keys() - {name for name, _ in inspect.getmembers(Part, inspect.isfunction)}
