"""Names split without doubt, and fit every model provider."""

from __future__ import annotations

import re

import pytest

from toolway.model import ToolRef
from toolway.protocol import names


@pytest.mark.parametrize(
    ("name", "ref"),
    [
        ("github.search", ToolRef("github", "search")),
        ("github__search", ToolRef("github", "search")),
        ("a-b.c.d", ToolRef("a-b", "c.d")),
        ("a__b__c", ToolRef("a", "b__c")),
        ("a.b__c", ToolRef("a", "b__c")),
        ("search", None),
        (".x", None),
        ("a.", None),
    ],
)
def test_the_first_dot_or_double_underscore_ends_the_server(name: str, ref: ToolRef | None) -> None:
    assert names.parse(name) == ref


@pytest.mark.parametrize("tool", ["search", "x" * 128, "with.dot", "with/slash", "ümlaut"])
def test_a_name_for_models_is_accepted_by_all_of_them(tool: str) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", names.for_models(ToolRef("server", tool)))


def test_names_that_would_collide_are_told_apart_and_stay_the_same() -> None:
    made = {names.for_models(ToolRef("s", tool)) for tool in ("a.b", "a_b", "a/b", "x" * 100, "x" * 101)}
    assert len(made) == 5
    assert names.for_models(ToolRef("s", "a.b")) == names.for_models(ToolRef("s", "a.b"))
