"""Drops null arguments, which some clients send for everything that is not set (`dropNulls`). No I/O.

A null is removed if its property is optional and the property's schema does not allow null. So a null with a meaning
stays, and a missing required argument is still reported.
"""

from __future__ import annotations

from typing import Any, Final

from toolway.protocol.json_schema import SchemaValidator
from toolway.types import Json

MAX_DEPTH: Final = 20  # of nested objects that are searched
_DEFINITIONS: Final = ("$schema", "$defs", "definitions")  # keys of a schema that references need


def drop_nulls(arguments: Json, schema: Json) -> Json:
    """Return arguments without each null whose property is optional in the tool's schema and may not be null."""
    return _drop(arguments, schema, {key: schema[key] for key in _DEFINITIONS if key in schema}, 0)


def _drop(value: Json, schema: Json, definitions: Json, depth: int) -> Json:
    properties = schema.get("properties")
    if depth >= MAX_DEPTH or not isinstance(properties, dict):
        return value
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    found: Json = {}
    for name, part in value.items():
        inner = properties.get(name)
        if part is None and name not in required and isinstance(inner, dict) and not _allows_null(inner, definitions):
            continue
        found[name] = _drop_within(part, inner, definitions, depth + 1) if isinstance(inner, dict) else part
    return found


def _drop_within(value: Any, schema: Json, definitions: Json, depth: int) -> Any:
    schema = _resolve(schema, definitions)
    if isinstance(value, dict):
        return _drop(value, schema, definitions, depth)
    items = schema.get("items")
    if isinstance(value, list) and isinstance(items, dict):
        items = _resolve(items, definitions)
        return [_drop(each, items, definitions, depth) if isinstance(each, dict) else each for each in value]
    return value


def _resolve(schema: Json, definitions: Json) -> Json:
    """Return the definition that a schema refers to (`#/$defs/…`), or the schema itself without a reference."""
    _, _, name = str(schema.get("$ref", "")).rpartition("/")
    for key in ("$defs", "definitions"):
        group = definitions.get(key)
        if schema.get("$ref") == f"#/{key}/{name}" and isinstance(group, dict) and isinstance(group.get(name), dict):
            found: Json = group[name]
            return found
    return schema


def _allows_null(schema: Json, definitions: Json) -> bool:
    return SchemaValidator({**definitions, **schema}).is_valid(None)
