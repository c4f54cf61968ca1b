"""Schemas of servers: checked where that is cheap, left alone where it is not."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.timing import within
from toolway.protocol.json_schema import SchemaValidator, schema_cost


def doubling(levels: int) -> dict[str, Any]:
    """Every level refers twice to the next: 2^levels positions out of a few lines."""
    defs: dict[str, Any] = {
        f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(levels)
    }
    defs[f"a{levels}"] = {"type": "object"}
    return {"$ref": "#/$defs/a0", "$defs": defs}


def test_violation_names_the_property() -> None:
    schema = SchemaValidator({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    assert schema.validate({"n": 1}) is None
    assert "integer" in (schema.validate({"n": "x"}) or "")
    assert "n" in (schema.validate({}) or "")


def test_internal_references_and_one_recursion_work() -> None:
    tree = {"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"next": {"$ref": "#/$defs/t"}}}}}
    schema = SchemaValidator(tree)
    assert schema.skip_reason == ""
    assert schema.validate({"next": {"next": {}}}) is None
    assert schema.validate({"next": {"next": 1}}) is not None


@pytest.mark.parametrize(
    "schema",
    [
        doubling(40),
        {"properties": {"a": {"$ref": "https://example.com/x.json"}}},
        {"$ref": "#/nowhere"},
        {"$id": "https://example.com/s", "$ref": "#/x", "x": {}},
        {"properties": {"l": {"$ref": "#"}, "r": {"$ref": "#"}}},
        {"type": 17},
    ],
    ids=["doubling", "remote", "dangling", "id", "branching", "invalid"],
)
def test_unbounded_schema_is_not_evaluated(schema: dict[str, Any]) -> None:
    began = time.perf_counter()
    made = SchemaValidator(schema)
    assert made.skip_reason
    assert made.validate({"anything": 1}) is None
    assert time.perf_counter() - began < within(0.1)


@pytest.mark.attack("held-57")
def test_backtracking_pattern_is_quick() -> None:
    schema = SchemaValidator({"properties": {"a": {"pattern": "^(a+)+$"}}})
    began = time.perf_counter()
    assert schema.validate({"a": "a" * 50_000 + "b"}) is not None
    assert time.perf_counter() - began < within(0.1)


def test_large_value_with_large_schema_is_not_evaluated() -> None:
    schema = SchemaValidator({"items": {"allOf": [{"type": "integer"}] * 5000}})
    began = time.perf_counter()
    assert schema.validate(["x"] * 50_000) is None
    assert time.perf_counter() - began < within(0.1)


def test_invalid_value_is_described_only_if_that_is_quick() -> None:
    alternatives = {"anyOf": [{"type": "string"}] * 20}
    schema = SchemaValidator({"anyOf": [{"type": "array", "items": alternatives}] * 5})
    assert schema.errors([1]) is not None
    began = time.perf_counter()
    assert schema.errors([1] * 1000) is None  # describing these errors would take seconds
    assert not schema.is_valid([1] * 1000)
    assert schema.validate([1] * 1000) == "it does not match the schema"
    assert time.perf_counter() - began < within(1.0)


def test_schema_draft_applies_and_formats_are_annotations() -> None:
    old = {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True}
    assert not SchemaValidator(old).is_valid(1)
    assert SchemaValidator({**old, "$schema": "https://json-schema.org/draft/2020-12/schema"}).skip_reason
    for draft in ("http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"):
        assert SchemaValidator({"$schema": draft, "format": "date"}).is_valid("tomorrow")


def test_cost_counts_references_as_often_as_followed() -> None:
    assert schema_cost(doubling(3)) > 2 * schema_cost(doubling(2)) > 4 * schema_cost(doubling(1)) - 8
