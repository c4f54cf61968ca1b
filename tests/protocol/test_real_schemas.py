"""Input schemas of real servers, and generated arguments for them, judged by two validators.

`make long-tests ARGS=arguments` generates 10,000 valid and 10,000 spoiled arguments; here it is a few hundred. The
servers of the corpus listed the schemas; `interop/schemas.py --write` stores them without descriptions.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from tests.protocol.argument_generator import ArgumentGenerator
from toolway.protocol.json_schema import SchemaValidator
from toolway.protocol.schema_violations import MAX_VIOLATIONS, describe_violations

pytestmark = pytest.mark.promise("C13", "D10")

Json = dict[str, Any]
COUNT = 10_000 if "TOOLWAY_LONG" in os.environ else 300
STORED = Path(__file__).with_name("real_schemas.json.gz")
REAL: dict[str, dict[str, Json]] = json.loads(gzip.decompress(STORED.read_bytes()))

#: Keywords that the schemas of the corpus seldom use.
RARE: list[Json] = [
    {
        "properties": {"a": {"$ref": "#/$defs/node"}},
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["v"]}},
        "required": ["a"],
    },
    {"type": "object", "properties": {"n": {"type": "number", "multipleOf": 0.5, "exclusiveMinimum": 0}}},
    {"type": "object", "properties": {"a": {"allOf": [{"type": "string"}, {"minLength": 2}]}}, "minProperties": 1},
    {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind"]},
            {"type": "object", "properties": {"kind": {"const": "b"}, "y": {"type": "string"}}, "required": ["kind"]},
        ]
    },
    {
        "type": "object",
        "properties": {"mode": {"enum": ["on", "off", None, 1]}, "level": {"type": "integer"}},
        "if": {"properties": {"mode": {"const": "on"}}, "required": ["mode"]},
        "then": {"required": ["level"]},
        "dependentRequired": {"level": ["mode"]},
    },
    {
        "type": "object",
        "properties": {"p": {"type": "array", "prefixItems": [{"type": "string"}], "uniqueItems": True}},
    },
    {"type": "object", "patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": False},
    {"type": "object", "properties": {"a": {"not": {"type": "null"}}, "b": {"type": ["string", "null"]}}},
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"t": {"type": "array", "items": [{"type": "integer"}], "additionalItems": False}},
        "definitions": {"d": {"type": "string"}},
        "dependencies": {"a": ["t"]},
    },
    {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "object",
        "properties": {"n": {"type": "number", "minimum": 1, "exclusiveMinimum": True}},
        "required": ["n"],
    },
    {"type": "object", "unevaluatedProperties": False, "properties": {"a": {"type": "boolean"}}},
    {
        "type": "object",
        "properties": {"when": {"type": "string", "format": "date-time"}},
        "propertyNames": {"maxLength": 9},
    },
]

#: Differences between the two validators that are accepted, each with its reason.
DIFFERENCES: list[str] = []


def schemas() -> list[Json]:
    return [schema for tools in REAL.values() for schema in tools.values()] + RARE


def pairs(count: int) -> Iterator[tuple[Json, SchemaValidator, Any, ArgumentGenerator]]:
    """Yield `count` schemas in turn, each with both validators and a generator with its own seed."""
    all_schemas = schemas()
    ours = [SchemaValidator(schema) for schema in all_schemas]
    seconds = [
        jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema) for schema in all_schemas
    ]
    for seed in range(count):
        turn = seed % len(all_schemas)
        yield all_schemas[turn], ours[turn], seconds[turn], ArgumentGenerator(all_schemas[turn], seed)


def test_every_real_schema_is_evaluated() -> None:
    found = {
        f"{server}.{name}": SchemaValidator(schema).skip_reason
        for server, tools in REAL.items()
        for name, schema in tools.items()
    }
    assert len(found) >= 267
    assert {name: reason for name, reason in found.items() if reason} == {}
    assert [SchemaValidator(schema).skip_reason for schema in RARE] == [""] * len(RARE)


def test_valid_arguments_are_never_rejected() -> None:
    made = 0
    for schema, ours, second, generator in pairs(COUNT * 2):
        arguments = generator.valid()
        if not second.is_valid(arguments):
            continue  # the generator does not know every keyword
        made += 1
        assert ours.is_valid(arguments), (schema, arguments)
        if made == COUNT:
            return
    pytest.fail(f"only {made} valid arguments were made")


def test_invalid_arguments_match_second_validator() -> None:
    refused = 0
    for schema, ours, second, generator in pairs(COUNT):
        arguments = generator.spoiled(generator.valid())
        is_valid = ours.is_valid(arguments)
        assert is_valid == second.is_valid(arguments), (schema, arguments)
        if is_valid:
            continue
        refused += 1
        violations, omitted = describe_violations(ours, arguments)
        assert 0 < len(violations) <= MAX_VIOLATIONS and omitted >= 0
        assert all(each.path.startswith("$") and each.problem for each in violations), violations
    assert refused > COUNT * 0.4
    assert DIFFERENCES == []
