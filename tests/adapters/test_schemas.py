"""Schemas that providers accept: every rule of the lint has a repair, and nothing is left to repair."""

from __future__ import annotations

from typing import Any

import pytest

from toolway.adapters import schemas
from toolway.adapters.schemas import UnusableSchema, adapt_schema
from toolway.doctor import lint
from toolway.doctor.lint import PROVIDERS, Provider

Json = dict[str, Any]

REJECTED: list[Json] = [
    {"properties": {"a": {"type": "string"}}},
    {"type": "object", "properties": {"tags": {"type": "array"}}},
    {"type": "object", "properties": {"list": {"type": "array", "items": {"type": "array"}}}},
    {"type": "object", "properties": {"user name": {"type": "string"}}, "required": ["user name"]},
    {"type": "object", "properties": {"level": {"enum": [1, 2, 3]}, "mode": {"enum": ["on", None]}}},
    {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema.json"}}},
    {
        "type": "object",
        "properties": {"id": {"type": "string"}},
        "anyOf": [
            {"properties": {"a": {"type": "array"}}, "required": ["id", "a"]},
            {"properties": {"b": {"type": "string"}}, "required": ["id", "b"]},
        ],
    },
    {"type": "object", "allOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}}]},
    {"type": "object", "not": {"required": ["a"]}},
]


def problems(schema: Json, provider: Provider) -> list[str]:
    found = lint.lint_tools("s", [{"name": "t", "inputSchema": schema}]).findings
    return [each.message for each in found if each.severity == "error" and provider in each.providers]


def test_every_rule_has_a_repair():
    assert set(schemas._REPAIRS) == set(lint.SCHEMA_RULES)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("schema", REJECTED)
def test_repaired_schema_is_accepted_by_provider(schema, provider):
    adapted = adapt_schema(schema, (provider,))
    assert problems(adapted.schema, provider) == []
    assert bool(adapted.changes) == bool(problems(schema, provider))
    assert problems(adapt_schema(schema).schema, provider) == []


def test_accepted_schema_is_not_changed():
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}, "required": ["a"]}
    assert adapt_schema(schema).schema == schema
    assert adapt_schema(schema).changes == ()


def test_top_level_cases_become_optional_properties():
    adapted = adapt_schema(REJECTED[6], ("openai",)).schema
    assert set(adapted["properties"]) == {"id", "a", "b"}
    assert adapted["required"] == ["id"]
    assert "anyOf" not in adapted


def test_renamed_property_is_restored_for_the_server():
    schema = {
        "type": "object",
        "properties": {"user name": {"type": "string"}, "more": {"type": "array", "items": {"$ref": "#/$defs/x"}}},
        "$defs": {"x": {"type": "object", "properties": {"größe": {"type": "number"}}}},
        "required": ["user name"],
    }
    adapted = adapt_schema(schema, ("anthropic",))
    name, more = adapted.schema["properties"]
    (inner,) = adapted.schema["$defs"]["x"]["properties"]
    assert adapted.schema["required"] == [name]
    assert all(lint.PROPERTY_NAME.fullmatch(each) for each in (name, more, inner))
    restored = adapted.restore({name: "Ada", "more": [{inner: 2}]})
    assert restored == {"user name": "Ada", "more": [{"größe": 2}]}


def test_invalid_schema_is_rejected():
    with pytest.raises(UnusableSchema, match="not valid JSON Schema"):
        adapt_schema({"type": "object", "properties": {"a": {"type": "strin"}}})
    with pytest.raises(UnusableSchema, match="not an object"):
        adapt_schema(None)


def test_invisible_characters_are_removed():
    schema = {"type": "object", "properties": {"a": {"description": "city\u200b\u202e"}}}
    assert adapt_schema(schema).schema["properties"]["a"]["description"] == "city"
