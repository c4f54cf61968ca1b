"""Nulls that a client sends for arguments which were not given."""

from __future__ import annotations

from typing import Any

import pytest

from toolway.protocol.null_arguments import drop_nulls

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "note": {"type": "string"},
        "level": {"enum": [1, 2]},
        "owner": {"type": ["string", "null"]},
        "parent": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "any": {},
        "page": {"$ref": "#/$defs/page"},
        "pages": {"type": "array", "items": {"$ref": "#/$defs/page"}},
    },
    "required": ["id"],
    "$defs": {"page": {"type": "object", "properties": {"size": {"type": "integer"}}}},
}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"id": "a", "note": None, "level": None}, {"id": "a"}),
        ({"id": None, "note": "x"}, {"id": None, "note": "x"}),  # required: the call is rejected
        (
            {"id": "a", "owner": None, "parent": None, "any": None},
            {"id": "a", "owner": None, "parent": None, "any": None},
        ),
        ({"id": "a", "other": None}, {"id": "a", "other": None}),  # not in the schema
        ({"id": "a", "page": {"size": None}}, {"id": "a", "page": {}}),
        ({"id": "a", "page": None, "pages": [{"size": None}, {"size": 2}]}, {"id": "a", "pages": [{}, {"size": 2}]}),
    ],
)
def test_optional_null_is_dropped_if_not_allowed(given: dict[str, Any], sent: dict[str, Any]) -> None:
    assert drop_nulls(given, SCHEMA) == sent


def test_schema_without_properties_changes_nothing() -> None:
    assert drop_nulls({"a": None}, {"type": "object"}) == {"a": None}
    assert drop_nulls({"a": None}, {"properties": {"a": True}}) == {"a": None}
