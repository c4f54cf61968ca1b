"""Converts Swagger 2.0 to OpenAPI 3: parameters, bodies, responses, servers, and security schemes."""

from __future__ import annotations

from typing import Any, Final

from toolway.types import Json

_COLLECTION_FORMATS: Final = {
    "csv": ("form", False), "ssv": ("spaceDelimited", False), "tsv": ("tabDelimited", False),
    "pipes": ("pipeDelimited", False), "multi": ("form", True),
}  # fmt: skip
_NON_SCHEMA_KEYS: Final = frozenset({"name", "in", "required", "collectionFormat", "allowEmptyValue", "schema"})
_OAUTH_FLOWS: Final = {"accessCode": "authorizationCode", "application": "clientCredentials"}
_FORM_TYPE: Final = "application/x-www-form-urlencoded"
_MULTIPART_TYPE: Final = "multipart/form-data"


def convert_parameter(raw: Json) -> Json:
    """Convert a Swagger 2.0 parameter of a path, query or header to OpenAPI 3."""
    found: Json = {
        word: raw[word] for word in ("name", "in", "required", "description", "allowEmptyValue") if word in raw
    }
    found["schema"] = parameter_schema(raw)
    if raw.get("type") == "array":
        found |= _array_style(raw)
        if raw.get("in") in ("path", "header") and found["style"] == "form":
            found["style"] = "simple"
    return found


def parameter_schema(raw: Json) -> Json:
    """Return the schema of a Swagger 2.0 parameter, which has its keywords next to the parameter's name."""
    return {word: value for word, value in raw.items() if word not in _NON_SCHEMA_KEYS}


def convert_body(raw: Json, consumes: list[str]) -> Json:
    """Convert a Swagger 2.0 body parameter to an OpenAPI 3 request body.

    `consumes` lists its media types. If it is empty, the body is JSON.
    """
    media = consumes or ["application/json"]
    found: Json = {
        "required": raw.get("required") is True,
        "content": {each: {"schema": raw.get("schema", {})} for each in media},
    }
    if "description" in raw:
        found["description"] = raw["description"]
    return found


def convert_form(fields: list[Json], consumes: list[str]) -> Json:
    """Convert Swagger 2.0 form fields to one OpenAPI 3 request body."""
    has_file = any(field.get("type") == "file" for field in fields)
    media = [each for each in consumes if _strip_params(each) in (_FORM_TYPE, _MULTIPART_TYPE)]
    if has_file or not media:
        media = [_MULTIPART_TYPE if has_file else _FORM_TYPE]
    required = [field["name"] for field in fields if field.get("required") is True]
    form_schema: Json = {
        "type": "object",
        "properties": {field["name"]: parameter_schema(field) for field in fields},
        "required": required,
    }
    encoding = {}
    for field in fields:
        if field.get("type") == "array":
            encoding[field["name"]] = _array_style(field)
    content = {each: {"schema": form_schema, "encoding": encoding} for each in media}
    return {"required": bool(required), "content": content}


def convert_response(raw: Json, produces: list[str]) -> Json:
    """Convert a Swagger 2.0 response to OpenAPI 3, with its schema under each type in `produces`."""
    found: Json = {"description": raw.get("description", "")}
    if isinstance(raw.get("schema"), dict):
        found["content"] = {each: {"schema": raw["schema"]} for each in produces or ["application/json"]}
    return found


def convert_servers(tree: Json) -> list[Json]:
    """Convert `host`, `basePath`, and `schemes` in Swagger 2.0 to a list of servers, https first."""
    host, path = tree.get("host"), tree.get("basePath")
    path = path if isinstance(path, str) else "/"
    if not isinstance(host, str):
        return [{"url": path}]
    schemes = string_list(tree.get("schemes")) or [""]  # none: the scheme of the document's URL
    ordered = sorted(schemes, key=lambda scheme: scheme != "https")
    return [
        {"url": f"{scheme}:" * bool(scheme) + f"//{host}{path}"}
        for scheme in ordered
        if scheme in ("https", "http", "")
    ]


def convert_security_scheme(raw: Json) -> Json:
    """Convert a Swagger 2.0 security definition to an OpenAPI 3 security scheme."""
    if raw.get("type") == "basic":
        return {"type": "http", "scheme": "basic", "description": raw.get("description", "")}
    if raw.get("type") != "oauth2":
        return raw
    flow = str(raw.get("flow", ""))
    words = ("authorizationUrl", "tokenUrl", "scopes")
    return {
        "type": "oauth2",
        "flows": {_OAUTH_FLOWS.get(flow, flow): {word: raw[word] for word in words if word in raw}},
    }


def string_list(value: Any) -> list[str]:
    """Return the strings in a list, or nothing if the value is not a list."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _array_style(raw: Json) -> Json:
    style, explode = _COLLECTION_FORMATS.get(str(raw.get("collectionFormat", "csv")), ("form", False))
    return {"style": style, "explode": explode}


def _strip_params(media: str) -> str:
    return media.partition(";")[0].strip().lower()
