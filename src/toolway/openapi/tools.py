"""The MCP tool that an operation is."""

from __future__ import annotations

from typing import Any, Final

import jsonschema_rs

from toolway.model import Json
from toolway.openapi.operation import Body, Parameter
from toolway.openapi.schemas import Converted, Schemas, fitted

MAX_INPUT: Final = 16_000  # bytes of JSON, which a model reads
MAX_OUTPUT: Final = 4_000

_READ: Final = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True}
_SAME_TWICE: Final = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True}
_COUNTS: Final = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False}
_BY_METHOD: Final[dict[str, Json]] = {
    "GET": _READ, "HEAD": _READ, "OPTIONS": _READ, "TRACE": _READ, "QUERY": _READ,
    "PUT": _SAME_TWICE, "DELETE": _SAME_TWICE,
    "POST": _COUNTS, "PATCH": _COUNTS,
}  # fmt: skip


def annotations_of(method: str) -> Json:
    """What HTTP says about a method, and nothing that a document claims."""
    return {**_BY_METHOD.get(method, _COUNTS), "openWorldHint": True}


def input_schema(
    parameters: list[tuple[Parameter, Converted]],
    body: Body | None,
    ways: list[tuple[Converted, Schemas]],
    inputs: Schemas,
) -> Json:
    """The schema of the arguments, with what it refers to."""
    fields: Json = {}
    wanted: list[str] = []
    roots: list[tuple[Converted, Schemas]] = []
    for parameter, converted in parameters:
        if parameter.given:
            continue
        fields[parameter.argument] = converted.schema
        roots.append((converted, inputs))
        if parameter.required:
            wanted.append(parameter.argument)
    if body is not None:
        room = max(2000, MAX_INPUT - sum(converted.size for converted, _ in roots)) // max(1, len(ways))
        ways = [(fitted(converted, room), maker) for converted, maker in ways]
        roots.extend(ways)
        fields |= _body_fields(body, [converted.schema for converted, _ in ways])
        if body.required:
            wanted.append(body.argument)
    schema: Json = {"type": "object", "properties": fields}
    if wanted:
        schema["required"] = wanted
    schema["additionalProperties"] = False
    definitions = _definitions(roots)
    return schema | ({"$defs": definitions} if definitions else {})


def _body_fields(body: Body, schemas: list[Json]) -> Json:
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    if body.description and "description" not in schema:
        schema = {**schema, "description": body.description}
    fields = {body.argument: schema}
    if body.type_argument:
        names = [content.media_type for content in body.contents]
        fields[body.type_argument] = {
            "type": "string",
            "enum": names,
            "default": names[0],
            "description": "How the body is written.",
        }
    return fields


def _definitions(roots: list[tuple[Converted, Schemas]]) -> Json:
    makers = list({id(maker): maker for _, maker in roots}.values())
    left = MAX_INPUT - sum(converted.size for converted, _ in roots)
    found: Json = {}
    for maker in makers:
        own = [Converted(each.schema, each.uses, 0) for each, of in roots if of is maker]
        found |= maker.closure(own, max(0, left) // len(makers))
    return found


def output_schema(converted: Converted, schemas: Schemas) -> Json:
    """The schema of structured content, with what it refers to."""
    converted = fitted(converted, MAX_OUTPUT)
    definitions = schemas.closure([converted], MAX_OUTPUT)
    return {**converted.schema, "type": "object"} | ({"$defs": definitions} if definitions else {})


def problem(tool: Json) -> str | None:
    """Why a tool is none: its schemas must be valid by themselves, because clients check them."""
    for word in ("inputSchema", "outputSchema"):
        schema: Any = tool.get(word)
        if schema is None:
            continue
        try:
            jsonschema_rs.Draft202012Validator(schema, retriever=_refuse)
        except ValueError as exc:
            return f"its {word} is no valid JSON Schema: {exc}"[:300]
    return None


def _refuse(uri: str) -> Any:
    raise ValueError(f"a reference to {uri[:80]}")
