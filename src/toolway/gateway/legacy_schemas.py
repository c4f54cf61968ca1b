"""Output schemas that older clients do not understand, and those that no client can use.

Since 2026-07-28, a tool may return any JSON value, and its `outputSchema` may have any type. Earlier clients only
accept objects, and a single other tool makes them reject the whole list. So they get the schema and the value wrapped
as `{"result": …}`. An invalid `outputSchema` is left out for all clients.
"""

from __future__ import annotations

from typing import Any, Final

from toolway.protocol.json_schema import find_schema_error
from toolway.types import Era, Json

WRAPPER_KEY: Final = "result"
_DEFINITIONS: Final = ("$defs", "definitions")  # they move to the root, so references to them stay valid
_DATA_KEYS: Final = frozenset({"const", "enum", "default", "examples"})  # their values are not schemas
_MAX_DEPTH: Final = 100


def is_usable(schema: object) -> bool:
    """Return True if a client can use this output schema."""
    return isinstance(schema, dict) and find_schema_error(schema) is None


def is_wrapped(schema: object) -> bool:
    """Return True if legacy clients get values of this output schema wrapped as `{"result": …}`."""
    return isinstance(schema, dict) and schema.get("type") != "object"


def adapt_definition(definition: Json, era: Era) -> Json:
    """Return a tool's definition for clients of this era, unchanged if its output schema suits them."""
    if "outputSchema" not in definition:
        return definition
    schema = definition["outputSchema"]
    if not is_usable(schema):
        return {key: value for key, value in definition.items() if key != "outputSchema"}
    if era == "legacy" and is_wrapped(schema):
        return {**definition, "outputSchema": wrap_schema(schema)}
    return definition


def wrap_schema(schema: Json) -> Json:
    """Return the schema of an object whose only key, `result`, has a value that matches `schema`."""
    if "$id" in schema:  # its references are relative to itself
        inner, moved = schema, {}
    else:
        adapted = _move_references(schema, 0)
        moved = {key: adapted[key] for key in _DEFINITIONS if key in adapted}
        inner = {key: value for key, value in adapted.items() if key not in _DEFINITIONS and key != "$schema"}
    dialect = {"$schema": schema["$schema"]} if "$schema" in schema else {}
    return {**dialect, "type": "object", "properties": {WRAPPER_KEY: inner}, "required": [WRAPPER_KEY], **moved}


def _move_references(value: Any, depth: int) -> Any:
    """Return a schema with its references to itself adjusted to its place in the wrapper."""
    if depth > _MAX_DEPTH:
        return value
    if isinstance(value, list):
        return [_move_references(each, depth + 1) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _move_reference(each)
        if key == "$ref" and isinstance(each, str)
        else each
        if key in _DATA_KEYS
        else _move_references(each, depth + 1)
        for key, each in value.items()
    }


def _move_reference(reference: str) -> str:
    is_local = reference == "#" or reference.startswith("#/")
    if not is_local or reference.startswith(tuple(f"#/{key}/" for key in _DEFINITIONS)):
        return reference
    return f"#/properties/{WRAPPER_KEY}{reference[1:]}"


def adapt_result(result: Json, definition: Json | None, era: Era) -> Json:
    """Return a tool's result for clients of this era, unchanged if they accept its structured content.

    `definition` is the tool definition as the server sent it.
    """
    if era != "legacy" or "structuredContent" not in result:
        return result
    value = result["structuredContent"]
    schema = definition.get("outputSchema") if definition is not None else None
    if isinstance(value, dict) and not (is_wrapped(schema) and is_usable(schema)):
        return result
    return {**result, "structuredContent": {WRAPPER_KEY: value}}
