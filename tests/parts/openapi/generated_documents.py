"""Small documents for tests."""

from __future__ import annotations

import json
from typing import Any

from toolway.parts.openapi.document.loader import load_document
from toolway.parts.openapi.document.models import ApiDocument, Operation
from toolway.types import Json


def document(paths: Json, version: str = "3.1.0", **rest: Any) -> ApiDocument:
    head = {"swagger": version} if version == "2.0" else {"openapi": version}
    whole = {**head, "info": {"title": "T", "version": "1"}, "paths": paths, **rest}
    return load_document(json.dumps(whole).encode(), source="test.json")


def operation(
    raw: Json, *, path: str = "/things", method: str = "get", version: str = "3.1.0", **rest: Any
) -> Operation:
    """The only operation of a document."""
    made = document({path: {method: raw}}, version, **rest)
    assert made.skipped == ()
    return made.operations[0]


def parameter(name: str, place: str, **rest: Any) -> Json:
    return {"name": name, "in": place, "schema": {}, **({"required": True} if place == "path" else {}), **rest}


def body_of(schema: Json, *, media: str = "application/json", version: str = "3.1.0", **rest: Any) -> Operation:
    content = {"content": {media: {"schema": schema, **rest.pop("entry", {})}}, "required": True}
    return operation({"requestBody": content}, method="post", version=version, **rest)


def input_of(schema: Json, **rest: Any) -> Json:
    """What a schema becomes as the body of a request; with its `$defs`, where it has some."""
    tool = body_of(schema, **rest).tool["inputSchema"]
    found: Json = tool["properties"]["body"]
    return found | ({"$defs": tool["$defs"]} if "$defs" in tool else {})


def output_of(schema: Json, **rest: Any) -> Json:
    raw = {"responses": {"200": {"description": "", "content": {"application/json": {"schema": schema}}}}}
    found: Json = operation(raw, **rest).tool["outputSchema"]
    return found
