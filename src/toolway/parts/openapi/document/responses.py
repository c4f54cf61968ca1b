"""Reads an operation's responses, and an OpenAPI document's servers and security.

The responses determine the Accept header and the schema of structured results.
"""

from __future__ import annotations

import re
from typing import Any, Final

from toolway.parts.openapi.document import inputs, schema_keywords, swagger2
from toolway.parts.openapi.document.models import ApiResponse, BaseUrl, SecurityRequirement, SecurityScheme
from toolway.parts.openapi.document.parser import RefResolver, UnresolvedRef
from toolway.parts.openapi.document.schema_converter import ConvertedSchema, SchemaConverter
from toolway.types import Json


def read_responses(raw: Any, refs: RefResolver, dialect: str, produces: list[str]) -> list[tuple[ApiResponse, Json]]:
    """Read an API operation's declared responses, each with its content by media type.

    A response that cannot be resolved is left out, because no call depends on it.
    """
    found = []
    for status, each in raw.items() if isinstance(raw, dict) else ():
        if status.startswith("x-"):
            continue
        try:
            entry = refs.resolve_object(each)
        except UnresolvedRef:
            continue
        if dialect == "2.0":
            entry = swagger2.convert_response(entry, produces)
        raw_content = entry.get("content")
        content: Json = raw_content if isinstance(raw_content, dict) else {}
        kinds = tuple(name for name in content if inputs.is_header_safe(name))
        found.append(
            (
                ApiResponse(
                    status.upper(),
                    schema_keywords.clean_text(entry.get("description"), schema_keywords.MAX_FIELD_TEXT),
                    kinds,
                ),
                content,
            )
        )
    return found


def accept_header(responses: list[tuple[ApiResponse, Json]]) -> str:
    """Return the Accept header for the media types of the successful responses, JSON first."""
    kinds = {
        inputs.strip_params(kind): None
        for response, _ in _success_responses(responses)
        for kind in response.media_types
    }
    ordered = sorted(kinds, key=lambda kind: (inputs.media_kind(kind) != "json", kind == "*/*"))
    if not ordered or ordered == ["*/*"]:
        return "application/json, */*;q=0.5"
    return ", ".join([*ordered[:8], "*/*;q=0.1"] if "*/*" not in ordered else ordered[:8])


def response_schema(
    responses: list[tuple[ApiResponse, Json]], schemas: SchemaConverter
) -> tuple[ConvertedSchema, bool] | None:
    """Return an operation's output schema, and True if results must be wrapped in an object: `{"result": …}`.

    A result is wrapped if it may be something other than an object. The schema is None if the OpenAPI document does not
    declare a JSON response.
    """
    found: list[ConvertedSchema] = []
    for _, content in _success_responses(responses):
        for kind, entry in content.items():
            node = entry.get("schema") if isinstance(entry, dict) else None
            if inputs.media_kind(kind) == "json" and isinstance(node, dict):
                converted = schemas.convert(node)
                if all(converted.schema != known.schema for known in found):
                    found.append(converted)
    if not found:
        return None
    if len(found) == 1:
        whole = schemas.inline_reference(found[0])
        if _is_always_object(whole.schema, schemas, 0):
            return ConvertedSchema({**whole.schema, "type": "object"}, whole.definition_names, whole.size_bytes), False
    if all(_is_always_object(each.schema, schemas, 0) for each in found):
        schema: Json = {"type": "object", "anyOf": [each.schema for each in found]}
    else:
        inner = found[0].schema if len(found) == 1 else {"anyOf": [each.schema for each in found]}
        schema = {"type": "object", "properties": {"result": inner}}
    uses = tuple(dict.fromkeys(name for each in found for name in each.definition_names))
    return ConvertedSchema(schema, uses, sum(each.size_bytes for each in found) + 60), "anyOf" not in schema


def _success_responses(responses: list[tuple[ApiResponse, Json]]) -> list[tuple[ApiResponse, Json]]:
    successes = [each for each in responses if each[0].status.startswith("2")]
    return successes or [each for each in responses if each[0].status == "DEFAULT"]


