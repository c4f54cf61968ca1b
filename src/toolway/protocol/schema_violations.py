"""Describes, for users and models, where arguments violate a JSON schema.

A description says where the problem is, what is wrong there, and what the schema expects. It repeats names and types,
but never an argument's value, which may be a secret. The schema's strings come from the server, so they are sanitized
and cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolway._closest import closest
from toolway.errors import ArgumentViolation, InvalidArguments, invalid_arguments
from toolway.protocol.json_schema import SchemaValidator
from toolway.protocol.sanitize import sanitize
from toolway.types import Json

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError

MAX_VIOLATIONS: Final = 20
MAX_NAME_CHARS: Final = 80  # of one name or one value of the schema
MAX_NAMES: Final = 20  # names or values that are listed as expected
MAX_PATH_CHARS: Final = 300
_MAX_COMPARED_NAMES: Final = 200  # names that are compared with a wrong one: each comparison is slow
_MAX_DESCRIBED_DEPTH: Final = 4  # references and alternatives that are followed to describe what is expected
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_TYPE_NAMES: Final[Mapping[str, str]] = {
    "object": "an object",
    "array": "an array",
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "a boolean",
    "null": "null",
}
# Keyword of an error: what is wrong, and what the limit of the keyword means.
_LIMITS: Final[Mapping[str, tuple[str, str]]] = {
    "minimum": ("is too small", "at least {}"),
    "maximum": ("is too large", "at most {}"),
    "exclusiveMinimum": ("is too small", "more than {}"),
    "exclusiveMaximum": ("is too large", "less than {}"),
    "minLength": ("is too short", "at least {} characters"),
    "maxLength": ("is too long", "at most {} characters"),
    "minItems": ("has too few items", "at least {}"),
    "maxItems": ("has too many items", "at most {}"),
    "minProperties": ("has too few properties", "at least {}"),
    "maxProperties": ("has too many properties", "at most {}"),
    "multipleOf": ("is not a multiple", "a multiple of {}"),
    "additionalItems": ("has too many items", "at most {}"),
    "pattern": ("has the wrong form", "text that matches {}"),
}


def describe_violations(validator: SchemaValidator, instance: Any) -> tuple[tuple[ArgumentViolation, ...], int]:
    """Return the violations of an invalid `instance`, at most 20, and the number of omitted ones."""
    errors = validator.errors(instance)
    if errors is None:
        return (ArgumentViolation("$", "does not match the schema, and is too large to list the positions"),), 0
    found: dict[ArgumentViolation, None] = {}
    for error in errors:
        found.update(dict.fromkeys(_describe(validator.schema, error, instance)))
    return tuple(found)[:MAX_VIOLATIONS], max(0, len(found) - MAX_VIOLATIONS)


def violation_to_json(violation: ArgumentViolation) -> Json:
    """Return a violation as the JSON object that clients get; empty parts are left out."""
    return {name: value for name, value in violation._asdict().items() if value}


def decode_invalid_arguments(data: Json, server: str, tool: str) -> InvalidArguments | None:
    """Return the `InvalidArguments` error in the `data` of a gateway's JSON-RPC error.

    Return None if it describes another error.
    """
    if data.get("code") != InvalidArguments.code or data.get("executed") != "no":
        return None
    items, omitted = data.get("violations"), data.get("omitted")
    found = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    violations = tuple(
        ArgumentViolation(*(sanitize(str(item.get(name) or ""), 2000) for name in ArgumentViolation._fields))
        for item in found[:MAX_VIOLATIONS]
    )
    return invalid_arguments(server, tool, violations, omitted if isinstance(omitted, int) else 0)


def _describe(root: Json, error: ValidationError, instance: Any) -> Iterable[ArgumentViolation]:
    """Yield the violations in one error of the JSON Schema validator, such as one for each unknown property."""
    keyword, facts = error.kind.name, error.kind.as_dict()
    path = error.instance_path
    schema = _schema_at(root, error.schema_path[:-1])
    value = _value_at(instance, path)
    if keyword in ("additionalProperties", "unevaluatedProperties") and "unexpected" in facts:
        yield from _unknown_properties(schema, path, facts["unexpected"])
    elif keyword == "falseSchema" and error.schema_path[-1:] == ["additionalProperties"] and isinstance(value, dict):
        # The validator does not name the properties if the schema knows none.
        yield from _unknown_properties(schema, path, [name for name in value if name not in _own(schema)])
    elif keyword == "required":
        yield _missing_property(root, schema, path, facts["property"], value)
    elif keyword in ("anyOf", "oneOf"):
        yield from _no_alternative(root, schema, error, instance)
    else:
        yield ArgumentViolation(json_path(path), *_describe_keyword(keyword, facts, value))


def _describe_keyword(keyword: str, facts: Json, value: Any) -> tuple[str, str, str]:
    """Return (problem, expected value, nearest allowed name) for a value that violates a schema keyword."""
    if keyword == "type":
        return f"is {_type_of(value)}", _join_types(facts["types"]), ""
    if keyword == "enum":
        names = [option for option in facts["options"] if isinstance(option, str)]
        return "is not an allowed value", _one_of(facts["options"]), _nearest(value, names)
    if keyword == "const":
        return "is not the allowed value", _quote(facts["expected_value"]), ""
    if keyword in _LIMITS:
        problem, expected = _LIMITS[keyword]
        return problem, expected.format(_quote_limit(next(iter(facts.values())))), ""
    if keyword == "falseSchema":
        return "is not allowed", "", ""
    if keyword == "uniqueItems":
        return "has equal items", "different items", ""
    if keyword == "propertyNames":
        return "has a property with a name that is not allowed", "", ""
    return f"is not allowed by {sanitize(keyword, MAX_NAME_CHARS)!r} of the schema", "", ""


def _unknown_properties(schema: Json, path: Sequence[str | int], names: Iterable[str]) -> Iterable[ArgumentViolation]:
    known = list(_own(schema))
    expected = f"one of {', '.join(_shorten(name) for name in known[:MAX_NAMES])}" if known else "no properties"
    if len(known) > MAX_NAMES:
        expected += f" and {len(known) - MAX_NAMES} more"
    for name in names:
        yield ArgumentViolation(json_path([*path, name]), "is unknown", expected, _nearest(name, known))


def _missing_property(root: Json, schema: Json, path: Sequence[str | int], name: str, value: Any) -> ArgumentViolation:
    known = _properties(root, schema)
    given = [each for each in value if each not in known] if isinstance(value, dict) else []
    return ArgumentViolation(
        json_path([*path, name]), "is missing", _expected(root, known.get(name), 0), _nearest(name, given)
    )


def _no_alternative(root: Json, schema: Json, error: ValidationError, instance: Any) -> Iterable[ArgumentViolation]:
    """Yield the violations of a value that does not match `anyOf` or `oneOf`.

    If only one alternative accepts the value's type, its violations are more helpful than a list of all alternatives.
    """
    alternatives: list[list[ValidationError]] = error.kind.as_dict().get("context", [])
    if not any(not each for each in alternatives):
        fitting = [
            each for each in alternatives if not any(_rejects_type(inner, error.instance_path) for inner in each)
        ]
        if len(fitting) == 1:
            for inner in fitting[0]:
                yield from _describe(root, inner, instance)
            return
    path, value = error.instance_path, _value_at(instance, error.instance_path)
    if type(error.kind).__name__.endswith("MultipleValid"):
        yield ArgumentViolation(
            json_path(path), "matches several alternatives", "a value that matches exactly one of them"
        )
    else:
        yield ArgumentViolation(json_path(path), f"is {_type_of(value)}", _expected(root, schema, 0) or "another value")


def _rejects_type(error: ValidationError, path: Sequence[str | int]) -> bool:
    return error.instance_path == path and error.kind.name in ("type", "const", "enum")


# -- parts of a schema -------------------------------------------------------------------------------------------------


def _expected(root: Json, schema: Any, depth: int) -> str:
    """Return what a schema expects, such as "an integer or null", or "" if that takes more than a few words."""
    if not isinstance(schema, dict) or depth > _MAX_DESCRIBED_DEPTH:
        return ""
    if isinstance(schema.get("enum"), list):
        return _one_of(schema["enum"])
    if "const" in schema:
        return _quote(schema["const"])
    types = schema.get("type")
    if types:
        return _join_types([types] if isinstance(types, str) else types if isinstance(types, list) else [])
    if isinstance(schema.get("$ref"), str):
        return _expected(root, _schema_at(root, _pointer_parts(schema["$ref"])), depth + 1)
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            texts = [_expected(root, each, depth + 1) for each in schema[keyword][:MAX_NAMES]]
            return " or ".join(dict.fromkeys(texts)) if all(texts) else ""
    return ""


def _properties(root: Json, schema: Json) -> Json:
    """Return the properties that a schema declares, by name, or those of `root` if it declares none."""
    return _own(schema) or _own(root)


def _own(schema: Json) -> Json:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _schema_at(root: Json, path: Iterable[str | int]) -> Json:
    found = _value_at(root, path)
    return found if isinstance(found, dict) else {}


def _value_at(value: Any, path: Iterable[str | int]) -> Any:
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _pointer_parts(reference: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in reference.split("/")[1:]]


# -- messages ---------------------------------------------------------------------------------------------------------


def json_path(path: Iterable[str | int]) -> str:
    """Return the path of a value in the arguments as JSONPath: `$.items[0].title`, `$['odd name']`."""
    parts = [f"[{part}]" if isinstance(part, int) else _json_path_name(part) for part in path]
    return sanitize("$" + "".join(parts), MAX_PATH_CHARS)


def _json_path_name(name: str) -> str:
    return f".{name}" if _PLAIN_NAME.fullmatch(name) else f"[{_shorten(name)!r}]"


def _type_of(value: Any) -> str:
    checks: tuple[tuple[Callable[[Any], bool], str], ...] = (
        (lambda v: v is None, "null"),
        (lambda v: isinstance(v, bool), "a boolean"),
        (lambda v: isinstance(v, int), "an integer"),
        (lambda v: isinstance(v, str), "a string"),
        (lambda v: isinstance(v, dict), "an object"),
        (lambda v: isinstance(v, list | tuple), "an array"),
    )
    return next((name for check, name in checks if check(value)), "a number")


def _join_types(types: Iterable[Any]) -> str:
    names = sorted(map(str, types), key=lambda name: name == "null")
    return " or ".join(_TYPE_NAMES.get(name, _shorten(name)) for name in names)


def _one_of(options: Sequence[Any]) -> str:
    shown = [_quote(option) for option in options[:MAX_NAMES]]
    more = f" and {len(options) - MAX_NAMES} more" if len(options) > MAX_NAMES else ""
    return f"one of {', '.join(shown)}{more}" if len(shown) != 1 else shown[0]


def _quote(value: Any) -> str:
    return _shorten(msgspec.json.encode(value).decode())


def _quote_limit(value: Any) -> str:
    return _shorten(value) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def _shorten(text: str) -> str:
    return sanitize(text, MAX_NAME_CHARS)


def _nearest(name: Any, known: Iterable[str]) -> str:
    """Return the name in `known` that is most similar to `name`, or "" if none is similar enough."""
    if not isinstance(name, str) or len(name) > MAX_NAME_CHARS:
        return ""
    names = {each.lower(): each for each in list(known)[:_MAX_COMPARED_NAMES] if len(each) <= MAX_NAME_CHARS}
    found = closest(name.lower(), names)
    return _shorten(names[found[0]]) if found else ""
