"""Fuzz target: OpenAPI documents give valid tools or raise `InvalidDocument`; requests keep each value in its place."""

from __future__ import annotations

import json
import re
from typing import Any

from harness import Bytes, Sized, fuzz, instrumented

with instrumented(__name__ == "__main__"):
    import jsonschema_rs

    from toolway.parts.openapi.document.loader import load_document
    from toolway.parts.openapi.document.models import ApiDocument, InvalidDocument, Operation, UnencodableArguments
    from toolway.parts.openapi.document.request_encoder import encode_operation

AS_VALUE = 254  # first byte of inputs that fill every place of a document that takes a text
NAME = re.compile(r"[A-Za-z0-9_-]{1,48}")
TARGET = re.compile(r"/base/[!\"$-~]*")  # no spaces, no `#`
HEADER = re.compile(r"[ -~]*")
BASE = "/base"


def check(data: bytes) -> None:
    source = Bytes(data)
    how = source.number(255)
    text = source.rest.decode("utf-8", "replace")
    document = _load(_filled(text) if how == AS_VALUE else source.rest)
    for operation in document.operations if document is not None else ():
        _check_tool(operation)
        for value in (text, [text, text], {text: text}, {"k": {"k": text}}):
            _check_request(operation, value)


def grown(data: bytes) -> Sized | None:
    """Return the check of an input that is repeated to about `size` bytes."""
    source = Bytes(data)
    how, text = source.number(255), source.rest.decode("utf-8", "replace")
    if not text or how != AS_VALUE:
        return None
    return lambda size: _load(_filled(text * (1 + size // len(text) // 16)))


def _load(data: bytes) -> ApiDocument | None:
    try:
        return load_document(data, source="fuzz", user_supplied=frozenset({"given"}))
    except InvalidDocument:
        return None


def _filled(text: str) -> bytes:
    """Return a document with `text` in every place that takes a text."""
    schema: Any = {
        "type": text,
        "description": text,
        "properties": {text: {"$ref": text}},
        "pattern": text,
        "enum": [text],
    }
    schema |= {"required": [text], "default": text, "discriminator": {"propertyName": text, "mapping": {text: text}}}
    parameters = [
        {"name": text, "in": place, "schema": schema, "style": text} for place in ("query", "header", "cookie", text)
    ]
    content = {
        media: {"schema": schema, "encoding": {text: {"contentType": text, "style": text}}}
        for media in (text, "multipart/form-data")
    }
    operation: Any = {
        "operationId": text,
        "summary": text,
        "description": text,
        "tags": [text],
        "parameters": parameters[:3],
    }
    operation |= {
        "requestBody": {"content": content},
        "responses": {text: {"content": content}, "200": {"content": content}},
    }
    paths = {f"/a/{text}": {"post": operation}, text: {"get": {}}, "/b/{x}": {"get": {"parameters": parameters}}}
    servers = [{"url": text, "variables": {text: {"default": text}}}]
    whole = {"openapi": "3.1.0", "info": {"title": text, "version": text}, "servers": servers, "paths": paths}
    return json.dumps(whole).encode()


def _check_tool(operation: Operation) -> None:
    tool = operation.tool
    assert NAME.fullmatch(tool["name"]) and tool["name"] == operation.name
    for word in ("inputSchema", "outputSchema"):
        if word in tool:
            jsonschema_rs.Draft202012Validator(tool[word])
            assert tool[word]["type"] == "object"


def _check_request(operation: Operation, value: Any) -> None:
    arguments = {each.argument: value for each in operation.parameters if not each.user_supplied}
    if operation.body is not None:
        arguments[operation.body.argument] = value
    try:
        made = encode_operation(operation, arguments, BASE)
    except UnencodableArguments:
        return
    assert TARGET.fullmatch(made.target)
    assert made.target.partition("?")[0].count("/") == BASE.count("/") + re.split("[?#]", operation.path)[0].count("/")
    for name, text in made.headers:
        assert HEADER.fullmatch(text) and (name == "Cookie" or name in {each.name for each in operation.parameters})


if __name__ == "__main__":
    fuzz(check, grown=grown)