def _is_always_object(schema: Json, schemas: SchemaConverter, level: int) -> bool:
    """Return True if every non-null value that matches the schema is an object."""
    if level > 5:
        return False
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds:
        return set(kinds) <= {"object", "null"}
    if "$ref" in schema:
        return _is_always_object(
            schemas.get_definition(schema["$ref"].removeprefix("#/$defs/")).schema, schemas, level + 1
        )
    if "allOf" in schema:
        return any(_is_always_object(each, schemas, level + 1) for each in schema["allOf"])
    branches = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
    return bool(branches) and all(_is_always_object(each, schemas, level + 1) for each in branches)


# -- servers and security ----------------------------------------------------------------------------------------------

_SERVER_VARIABLE: Final = re.compile(r"\{([^{}]{1,200})\}")
_MAX_SERVERS: Final = 100


def read_servers(raw: Any) -> tuple[BaseUrl, ...]:
    """Read the `servers` of an OpenAPI document or operation as base URLs.

    A URL with a variable that has no value is left out.
    """
    found = []
    for each in raw[:_MAX_SERVERS] if isinstance(raw, list) else ():
        url = each.get("url") if isinstance(each, dict) else None
        if not isinstance(url, str):
            continue
        filled = _fill_variables(url, each.get("variables"))
        if not _SERVER_VARIABLE.search(filled):
            found.append(
                BaseUrl(filled, schema_keywords.clean_text(each.get("description"), schema_keywords.MAX_FIELD_TEXT))
            )
    return tuple(found)


def _fill_variables(url: str, variables: Any) -> str:
    values = (
        {name: _variable_value(variable) for name, variable in variables.items()} if isinstance(variables, dict) else {}
    )
    return _SERVER_VARIABLE.sub(lambda match: values.get(match[1]) or match[0], url)


def _variable_value(variable: Any) -> str:
    if not isinstance(variable, dict):
        return ""
    default, choices = variable.get("default"), variable.get("enum")
    return str(default if default is not None else choices[0] if isinstance(choices, list) and choices else "")


def read_security_schemes(tree: Json, dialect: str, refs: RefResolver) -> dict[str, SecurityScheme]:
    """Read the security schemes in a Swagger 2.0 or OpenAPI 3 document.

    A scheme whose `$ref` cannot be resolved is left out.
    """
    components = tree.get("components")
    raw = tree.get("securityDefinitions") if dialect == "2.0" else None
    if isinstance(components, dict) and dialect != "2.0":
        raw = components.get("securitySchemes")
    found = {}
    for name, each in raw.items() if isinstance(raw, dict) else ():
        try:
            entry = refs.resolve_object(each)
        except UnresolvedRef:
            continue
        found[name] = _read_security_scheme(
            name, swagger2.convert_security_scheme(entry) if dialect == "2.0" else entry
        )
    return found


def _read_security_scheme(name: str, raw: Json) -> SecurityScheme:
    flows = raw.get("flows")
    return SecurityScheme(
        name=name,
        kind=_string_field(raw, "type"),
        location=_string_field(raw, "in"),
        parameter=_string_field(raw, "name"),
        scheme=_string_field(raw, "scheme").lower(),
        flows=flows if isinstance(flows, dict) else {},
        openid_url=_string_field(raw, "openIdConnectUrl"),
        description=schema_keywords.clean_text(raw.get("description"), schema_keywords.MAX_FIELD_TEXT),
    )


def read_security_requirements(raw: Any) -> tuple[SecurityRequirement, ...]:
    """Read a `security` list: alternatives, each with the schemes (and their scopes) that it needs together."""
    listed = [each for each in raw if isinstance(each, dict)] if isinstance(raw, list) else []
    return tuple({name: tuple(swagger2.string_list(scopes)) for name, scopes in each.items()} for each in listed)


def _string_field(raw: Json, key: str) -> str:
    value = raw.get(key)
    return value if isinstance(value, str) else ""
