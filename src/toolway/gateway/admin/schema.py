"""Building blocks for the admin API's JSON Schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from toolway.types import Json


def ref_to(name: str) -> Json:
    """Return a reference to the schema with this name."""
    return {"$ref": f"#/components/schemas/{name}"}


def array_of(items: Json) -> Json:
    """Return the schema of an array of these items."""
    return {"type": "array", "items": items}


def nullable(kind: str) -> Json:
    """Return the schema of a value that may be null."""
    return {"type": [kind, "null"]}


def object_of(fields: Mapping[str, Any], base: Json | None = None) -> Json:
    """Return the JSON Schema of an object with these fields, plus the fields of the schema `base`.

    A field whose name ends with ? is optional; the ? is removed.
    """
    properties = {name.removesuffix("?"): schema for name, schema in fields.items()}
    required = [name for name in fields if not name.endswith("?")]
    if base is not None:
        properties, required = {**base["properties"], **properties}, list(dict.fromkeys([*base["required"], *required]))
    return {"type": "object", "properties": properties, "required": required}


def object_from(cls: type) -> Json:
    """Return the JSON Schema of a data class. All fields are required, because replies contain them all."""
    _, components = msgspec.json.schema_components([cls], ref_template="#/components/schemas/{name}")
    properties = components[cls.__name__]["properties"]
    for schema in properties.values():
        schema.pop("default", None)
    return {"type": "object", "properties": properties, "required": list(properties)}


STRING: Final[Json] = {"type": "string"}
NUMBER: Final[Json] = {"type": "number"}
INTEGER: Final[Json] = {"type": "integer"}
BOOLEAN: Final[Json] = {"type": "boolean"}
ANY: Final[Json] = {}
ANY_OBJECT: Final[Json] = {"type": "object"}
STRINGS: Final = array_of(STRING)
