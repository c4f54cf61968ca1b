"""Builds an API operation's MCP tool definition: its schemas, annotations, and names.

Names are short and stable, and every model provider accepts them.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import jsonschema_rs

from toolway.parts.openapi.document.models import Parameter, RequestBody
from toolway.parts.openapi.document.schema_converter import ConvertedSchema, SchemaConverter, fit_size
from toolway.types import Json

MAX_INPUT_BYTES: Final = 16_000  # bytes of JSON; a model reads it
MAX_OUTPUT_BYTES: Final = 4_000

_READ_HINTS: Final = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True}
_IDEMPOTENT_HINTS: Final = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True}
_UNSAFE_HINTS: Final = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False}
_HINTS_BY_METHOD: Final[dict[str, Json]] = {
    "GET": _READ_HINTS, "HEAD": _READ_HINTS, "OPTIONS": _READ_HINTS, "TRACE": _READ_HINTS, "QUERY": _READ_HINTS,
    "PUT": _IDEMPOTENT_HINTS, "DELETE": _IDEMPOTENT_HINTS,
    "POST": _UNSAFE_HINTS, "PATCH": _UNSAFE_HINTS,
}  # fmt: skip


def method_annotations(method: str) -> Json:
    """Return the tool annotations that follow from the HTTP method, not from the document."""
    return {**_HINTS_BY_METHOD.get(method, _UNSAFE_HINTS), "openWorldHint": True}


def build_input_schema(
    parameters: list[tuple[Parameter, ConvertedSchema]],
    body: RequestBody | None,
    body_schemas: list[tuple[ConvertedSchema, SchemaConverter]],
    inputs: SchemaConverter,
) -> Json:
    """Build the input schema for an operation's tool, with the definitions (`$defs`) it needs."""
    fields: Json = {}
    required: list[str] = []
    roots: list[tuple[ConvertedSchema, SchemaConverter]] = []
    for parameter, converted in parameters:
        if parameter.user_supplied:
            continue
        fields[parameter.argument] = converted.schema
        roots.append((converted, inputs))
        if parameter.required:
            required.append(parameter.argument)
    if body is not None:
        bytes_each = max(2000, MAX_INPUT_BYTES - sum(converted.size_bytes for converted, _ in roots)) // max(
            1, len(body_schemas)
        )
        body_schemas = [(fit_size(converted, bytes_each), converter) for converted, converter in body_schemas]
        roots.extend(body_schemas)
        fields |= _body_fields(body, [converted.schema for converted, _ in body_schemas])
        if body.required:
            required.append(body.argument)
    schema: Json = {"type": "object", "properties": fields}
    if required:
        schema["required"] = required
    schema["additionalProperties"] = False
    definitions = _collect_definitions(roots)
    return schema | ({"$defs": definitions} if definitions else {})


def _body_fields(body: RequestBody, schemas: list[Json]) -> Json:
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
            "description": "Media type of the body.",
        }
    return fields


def _collect_definitions(roots: list[tuple[ConvertedSchema, SchemaConverter]]) -> Json:
    converters = list({id(converter): converter for _, converter in roots}.values())
    bytes_left = MAX_INPUT_BYTES - sum(converted.size_bytes for converted, _ in roots)
    found: Json = {}
    for converter in converters:
        own = [ConvertedSchema(each.schema, each.definition_names, 0) for each, owner in roots if owner is converter]
        found |= converter.collect_definitions(own, max(0, bytes_left) // len(converters))
    return found


def build_output_schema(converted: ConvertedSchema, schemas: SchemaConverter) -> Json:
    """Build the output schema for an operation's tool, with the definitions (`$defs`) it needs."""
    converted = fit_size(converted, MAX_OUTPUT_BYTES)
    definitions = schemas.collect_definitions([converted], MAX_OUTPUT_BYTES)
    return {**converted.schema, "type": "object"} | ({"$defs": definitions} if definitions else {})


def validate_tool(tool: Json) -> str | None:
    """Return why a tool's input or output schema is invalid, or None if both are valid.

    A reference to another document is invalid, because clients have only the tool definition.
    """
    for keyword in ("inputSchema", "outputSchema"):
        schema: Any = tool.get(keyword)
        if schema is None:
            continue
        try:
            jsonschema_rs.Draft202012Validator(schema, retriever=_reject_external)
        except ValueError as exc:
            return f"its {keyword} is not valid JSON Schema: {exc}"[:300]
    return None


def _reject_external(uri: str) -> Any:
    raise ValueError(f"a reference to {uri[:80]}")


# -- names of tools and arguments --------------------------------------------------------------------------------------

MAX_TOOL_NAME: Final = 48  # with the server's name, most stay within the 64 of `protocol/tool_names.py`
MAX_ARGUMENT_NAME: Final = 64
_INVALID_TOOL_CHARS: Final = re.compile(r"[^A-Za-z0-9_-]+")
_INVALID_ARGUMENT_CHARS: Final = re.compile(r"[^A-Za-z0-9_.-]+")


def base_tool_name(operation_id: str, method: str, path: str) -> str:
    """Return an operation's tool name: its operationId, or else its method and path.

    Two operations may get the same name; see `unique_names`.
    """
    name = _INVALID_TOOL_CHARS.sub("_", operation_id).strip("_")
    if not name:
        words = _INVALID_TOOL_CHARS.sub("_", path).strip("_")
        name = f"{method.lower()}_{words}" if words else method.lower()
    return name


def unique_names(names: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return unique tool names for all operations, given as (name, method, path), in the same order.

    The hash suffix depends only on the operation itself, so a name is stable unless another operation has the same
    name.
    """
    requested = list(names)
    counts = Counter(name for name, _, _ in requested)
    taken: set[str] = set()
    result = []
    for name, method, path in requested:
        whole = name if counts[name] == 1 and len(name) <= MAX_TOOL_NAME else _with_hash(name, f"{method} {path}")
        while whole in taken:  # another name equals the one with the hash
            whole = _with_hash(name, f"{whole} {method} {path}")
        taken.add(whole)
        result.append(whole)
    return result


def _with_hash(name: str, hashed: str) -> str:
    digest = hashlib.sha256(hashed.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{name[: MAX_TOOL_NAME - 7].rstrip('_-')}_{digest}"


class ArgumentNames:
    """The argument names of one operation's tool. The first argument to reserve a name gets no suffix."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def reserve(self, name: str, location: str) -> str:
        """Reserve and return a unique argument name. If the name is taken, the location is added as a suffix."""
        plain = _INVALID_ARGUMENT_CHARS.sub("_", name).strip("_")[:MAX_ARGUMENT_NAME] or location
        candidates = [plain, f"{plain[: MAX_ARGUMENT_NAME - len(location) - 1]}_{location}"]
        while candidates[-1] in self._taken:
            candidates.append(f"{candidates[1][: MAX_ARGUMENT_NAME - 4]}_{len(candidates)}")
        chosen = next(each for each in candidates if each not in self._taken)
        self._taken.add(chosen)
        return chosen
