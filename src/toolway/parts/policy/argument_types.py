"""Converts tool arguments for Cedar: their types from JSON Schemas, and their values. No I/O.

Cedar does not support null, floats, or integers over 64 bits. Nulls are left out, and numbers that may have a fraction
are passed as strings. A call is denied if an argument is an integer over 64 bits, violates its schema, or has no single
type there, because conditions on it could not be evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from toolway.parts.policy.analysis import ArgumentRead
from toolway.types import Json

MAX_DEPTH: Final = 6  # of objects in objects
MAX_ATTRIBUTES: Final = 200  # of one object
MAX_CONTEXT_CHARS: Final = 64 * 1024  # characters of all strings in the arguments that policies read
MAX_LONG: Final = 2**63 - 1
_SCALARS: Final = {"string": "String", "integer": "Long", "boolean": "Boolean", "number": "String"}

#: A Cedar type in the JSON form of Cedar schemas, as nested tuples, to be comparable and hashable.
CedarType: TypeAlias = "tuple[str, Any]"  # (String, integer or number) · (Set, type) · (Record, fields)
Field: TypeAlias = "tuple[str, CedarType, bool]"  # name, type, required
ArgumentTypes: TypeAlias = "tuple[Field, ...]"


class UnfitArgument(ValueError):
    """Raised when an argument that a policy reads does not fit Cedar or its tool's schema."""


def argument_types(input_schema: Json, names: Iterable[str]) -> ArgumentTypes:
    """Return the Cedar types of the tool arguments that policies read (`names`).

    An argument whose schema allows several types is left out. A policy that reads it is invalid for this tool, or finds
    no value (`has`). `check_reads` denies calls that contain such an argument.
    """
    wanted = set(names)
    if not wanted:
        return ()
    return _fields(input_schema, input_schema, wanted, MAX_DEPTH)


def to_schema(types: ArgumentTypes) -> Json:
    """Return the type of `context.args` for these arguments, in the JSON form of a Cedar schema."""
    return {
        "type": "Record",
        "attributes": {name: {**_type_to_schema(type_), "required": required} for name, type_, required in types},
    }


def to_values(arguments: Mapping[str, Any], types: ArgumentTypes) -> Json:
    """Convert the arguments that policies read to values for Cedar.

    Raises `UnfitArgument` if an argument cannot be converted.
    """
    budget = [MAX_CONTEXT_CHARS]
    return _record(arguments, types, budget, "")


def check_reads(arguments: Mapping[str, Any], types: ArgumentTypes, reads: Iterable[ArgumentRead]) -> None:
    """Raise `UnfitArgument` if a policy reads a value that cannot be passed to Cedar.

    Such a value has no single type in the tool's schema. The server would receive it, but a `forbid` that tests for it
    (`has`) would not apply.
    """
    for read in reads:
        given: Any = arguments
        fields, type_ = types, None
        for place, name in enumerate(read.path, 1):
            given = given.get(name) if isinstance(given, Mapping) else None
            if given is None:
                break
            type_ = next((each[1] for each in fields if each[0] == name), None)
            if type_ is None:
                raise UnfitArgument(f"{'.'.join(read.path[:place])} has no single type in the schema of the tool")
            fields = type_[1] if type_[0] == "Record" else ()
        if given is not None and type_ is not None and read.whole:
            _check_whole(given, type_, ".".join(read.path))


def _check_whole(value: Any, type_: CedarType, path: str) -> None:
    """Raise `UnfitArgument` if part of a value has no type in the tool's schema.

    Cedar would not receive that part, so a policy would compare less than the server receives.
    """
    name, inner = type_
    if name == "Set" and isinstance(value, list):
        for each in value:
            _check_whole(each, inner, path)
    elif name == "Record" and isinstance(value, Mapping):
        known = {field: field_type for field, field_type, _ in inner}
        for key, each in value.items():
            if each is not None and key not in known:
                raise UnfitArgument(f"{path}.{key} has no single type in the schema of the tool")
            if each is not None:
                _check_whole(each, known[key], f"{path}.{key}")


