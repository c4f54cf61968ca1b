"""Schemas of all dialects become JSON Schema 2020-12, and small enough for a model."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.parts.openapi import real_documents
from tests.parts.openapi.generated_documents import document, input_of, operation, output_of
from toolway.parts.openapi.document import tool_builder
from toolway.types import Json


@pytest.mark.parametrize(
    ("raw", "made"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": True, "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"type": "number", "minimum": 1, "exclusiveMinimum": True}, {"type": "number", "exclusiveMinimum": 1}),
        ({"type": "number", "maximum": 1, "exclusiveMaximum": False}, {"type": "number", "maximum": 1}),
        ({"exclusiveMinimum": 3}, {"exclusiveMinimum": 3}),
        ({"type": "string", "format": "byte"}, {"type": "string", "format": "byte", "contentEncoding": "base64"}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"type": "file"}, {"type": "string"}),
        ({"type": "any"}, {}),
        ({"properties": {"a": {}}}, {"type": "object", "properties": {"a": {}}}),
        ({"type": "array", "items": [{"type": "string"}]}, {"type": "array", "prefixItems": [{"type": "string"}]}),
        ({"oneOf": [{"type": "string"}, {}]}, {"anyOf": [{"type": "string"}, {}]}),
        ({"allOf": [{"type": "string"}], "description": "d"}, {"type": "string", "description": "d"}),
        ({"required": True}, {}),
        ({"type": "object", "required": ["a", "a", 3]}, {"type": "object", "required": ["a"]}),
        ({"enum": []}, {}),
        ({"enum": ["a", "a", 1, True]}, {"enum": ["a", 1, True]}),
        ({"pattern": "(?<!a"}, {}),
        ({"pattern": "^a(?=b)"}, {"pattern": "^a(?=b)"}),
        ({"minLength": -1, "maxLength": 5.0, "minimum": "3", "multipleOf": 0, "uniqueItems": "no"}, {"maxLength": 5}),
        ({"x-a": 1, "xml": {}, "example": 1, "externalDocs": {}, "$id": "http://x", "$schema": "http://y"}, {}),
        ({"default": None, "type": "string"}, {"type": "string"}),
        ({"const": None}, {"const": None}),
        ({"additionalProperties": False, "type": "object"}, {"type": "object", "additionalProperties": False}),
        ({"additionalProperties": {"type": "int"}}, {"additionalProperties": {"type": "integer"}}),
        ({"title": "T"}, {"description": "T"}),
    ],
)
def test_schema_is_converted(raw: Json, made: Json) -> None:
    assert input_of(raw, version="3.0.3") == made


def test_nullable_reference() -> None:
    schemas = {"A": {"type": "object", "properties": {"x": {"type": "string"}}}}
    raw = {"type": "object", "properties": {"a": {"nullable": True, "allOf": [{"$ref": "#/components/schemas/A"}]}}}
    made = input_of(raw, components={"schemas": schemas}, version="3.0.3")
    assert made["properties"]["a"] == {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}
    assert jsonschema_rs.is_valid(made, {"a": None}) and jsonschema_rs.is_valid(made, {"a": {"x": "y"}})


def test_cycles_are_kept() -> None:
    node = {
        "type": "object",
        "properties": {"next": {"$ref": "#/components/schemas/Node"}, "of": {"$ref": "#/components/schemas/Other"}},
    }
    other = {
        "type": "object",
        "properties": {"back": {"type": "array", "items": {"$ref": "#/components/schemas/Node"}}},
    }
    made = input_of({"$ref": "#/components/schemas/Node"}, components={"schemas": {"Node": node, "Other": other}})
    assert made["properties"]["next"] == {"$ref": "#/$defs/Node"}
    assert set(made["$defs"]) == {"Node", "Other"}
    assert jsonschema_rs.is_valid(made, {"next": {"of": {"back": [{"next": {}}]}}})
    assert not jsonschema_rs.is_valid(made, {"next": {"of": {"back": [{"next": 3}]}}})


@pytest.mark.attack("held-40")
def test_self_reference_accepts_anything() -> None:
    made = input_of(
        {"$ref": "#/components/schemas/A"}, components={"schemas": {"A": {"$ref": "#/components/schemas/A"}}}
    )
    assert made == {}


@pytest.mark.parametrize("reference", ["#/components/schemas/None", "#/nowhere", "#anchor", "#/paths/0"])
def test_broken_ref_accepts_anything_and_warns(reference: str) -> None:
    raw = {"requestBody": {"content": {"application/json": {"schema": {"$ref": reference}}}}}
    made = document({"/a": {"post": raw}})
    assert made.operations[0].tool["inputSchema"]["properties"]["body"] == {}
    assert reference in made.warnings[0]


@pytest.mark.parametrize(
    "reference", ["http://evil.example/x.json#/A", "other.yaml", "file:///etc/passwd", "//evil.example/x"]
)
@pytest.mark.attack("held-39")
def test_external_document_is_never_opened(reference: str) -> None:
    inside = {"requestBody": {"content": {"application/json": {"schema": {"items": {"$ref": reference}}}}}}
    answer = {"responses": {"200": {"content": {"application/json": {"schema": {"$ref": reference}}}}}}
    made = document(
        {
            "/in": {"post": inside},
            "/out": {"get": answer},
            "/item": {"$ref": reference},
            "/p": {"get": {"parameters": [{"$ref": reference}]}},
        }
    )
    assert [each.name for each in made.operations] == ["get_out"]  # an answer is only a hint
    assert {each.path for each in made.skipped} == {"/in", "/item", "/p"}
    assert all(reference in each.reason and "bundle" in each.reason for each in made.skipped)


def test_equal_definition_names_are_kept_apart() -> None:
    inner = {"type": "object", "properties": {"x": {"type": "integer"}}}
    raw = {
        "properties": {
            "a": {"$ref": "#/components/schemas/A"},
            "b": {"$ref": "#/x-more/A"},
            "c": {"$ref": "#/components/schemas/S~1T%20U"},
        }
    }
    rest: Any = {"components": {"schemas": {"A": inner, "S/T U": inner}}, "x-more": {"A": inner}}
    made = input_of(raw, **rest)
    assert set(made["$defs"]) == {"A", "A_2", "S_T_20U"} or len(made["$defs"]) == 3
    assert jsonschema_rs.is_valid(made, {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1}})


def test_read_only_is_dropped_from_input_write_only_from_output() -> None:
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "string", "readOnly": True},
            "name": {"type": "string"},
            "secret": {"type": "string", "writeOnly": True},
        },
        "required": ["id", "name", "secret"],
    }
    made = input_of(schema)
    assert set(made["properties"]) == {"name", "secret"} and made["required"] == ["name", "secret"]
    assert set(output_of(schema)["properties"]) == {"id", "name"}


def test_read_only_is_found_through_parts_and_references() -> None:
    schemas = {
        "Id": {"type": "integer", "readOnly": True},
        "Base": {"properties": {"id": {"$ref": "#/components/schemas/Id"}}, "required": ["id"]},
    }
    raw = {
        "allOf": [
            {"$ref": "#/components/schemas/Base"},
            {"properties": {"n": {"type": "string"}}, "required": ["id", "n"]},
        ],
        "required": ["id"],
    }
    made = input_of(raw, components={"schemas": schemas})
    assert jsonschema_rs.is_valid(made, {"n": "x"})
    assert not jsonschema_rs.is_valid(made, {})


def test_discriminator_becomes_constraints() -> None:
    schemas = {
        name: {"type": "object", "properties": {"kind": {"type": "string"}, name: {"type": "integer"}}}
        for name in ("cat", "dog")
    }
    raw = {
        "oneOf": [{"$ref": "#/components/schemas/cat"}, {"$ref": "#/components/schemas/dog"}],
        "discriminator": {"propertyName": "kind", "mapping": {"CAT": "#/components/schemas/cat", "hound": "dog"}},
    }
    made = input_of(raw, components={"schemas": schemas})
    assert jsonschema_rs.is_valid(made, {"kind": "CAT", "cat": 1}) and jsonschema_rs.is_valid(
        made, {"kind": "hound", "dog": 1}
    )
    assert not jsonschema_rs.is_valid(made, {"kind": "hound", "dog": "x"})
    assert not jsonschema_rs.is_valid(made, {"kind": "bird"})
    assert "discriminator" not in json.dumps(made)


def test_output_schema_is_only_a_hint() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "enum": ["x"], "maxLength": 3},
            "b": {"type": "array", "items": {"type": "integer", "minimum": 3}},
        },
        "required": ["a"],
        "additionalProperties": False,
    }
    made = output_of(schema)
    for value in ({}, {"a": None}, {"a": "something new", "b": [1]}, {"more": 1}):
        assert jsonschema_rs.is_valid(made, value)
    assert not jsonschema_rs.is_valid(made, {"a": 3})


@pytest.mark.parametrize(
    "schema", [{"type": "array", "items": {}}, {"type": "string"}, {}, {"type": ["object", "string"]}]
)
def test_non_object_result_is_wrapped(schema: Json) -> None:
    raw = {"responses": {"200": {"content": {"application/json": {"schema": schema}}}, "404": {"content": {}}}}
    of = operation(raw)
    assert of.wraps_result and set(of.tool["outputSchema"]["properties"]) == {"result"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {"a": {}}},
        {"allOf": [{"type": "object"}, {}]},
        {"oneOf": [{"type": "object"}, {"type": ["object", "null"]}]},
        {"$ref": "#/components/schemas/A"},
    ],
)
def test_object_result_is_not_wrapped(schema: Json) -> None:
    raw = {"responses": {"2XX": {"content": {"application/hal+json": {"schema": schema}}}}}
    of = operation(raw, components={"schemas": {"A": {"type": "object", "properties": {"x": {"items": {}}}}}})
    assert not of.wraps_result and of.tool["outputSchema"]["type"] == "object"


def test_several_success_responses_are_alternatives() -> None:
    def answer(name: str) -> Json:
        return {
            "content": {"application/json": {"schema": {"type": "object", "properties": {name: {"type": "string"}}}}}
        }

    of = operation({"responses": {"200": answer("a"), "201": answer("b"), "204": {}, "400": answer("c")}})
    assert not of.wraps_result and len(of.tool["outputSchema"]["anyOf"]) == 2


def big(fields: int, levels: int) -> Json:
    if not levels:
        return {"type": "string", "description": "d" * 100}
    return {"type": "object", "properties": {f"field_{n}": big(fields, levels - 1) for n in range(fields)}}


@pytest.mark.parametrize(("fields", "levels"), [(6, 5), (3000, 1), (2, 11), (1, 60)])
def test_large_schema_is_cut_to_limit(fields: int, levels: int) -> None:
    raw = {"requestBody": {"content": {"application/json": {"schema": big(fields, levels)}}}}
    raw["responses"] = {"200": {"content": {"application/json": {"schema": big(fields, levels)}}}}
    made = document({"/a": {"post": raw}})
    assert real_documents.flaws(made) == []
    tool = made.operations[0].tool
    assert len(json.dumps(tool["inputSchema"])) < tool_builder.MAX_INPUT_BYTES * 1.5
    assert len(json.dumps(tool["outputSchema"])) < tool_builder.MAX_OUTPUT_BYTES * 1.5


def test_nearest_definitions_are_kept() -> None:
    schemas = {
        f"S{n}": {
            "type": "object",
            "properties": {"next": {"$ref": f"#/components/schemas/S{n + 1}"}, "text": {"description": "d" * 290}},
        }
        for n in range(300)
    }
    schemas["S300"] = {"type": "object", "properties": {"x": {"type": "object", "properties": {"y": {}}}}}
    made = document(
        {
            "/a": {
                "post": {
                    "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S0"}}}}
                }
            }
        },
        components={"schemas": schemas},
    )
    assert real_documents.flaws(made) == []
    found = made.operations[0].tool["inputSchema"]["$defs"]
    assert "next" in found["S1"]["properties"] and "S200" not in found


# -- whatever a document contains, the tool is valid ------------------------------------------------------------------

KEYWORDS = (
    *("type", "properties", "items", "required", "enum", "allOf", "oneOf", "anyOf", "not", "$ref", "pattern", "format"),
    *("minimum", "exclusiveMinimum", "maxLength", "nullable", "readOnly", "default", "additionalProperties", "const"),
    *("discriminator", "patternProperties", "multipleOf", "description", "prefixItems", "if", "then", "propertyNames"),
)
odd = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 5), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5),
    st.sampled_from(["string", "object", "array", "file", "null", "^a", "("]),
    st.sampled_from(["#/components/schemas/A", "#/components/schemas/B"]),
)  # fmt: skip
schemas_of_all_kinds = st.recursive(
    odd,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=5),
        st.dictionaries(st.sampled_from(["a", "b", "$ref", "^x"]), inner, max_size=2),
    ),
    max_leaves=25,
)


@settings(max_examples=60, deadline=None)
@example(None, {"type": None, "default": {"$ref": ""}}, None)  # a value, and no reference
@given(schemas_of_all_kinds, schemas_of_all_kinds, schemas_of_all_kinds)
def test_random_schemas_give_valid_tools(one: Any, two: Any, three: Any) -> None:
    content = {
        "content": {"application/json": {"schema": one}, "multipart/form-data": {"schema": two, "encoding": three}}
    }
    raw = {
        "parameters": [{"name": "q", "in": "query", "schema": two}],
        "requestBody": content,
        "responses": {"200": content},
    }
    for version in ("3.0.0", "3.1.0"):
        made = document({"/a": {"post": raw}}, version, components={"schemas": {"A": two, "B": three}})
        assert all("another document" in each.reason for each in made.skipped)
        assert len(made.operations) + len(made.skipped) == 1 and real_documents.flaws(made) == []
