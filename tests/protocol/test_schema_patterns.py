"""Patterns that need backtracking are dropped alone, and nothing is refused that the server's schema accepts."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from toolway.protocol.json_schema import SchemaValidator

BAD = ("(?=a)a", "(a)\\1", "(?<!b)c$")
LINEAR = ("^a", "b+")
patterns = st.sampled_from(BAD + LINEAR)
values = st.recursive(
    st.sampled_from(["", "a", "aa", "ab", "c", "bc", 1, True, None]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "aa", "c", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    alternatives = st.lists(inner, min_size=1, max_size=3)
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": st.sampled_from(["string", "object", "array"]),
        "pattern": patterns,
        "properties": st.dictionaries(st.sampled_from(["a", "c", "pattern", "not"]), inner, max_size=2),
        "patternProperties": st.dictionaries(patterns, inner, max_size=2),
        "additionalProperties": inner | st.booleans(),
        "unevaluatedProperties": st.booleans(),
        "propertyNames": inner,
        "items": inner,
        "contains": inner,
        "maxContains": st.integers(1, 2),
        "unevaluatedItems": st.booleans(),
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "oneOf": alternatives,
        "anyOf": alternatives,
        "allOf": alternatives,
        "const": st.sampled_from([{"pattern": "(?=a)a"}, "a"]),
        "$ref": st.just("#/$defs/shared"),
    }
    return st.fixed_dictionaries({}, optional=keywords)


schemas: st.SearchStrategy[Any] = st.recursive(st.just({}), _schemas, max_leaves=5)


@settings(max_examples=600, deadline=None)
@given(schemas, st.sampled_from(BAD), values)
@example({"not": {"$ref": "#/$defs/shared"}}, BAD[0], "b")
@example({"patternProperties": {BAD[0]: {}}, "additionalProperties": False}, BAD[0], {"a": 1})
def test_validator_accepts_all_that_backtracking_engine_accepts(schema: Any, shared: str, value: Any) -> None:
    whole = {**schema, "$defs": {"shared": {"pattern": shared}}}
    found = SchemaValidator(whole)
    if jsonschema_rs.validator_for(whole, validate_formats=False).is_valid(value):  # patterns with backtracking
        assert found.is_valid(value), found.schema


@pytest.mark.attack("A2-W3")
@pytest.mark.parametrize("pattern", BAD)
def test_unsupported_pattern_disables_only_itself(pattern: str) -> None:
    properties = {"name": {"type": "string", "pattern": pattern, "maxLength": 5}, "count": {"type": "integer"}}
    found = SchemaValidator(
        {"type": "object", "properties": properties, "required": ["name"], "additionalProperties": False}
    )
    assert (found.skip_reason, found.dropped_patterns) == ("", (pattern,))
    assert found.is_valid({"name": "zzz", "count": 1})
    for wrong in ({"name": 1}, {"name": "toolong"}, {"name": "a", "count": "1"}, {"name": "a", "x": 1}, {}):
        assert not found.is_valid(wrong)


def test_many_patterns_are_all_dropped_if_one_is_bad() -> None:
    properties: dict[str, Any] = {f"p{number}": {"type": "string", "pattern": f"^{number}"} for number in range(300)}
    found = SchemaValidator({"properties": {**properties, "bad": {"pattern": BAD[0]}}})
    assert len(found.dropped_patterns) == 301
    assert found.is_valid({"p1": "2"}) and not found.is_valid({"p1": 2})


def test_other_pattern_properties_are_still_checked() -> None:
    found = SchemaValidator({"patternProperties": {"(?=a)a": {"type": "string"}, "^n_": {"type": "integer"}}})
    assert found.is_valid({"a": 1}) and not found.is_valid({"n_1": "x"})