def _fields(schema: Any, root: Json, wanted: set[str] | None, depth: int) -> ArgumentTypes:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or depth <= 0:
        return ()
    required = schema.get("required")
    required_names = set(map(str, required)) if isinstance(required, list) else set()
    found: list[Field] = []
    for name, each in properties.items():
        if str(name).startswith("__"):
            continue  # Cedar reads __entity and __extn as more than names
        if (wanted is None or name in wanted) and len(found) < MAX_ATTRIBUTES:
            type_, nullable = _type_of(each, root, depth - 1)
            if type_ is not None:
                found.append((str(name), type_, name in required_names and not nullable))
    return tuple(sorted(found))


def _type_of(schema: Any, root: Json, depth: int) -> tuple[CedarType | None, bool]:
    """Return a JSON Schema's Cedar type, and whether the schema allows null.

    The type is None if several types are possible.
    """
    schema = _resolve(schema, root)
    if not isinstance(schema, dict) or depth < 0:
        return None, False
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        if isinstance(options, list):
            found = [_type_of(each, root, depth - 1) for each in options if not _is_null(each, root)]
            nullable = len(found) < len(options) or any(each[1] for each in found)
            same = len({each[0] for each in found}) == 1
            return (found[0][0] if same else None), nullable
    kind = schema.get("type")
    names = kind if isinstance(kind, list) else [kind]
    plain = [each for each in names if each != "null"]
    nullable = len(plain) < len(names)
    if len(plain) != 1 or not isinstance(plain[0], str):
        return None, nullable
    name = plain[0]
    if name in _SCALARS:
        return (_SCALARS[name], name), nullable
    if name == "array":
        inner, _ = _type_of(schema.get("items"), root, depth - 1)
        return (("Set", inner) if inner is not None else None), nullable
    if name == "object":
        return ("Record", _fields(schema, root, None, depth)), nullable
    return None, nullable


def _resolve(schema: Any, root: Json) -> Any:
    """Return the schema that a reference (`#/$defs/name`) points to. Any other schema is returned unchanged.

    Return None if the reference cannot be resolved in this document.
    """
    for _ in range(MAX_DEPTH):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str):
            return schema
        parts = reference.split("/")
        if len(parts) != 3 or parts[0] != "#" or parts[1] not in ("$defs", "definitions"):
            return None
        table = root.get(parts[1])
        schema = table.get(parts[2]) if isinstance(table, dict) else None
    return None


def _is_null(schema: Any, root: Json) -> bool:
    resolved = _resolve(schema, root)
    return isinstance(resolved, dict) and resolved.get("type") == "null"


def _type_to_schema(type_: CedarType) -> Json:
    name, inner = type_
    if name == "Set":
        return {"type": "Set", "element": _type_to_schema(inner)}
    return to_schema(inner) if name == "Record" else {"type": name}


def _record(given: Mapping[str, Any], types: ArgumentTypes, budget: list[int], path: str) -> Json:
    values = {}
    for name, type_, _ in types:
        value = given.get(name)
        if value is not None:
            values[name] = _value(value, type_, budget, f"{path}.{name}" if path else name)
    return values


def _value(value: Any, type_: CedarType, budget: list[int], path: str) -> Any:
    name, inner = type_
    if name == "Boolean" and isinstance(value, bool):
        return value
    if name == "Long" and isinstance(value, int | float) and not isinstance(value, bool):
        if value != int(value) if _is_finite(value) else True:
            raise UnfitArgument(f"{path} is not an integer")
        if abs(int(value)) > MAX_LONG:
            raise UnfitArgument(f"{path} is an integer over 64 bits")
        return int(value)  # 5.0 is an integer in JSON Schema
    if name == "String" and inner == "number" and isinstance(value, int | float) and not isinstance(value, bool):
        return _spend(str(value), budget, path)
    if name == "String" and inner == "string" and isinstance(value, str):
        return _spend(value, budget, path)
    if name == "Set" and isinstance(value, list):
        _spend(" " * min(len(value), MAX_CONTEXT_CHARS + 1), budget, path)
        return [_value(each, inner, budget, path) for each in value if each is not None]
    if name == "Record" and isinstance(value, dict):
        return _record(value, inner, budget, path)
    raise UnfitArgument(f"{path} does not have the type that its schema says")


def _is_finite(value: float) -> bool:
    return abs(value) != float("inf") and value == value


def _spend(text: str, budget: list[int], path: str) -> str:
    budget[0] -= len(text)
    if budget[0] < 0:
        raise UnfitArgument(f"{path} is longer than the {MAX_CONTEXT_CHARS} characters that policies read in all")
    return text
