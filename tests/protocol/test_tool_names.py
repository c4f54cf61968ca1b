"""Names split without doubt, and fit every model provider."""

from __future__ import annotations

import re

import pytest

from toolway.protocol import tool_names
from toolway.types import ToolRef


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
def test_first_dot_or_double_underscore_ends_the_server(name: str, ref: ToolRef | None) -> None:
    assert tool_names.parse_tool_name(name) == ref


@pytest.mark.parametrize("tool", ["search", "x" * 128, "with.dot", "with/slash", "ümlaut"])
def test_model_name_is_accepted_by_all_providers(tool: str) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool_names.model_name_for(ToolRef("server", tool)))


@pytest.mark.attack("held-60")
def test_colliding_names_are_distinct_and_stable() -> None:
    made = {tool_names.model_name_for(ToolRef("s", tool)) for tool in ("a.b", "a_b", "a/b", "x" * 100, "x" * 101)}
    assert len(made) == 5
    assert tool_names.model_name_for(ToolRef("s", "a.b")) == tool_names.model_name_for(ToolRef("s", "a.b"))
