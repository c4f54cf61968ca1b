"""The OpenAPI document of tools: its references, its names, and that it is valid."""

from __future__ import annotations

import json
import re
import time
from typing import Any
from urllib.parse import unquote

import jsonschema_rs
import pytest

from toolway._async import run_at_once
from toolway.parts.openapi.document.loader import load_document
from toolway.parts.rest.document import MAX_OPERATION_ID, build_document, operation_ids
from toolway.parts.rest.references import add_schema

Json = dict[str, Any]
URL = "https://tools.example/api"
NODE: Json = {"type": "object", "properties": {"name": {"type": "string"}, "next": {"$ref": "#/$defs/Node"}}}
NAMED: Json = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}

#: A schema with references, a value that it accepts, and one that it rejects.
SCHEMAS: dict[str, tuple[Json, Any, Any]] = {
    "$defs": ({**NODE, "$defs": {"Node": NODE}}, {"next": {"name": "x"}}, {"next": {"name": 1}}),
    "definitions": (
        {"properties": {"a": {"$ref": "#/definitions/A"}}, "definitions": {"A": NAMED}},
        {"a": {"name": "x"}},
        {"a": {}},
    ),
    "root": ({"properties": {"up": {"$ref": "#"}, "n": {"type": "integer"}}}, {"up": {"n": 1}}, {"up": {"n": "x"}}),
    "pointer": (
        {"properties": {"a b/c": NAMED, "same": {"$ref": "#/properties/a%20b~1c"}}},
        {"same": {"name": "x"}},
        {"same": {}},
    ),
    "inside a definition": (
        {"properties": {"n": {"$ref": "#/$defs/A/properties/name"}}, "$defs": {"A": NAMED}},
        {"n": "x"},
        {"n": 1},
    ),
    "anchor": (
        {"properties": {"a": {"$ref": "#it"}}, "$defs": {"A": {"$anchor": "it", **NAMED}}},
        {"a": {"name": "x"}},
        {"a": {}},
    ),
    "dynamic": (
        {"properties": {"a": {"$dynamicRef": "#it"}}, "$defs": {"A": {"$dynamicAnchor": "it", **NAMED}}},
        {"a": {"name": "x"}},
        {"a": {}},
    ),
    "id": (
        {"properties": {"a": {"$ref": "urn:x"}}, "$defs": {"A": {"$id": "urn:x", **NAMED}}},
        {"a": {"name": "x"}},
        {"a": {}},
    ),
    "odd name": (
        {"properties": {"a": {"$ref": "#/$defs/A%20<B>"}}, "$defs": {"A <B>": NAMED, "A _B_": {}}},
        {"a": {"name": "x"}},
        {"a": {}},
    ),
    "tuple": (
        {"properties": {"a": {"items": [NAMED], "additionalItems": False}, "b": {"$ref": "#/properties/a/items/0"}}},
        {"a": [{"name": "x"}], "b": {"name": "x"}},
        {"b": {}},
    ),
    "property names": (
        {"properties": {"$ref": {"type": "string"}, "default": NAMED, "$anchor": {"type": "integer"}}},
        {"$ref": "x", "default": {"name": "x"}, "$anchor": 1},
        {"default": {}},
    ),
    "broken": ({"properties": {"a": {"$ref": "#/$defs/None"}, "b": {"type": "string"}}}, {"a": 1, "b": "x"}, {"b": 1}),
    "foreign": ({"properties": {"a": {"$ref": "https://x.example/y"}, "b": NAMED}}, {"a": 1}, {"b": {}}),
}


def document_of(*tools: Json) -> Json:
    return run_at_once(build_document(tools, URL, "Test"))


def tool(name: str, schema: Json, **more: Any) -> Json:
    return {"name": name, "description": f"Does {name}.", "inputSchema": {"type": "object", **schema}, **more}


def references(node: Any) -> list[str]:
    """Every reference in a document."""
    if isinstance(node, list):
        return [each for value in node for each in references(value)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
    return own + [each for value in node.values() for each in references(value)]


def leads(document: Json, reference: str) -> bool:
    assert reference.startswith("#/"), reference
    node: Any = document
    for token in reference[2:].split("/"):
        key = unquote(token).replace("~1", "/").replace("~0", "~")
        node = node[int(key)] if isinstance(node, list) else node.get(key) if isinstance(node, dict) else None
        if node is None:
            return False
    return True


def generated(count: int) -> list[Json]:
    """Tools with every kind of reference, and names of every kind."""
    kinds = list(SCHEMAS.values())
    return [
        tool(f"server{number % 42}__tool_{number}", kinds[number % len(kinds)][0], outputSchema=NODE)
        for number in range(count)
    ]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_moved_schema_accepts_the_same_values(kind: str) -> None:
    schema, good, bad = SCHEMAS[kind]
    components: Json = {}
    reference = add_schema(schema, "tool.arguments", components)
    document = {**reference, "components": {"schemas": components}}
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", each) for each in components)
    assert all(leads(document, each) for each in references(document) if isinstance(each, str))
    validator = jsonschema_rs.Draft202012Validator(document)
    assert validator.is_valid(good) and not validator.is_valid(bad)


def test_data_in_a_schema_is_not_changed() -> None:
    data = {"$ref": "#/$defs/A", "$anchor": "x"}
    components: Json = {}
    add_schema({"properties": {"a": {"default": data, "const": data, "enum": [data]}}}, "t", components)
    assert components["t"]["properties"]["a"] == {"default": data, "const": data, "enum": [data]}


def test_operation_ids_are_unique_safe_and_short() -> None:
    names = ["a__b", "A__b", "a b", "a_b", "x" * 64, "x" * 65, "x" * 66, "ü", "ö", "a/b", "a.b", ""]
    found = operation_ids(names)
    assert len({each.lower() for each in found}) == len(names)
    assert all(re.fullmatch(rf"[A-Za-z0-9_-]{{1,{MAX_OPERATION_ID}}}", each) for each in found)
    assert found[0] == "a__b" and found[4] == "x" * 64


def test_document_of_504_tools_is_fast_and_unbroken() -> None:
    tools = generated(504)
    started = time.process_time()
    document = document_of(*tools)
    assert time.process_time() - started < 3, "0.1 s on a quiet machine"
    assert len(document["paths"]) == 504 and all(leads(document, each) for each in references(document))
    steps = build_document(tools, URL, "Test")
    assert sum(1 for _ in steps) >= 20, "other tasks run in between"


def test_own_reader_reads_every_tool_of_the_document() -> None:
    tools = generated(504)
    read = load_document(json.dumps(document_of(*tools)).encode(), source="test")
    found = {each.name: each for each in read.operations}
    assert len(found) == 504 and not read.skipped
    assert found.keys() == {each["name"] for each in tools}


def test_document_is_valid_openapi() -> None:
    validator = pytest.importorskip("openapi_spec_validator", reason="install openapi-spec-validator to check it")
    assert not list(validator.OpenAPIV31SpecValidator(document_of(*generated(100))).iter_errors())
