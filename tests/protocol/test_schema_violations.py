"""Messages of violations: what a user or a model needs to correct the arguments, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from toolway import ArgumentViolation, InvalidArguments
from toolway.cluster.routing.remote import decode_error
from toolway.protocol.json_schema import SchemaValidator
from toolway.protocol.schema_violations import decode_invalid_arguments, describe_violations, violation_to_json
from toolway.upstream.transport import JSONRPCError

pytestmark = pytest.mark.promise("C13", "D10")


def texts(schema: Any, value: Any) -> list[str]:
    return sorted(map(str, describe_violations(SchemaValidator(schema), value)[0]))


NESTED = {"properties": {"a b": {"items": {"properties": {"n": {"type": "integer"}}}}}}
CHOICE = {
    "properties": {
        "where": {
            "oneOf": [
                {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
                {"type": "string"},
            ]
        }
    }
}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (NESTED, {"a b": [{}, {"n": "x"}]}, ["$['a b'][1].n is a string, expected an integer"]),
        ({"properties": {"n": {"minimum": 1}}}, {"n": 0}, ["$.n is too small, expected at least 1"]),
        ({"properties": {"n": {"maxLength": 3}}}, {"n": "secret"}, ["$.n is too long, expected at most 3 characters"]),
        ({"properties": {"n": {"minItems": 2}}}, {"n": []}, ["$.n has too few items, expected at least 2"]),
        (
            {"properties": {"n": {"uniqueItems": True}}},
            {"n": [1, 1]},
            ["$.n has equal items, expected different items"],
        ),
        (
            {"properties": {"n": {"pattern": "^a+$"}}},
            {"n": "secret"},
            ["$.n has the wrong form, expected text that matches ^a+$"],
        ),
        ({"properties": {"n": {"const": 4}}}, {"n": 5}, ["$.n is not the allowed value, expected 4"]),
        (
            {"properties": {"n": {"type": ["number", "null"]}}},
            {"n": []},
            ["$.n is an array, expected a number or null"],
        ),
        (
            {"properties": {"s": {"enum": ["open", "closed", 3]}}},
            {"s": "OPEN"},
            ['$.s is not an allowed value, expected one of "open", "closed", 3 (did you mean \'open\'?)'],
        ),
        (CHOICE, {"where": {"town": "secret"}}, ["$.where.city is missing, expected a string"]),
        (CHOICE, {"where": 5}, ["$.where is an integer, expected an object or a string"]),
        (
            {"properties": {"x": {"$ref": "#/$defs/d"}}, "required": ["x"], "$defs": {"d": {"enum": ["a", "b"]}}},
            {},
            ['$.x is missing, expected one of "a", "b"'],
        ),
        ({"additionalProperties": False}, {"x": 1}, ["$.x is unknown, expected no properties"]),
        (
            {"type": "object", "properties": {}, "additionalProperties": False},
            {"x": 1, "y": 2},
            ["$.x is unknown, expected no properties", "$.y is unknown, expected no properties"],
        ),
        ({"properties": {"x": False}}, {"x": 1}, ["$.x is not allowed"]),
        ({"minProperties": 1}, {}, ["$ has too few properties, expected at least 1"]),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, ["$.b is missing"]),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, ["$ has a property with a name that is not allowed"]),
        ({"not": {"required": ["a"]}}, {"a": 1}, ["$ is not allowed by 'not' of the schema"]),
        (
            {"oneOf": [{}, {"type": "object"}]},
            {},
            ["$ matches several alternatives, expected a value that matches exactly one of them"],
        ),
    ],
)
def test_violation_has_path_problem_and_expectation(schema: Any, value: Any, expected: list[str]) -> None:
    assert texts(schema, value) == expected


def test_violation_text_is_sanitized_and_cut() -> None:
    schema = {"properties": {"a": {"enum": ["\x1b[31mred\u202e" * 40] * 50}}, "additionalProperties": False}
    for text in texts(schema, {"a": 1, "\x1b[2J" + "k" * 500: 1}):
        assert "\x1b" not in text and "\u202e" not in text
        assert len(text) < 2500


def test_invalid_arguments_error_survives_json() -> None:
    violation = ArgumentViolation("$.a", "is missing", "a string", "aa")
    data = {"code": "E-ARGUMENTS", "executed": "no", "violations": [violation_to_json(violation)], "omitted": 3}
    error = decode_invalid_arguments(data, "s", "t")
    assert error is not None
    assert (error.violations, error.omitted, error.server, error.tool) == ((violation,), 3, "s", "t")
    assert (error.executed, error.retryable) == ("no", False)
    odd = decode_invalid_arguments({**data, "violations": ["x", {"path": 5}, None], "omitted": "x"}, "s", "t")
    assert odd is not None and odd.violations == (ArgumentViolation("5", ""),)
    assert decode_invalid_arguments({"code": "E-ARGUMENTS", "executed": "unknown"}, "s", "t") is None
    assert decode_invalid_arguments({"code": "E-OTHER", "executed": "no"}, "s", "t") is None


def test_error_from_another_node_is_decoded() -> None:
    data = {"code": "E-ARGUMENTS", "executed": "no", "violations": [{"path": "$.a", "problem": "is missing"}]}
    error = decode_error(JSONRPCError(-32602, "invalid arguments", data), "s", "t")
    assert isinstance(error, InvalidArguments) and error.violations == (ArgumentViolation("$.a", "is missing"),)
    from_server = {**data, "toolway": {"executed": "no"}}  # the server itself claims to be a gateway
    assert decode_error(JSONRPCError(-32602, "invalid arguments", from_server), "s", "t") is None
