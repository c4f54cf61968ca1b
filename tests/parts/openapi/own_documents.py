"""Our own documents, in which every way of writing a value occurs."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

TEXT: Json = {"type": "string"}
LIST: Json = {"type": "array", "items": TEXT, "minItems": 1}
OBJECT: Json = {"type": "object", "properties": {"a": TEXT, "b": {"type": "integer"}}, "required": ["a", "b"]}
SHAPES = {"text": TEXT, "number": {"type": "number"}, "flag": {"type": "boolean"}, "list": LIST, "object": OBJECT}
STYLES = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
ANSWER: Json = {"200": {"description": "ok", "content": {"application/json": {"schema": OBJECT}}}}
FILE: Json = {"type": "string", "format": "binary"}


def _written(place: str, style: str, explode: bool, shape: str) -> tuple[str, Json]:
    name = f"{place}-{style}-{'each' if explode else 'one'}-{shape}"
    parameter = {
        "name": "p",
        "in": place,
        "style": style,
        "explode": explode,
        "schema": SHAPES[shape],
        "required": True,
    }
    path = f"/{name}/{{p}}/end" if place == "path" else f"/{name}"
    return path, {"get": {"operationId": name, "parameters": [parameter], "responses": ANSWER}}


def _bodies() -> dict[str, Json]:
    whole = {"type": "object", "properties": {**SHAPES, "file": FILE}, "required": ["text", "list"]}
    nested = {"type": "object", "properties": {**SHAPES, "inner": {"type": "object", "properties": SHAPES}}}
    kinds: dict[str, Json] = {
        "application/json": nested,
        "application/merge-patch+json": nested,
        "application/x-www-form-urlencoded": {"type": "object", "properties": SHAPES, "required": ["text", "object"]},
        "multipart/form-data": whole,
        "text/plain": TEXT,
        "application/octet-stream": FILE,
    }
    found = {}
    for number, (kind, schema) in enumerate(kinds.items()):
        body = {"required": True, "content": {kind: {"schema": schema}}}
        answers = {"201": {"description": "made", "content": {"application/json": {"schema": LIST}}}}
        found[f"/body-{number}"] = {
            "post": {"operationId": f"body-{number}", "requestBody": body, "responses": answers}
        }
    return found


def every_style() -> Json:
    written = [
        _written(place, style, explode, shape)
        for place, styles in STYLES.items()
        for style in styles
        for explode in (False, True)
        for shape in SHAPES
        if (style == "deepObject") <= (shape == "object" and explode)
        if not (place == "cookie" and shape == "object" and explode)  # a caller does not name cookies
        if not (style in ("spaceDelimited", "pipeDelimited") and (shape not in ("list", "object") or explode))
    ]
    return {
        "openapi": "3.1.0",
        "info": {"title": "Every style", "version": "1"},
        "servers": [{"url": "https://api.example/base/v1"}],
        "security": [{"key": [], "cookie": []}, {"word": []}],
        "paths": {**dict(written), **_bodies(), "/gone": {"delete": {"responses": {"204": {"description": "gone"}}}}},
        "components": {
            "securitySchemes": {
                "key": {"type": "apiKey", "in": "query", "name": "api key"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "sid"},
                "word": {"type": "http", "scheme": "basic"},
            }
        },
    }


def every_format() -> Json:
    """The same in the words of Swagger 2.0."""
    paths: dict[str, Json] = {}
    for place in ("path", "query", "header"):
        for chosen in ("csv", "ssv", "tsv", "pipes", "multi") if place == "query" else ("csv",):
            name = f"{place}-{chosen}"
            parameter = {"name": "p", "in": place, "type": "array", "items": TEXT, "required": True}
            parameter["collectionFormat"] = chosen
            path = f"/{name}/{{p}}" if place == "path" else f"/{name}"
            paths[path] = {"get": {"operationId": name, "parameters": [parameter], "responses": {}}}
    form = [{"name": name, "in": "formData", "type": "string", "required": True} for name in ("a", "b")]
    paths["/form"] = {"post": {"operationId": "form", "parameters": form, "responses": {}}}
    file = {"name": "f", "in": "formData", "type": "file", "required": True}
    multipart = {"consumes": ["multipart/form-data"], "parameters": [file, *form], "responses": {}}
    paths["/file"] = {"post": {"operationId": "file", **multipart}}
    body = {"name": "x", "in": "body", "schema": OBJECT, "required": True}
    paths["/body"] = {"put": {"operationId": "body", "parameters": [body], "responses": {}}}
    return {
        "swagger": "2.0",
        "info": {"title": "Every format", "version": "1"},
        "host": "api.example",
        "basePath": "/v0",
        "consumes": ["application/json"],
        "securityDefinitions": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}},
        "security": [{"key": []}],
        "paths": paths,
    }
