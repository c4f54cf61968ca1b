"""Repairs input schemas that model providers would reject: one repair for each rule in `doctor/lint.py`. No I/O.

If a provider rejects the schema of one tool, the whole request fails. So a schema is changed as little as the rules
demand, and a tool whose schema cannot be repaired is left out. The hub still checks arguments against the server's
schema: a repair lets a model send more than the server accepts, never less.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolway.doctor import lint
from toolway.doctor.lint import Provider
from toolway.protocol.sanitize import remove_invisible
from toolway.types import Json

_INVALID_NAME_CHARS: Final = re.compile(r"[^a-zA-Z0-9_.-]", re.ASCII)
_MAX_PROPERTY_NAME: Final = 64
_MAX_NOTE_CHARS: Final = 500  # of enum values that move to a description


class UnusableSchema(ValueError):
    """Raised when a provider would reject a schema, and we have no repair for it."""


@dataclass(frozen=True, slots=True)
class AdaptedSchema:
    """A schema that providers accept, the changes that were made, and the original names of renamed properties."""

    schema: Json
    changes: tuple[str, ...]  # such as `properties.tags: an array without "items"`
    original_names: Mapping[str, str]  # property that the model sees → property of the server

    def restore(self, arguments: Any) -> Any:
        """Return the arguments that a model sent, with the property names that the server uses."""
        if not self.original_names:
            return arguments
        if isinstance(arguments, list):
            return [self.restore(each) for each in arguments]
        if not isinstance(arguments, dict):
            return arguments
        return {self.original_names.get(key, key): self.restore(value) for key, value in arguments.items()}


def adapt_schema(schema: Any, providers: Sequence[Provider] = lint.PROVIDERS) -> AdaptedSchema:
    """Return a copy of an input schema that all of `providers` accept.

    Raises `UnusableSchema` if it is not a valid JSON Schema.
    """
    if not isinstance(schema, dict):
        raise UnusableSchema("inputSchema is not an object")
    invalid = lint.schema_error(schema)
    if invalid:
        raise UnusableSchema(f"inputSchema is not valid JSON Schema: {invalid[1]}")
    adapted: Json = copy.deepcopy(schema)
    adapted.pop("$schema", None)
    changes: list[str] = []
    names: dict[str, str] = {}
    for path, node in lint.subschemas(adapted, (), 0):
        for rule in lint.SCHEMA_RULES:
            found = [message for message, _, rejecting in rule(node, not path) if set(rejecting) & set(providers)]
            if found:
                changes += [f"{'.'.join(path)}: {message}" if path else message for message in found]
                _REPAIRS[rule](node, names)
        if isinstance(node.get("description"), str):
            node["description"] = remove_invisible(node["description"])
    adapted.setdefault("properties", {})  # required by OpenAI
    return AdaptedSchema(adapted, tuple(changes), names)


# -- repairs: change one schema object in place ------------------------------------------------------------------------


def _repair_top_level(schema: Json, names: dict[str, str]) -> None:
    schema["type"] = "object"
    properties = schema["properties"] if isinstance(schema.get("properties"), dict) else {}
    required = [each for each in _list(schema.get("required")) if isinstance(each, str)]
    for word in lint.COMBINATORS:
        branches = [each for each in _list(schema.pop(word, None)) if isinstance(each, dict)]
        if word in ("not", "enum") or not branches:
            continue
        for branch in branches:
            for key, value in _dict(branch.get("properties")).items():
                properties.setdefault(key, value)
        demanded = [{each for each in _list(branch.get("required")) if isinstance(each, str)} for branch in branches]
        common = set.union(*demanded) if word == "allOf" else set.intersection(*demanded)
        required += sorted(common - set(required))
    schema["properties"] = properties
    if required:
        schema["required"] = required


def _repair_array(schema: Json, names: dict[str, str]) -> None:
    schema["items"] = {"type": "string"}
    _add_note(schema, "Items may have any type.")


def _repair_property_names(schema: Json, names: dict[str, str]) -> None:
    renamed: dict[str, str] = {}
    properties: Json = {}
    for key, value in schema["properties"].items():
        name = key if lint.PROPERTY_NAME.fullmatch(key) else _safe_name(key)
        properties[name] = value
        if name != key:
            renamed[key] = name
            names[name] = key
    schema["properties"] = properties
    if isinstance(schema.get("required"), list):
        schema["required"] = [renamed.get(each, each) for each in schema["required"]]


def _repair_enum(schema: Json, names: dict[str, str]) -> None:
    values = schema.pop("enum")
    if all(isinstance(each, str) or each is None for each in values):
        schema["enum"] = [each for each in values if each is not None]
    else:
        _add_note(schema, "One of: " + ", ".join(str(each) for each in values)[:_MAX_NOTE_CHARS])


def _repair_reference(schema: Json, names: dict[str, str]) -> None:
    reference = schema.pop("$ref")
    _add_note(schema, f"As in {reference[:100]}.")


_REPAIRS: Final[Mapping[lint.SchemaRule, Callable[[Json, dict[str, str]], None]]] = {
    lint.check_top_level: _repair_top_level,
    lint.check_arrays: _repair_array,
    lint.check_property_names: _repair_property_names,
    lint.check_enums: _repair_enum,
    lint.check_references: _repair_reference,
}


def _safe_name(key: str) -> str:
    """Return a name for a property that all providers accept.

    It ends with a hash, so every property has a different name.
    """
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_INVALID_NAME_CHARS.sub('_', key)[: _MAX_PROPERTY_NAME - 9]}_{digest}"


def _add_note(schema: Json, note: str) -> None:
    description = schema.get("description")
    schema["description"] = f"{description} {note}" if isinstance(description, str) and description else note


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
