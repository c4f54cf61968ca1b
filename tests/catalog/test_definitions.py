"""What the shape of a schema says about it."""

from __future__ import annotations

from typing import Any

import pytest

from toolway.catalog.catalog import MAX_SCHEMA_DEPTH, check_schema

ELSEWHERE = {"$ref": "https://example.com/x.json"}


@pytest.mark.parametrize(
    "schema",
    [
        ELSEWHERE,
        {"allOf": [ELSEWHERE]},
        {"properties": {"default": ELSEWHERE}},  # a property, which has that name
        {"$defs": {"enum": {"items": ELSEWHERE}}},
        {"properties": {"properties": {"properties": {"const": ELSEWHERE}}}},
        {"properties": ELSEWHERE},
        {"unknown": {"default": {}, "x": ELSEWHERE}},
    ],
)
def test_reference_to_another_document_is_found(schema: Any) -> None:
    assert check_schema(schema) == "its schema refers to another document"


@pytest.mark.parametrize(
    "schema",
    [
        {"default": ELSEWHERE},
        {"enum": [ELSEWHERE, {"a": ELSEWHERE}]},
        {"properties": {"a": {"const": {"properties": {"b": ELSEWHERE}}}}},
        {"examples": [ELSEWHERE]},
        {"$ref": "#/$defs/a"},
        {"properties": {"$ref": {"type": "string"}}},
        None,
    ],
)
def test_value_that_looks_like_a_reference_is_ignored(schema: Any) -> None:
    assert check_schema(schema) is None


@pytest.mark.parametrize("key", ["items", "default", "properties"])
def test_depth_and_size_limits_apply_everywhere(key: str) -> None:
    deep: Any = {}
    for _ in range(MAX_SCHEMA_DEPTH * 2 + 1):
        deep = {key: deep}
    assert check_schema(deep) == f"its schema is deeper than {MAX_SCHEMA_DEPTH}"
    assert check_schema({key: [[0] * 9000, [0] * 9000]}) == "its schema is too large"
