"""Readable description of one tool: its arguments, a call to copy, and a check of argument names."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from toolway.errors import ArgumentViolation, InvalidArguments, invalid_arguments

if TYPE_CHECKING:
    from toolway.catalog.catalog import Tool
    from toolway.cli.output import Output

_MAX_TYPE_CHARS: Final = 40  # of a type in the table; `--json` shows the whole schema
_EXAMPLES: Final = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}, "null": None}


def find_named(tools: Iterable[Tool], name: str) -> Tool | None:
    """Return the tool with exactly this name, with or without its server; None if there is not exactly one."""
    found = [tool for tool in tools if name in (tool.qualified_name, tool.ref.tool)]
    return found[0] if len(found) == 1 else None


def find_shown(found: list[Tool], query: str, *, one_server: bool = False) -> Tool | None:
    """Return the tool whose details are shown: the one among `found` that `query` names exactly.

    None if `query` names no tool, or is a bare name and other tools were found too. If `one_server`, all are of one
    server, and the bare name is enough.
    """
    named = find_named(found, query)
    is_name = named is not None and (one_server or query == named.qualified_name or len(found) == 1)
    return named if is_name else None


def print_tool(output: Output, tool: Tool, called_as: str) -> None:
    """Print a tool with its arguments and a call to copy. `called_as` are the words after `toolway call` in it."""
    output.print_line(tool.qualified_name, "bold")
    for line in (tool.description or tool.title or "").strip().splitlines():
        output.print_line(f"  {line.rstrip()}")
    effect = effect_text(tool.annotations)
    if effect:
        output.print_line(f"  {effect}", "dim")
    output.print_line()
    rows = list(argument_rows(tool.input_schema))
    if rows:
        output.print_table(("argument", "type", "required", "description"), rows)
    else:
        output.print_line("It has no arguments.")
    output.print_line()
    output.print_line(f"toolway call {called_as}{example_words(tool.input_schema)}", "bold")


def effect_text(annotations: Mapping[str, Any]) -> str:
    """Return what a tool's hints say about its effect; empty if nothing."""
    if annotations.get("readOnlyHint") is True:
        return "reads only"
    if annotations.get("destructiveHint") is True:
        return "may delete or overwrite"
    return "safe to repeat" if annotations.get("idempotentHint") is True else ""


def argument_rows(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, type, "yes" if it is required, and description of each argument, required ones first."""
    required = required_names(schema)
    properties = properties_of(schema)
    for name in sorted(properties, key=lambda each: each not in required):
        found = properties[name]
        part = found if isinstance(found, Mapping) else {}
        text = " ".join(str(part.get("description") or part.get("title") or "").split())
        default = f"default {json.dumps(part['default'], ensure_ascii=False)}" if "default" in part else ""
        about = "; ".join(each for each in (text, default) if each)
        yield name, type_text(part)[:_MAX_TYPE_CHARS], "yes" if name in required else "", about


def type_text(schema: Any) -> str:
    """Return the type of a schema in a few words: "integer", "array of string", `"a" | "b"`."""
    if not isinstance(schema, Mapping):
        return "any"
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if isinstance(schema.get("enum"), list):
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return " or ".join(dict.fromkeys(type_text(each) for each in schema[key]))
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    words = [
        f"array of {type_text(schema['items'])}" if kind == "array" and "items" in schema else str(kind or "any")
        for kind in kinds
    ]
    return " or ".join(words)


def example_words(schema: Mapping[str, Any]) -> str:
    """Return arguments for an example call: the required ones, or the first two."""
    properties = properties_of(schema)
    names = [name for name in required_names(schema) if name in properties] or list(properties)[:2]
    words = [_example_word(name, properties[name]) for name in names]
    return "".join(f" {word}" for word in words)


def _example_word(name: str, schema: Any) -> str:
    value = _example_value(schema if isinstance(schema, Mapping) else {}, name)
    if isinstance(value, str):
        return shlex.quote(f"{name}={value}")
    return shlex.quote(f"{name}:={json.dumps(value, ensure_ascii=False)}")


def _example_value(schema: Mapping[str, Any], name: str) -> Any:
    if "const" in schema:
        return schema["const"]
    if "default" in schema:
        return schema["default"]
    for key in ("examples", "enum"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list) and schema[key] and isinstance(schema[key][0], Mapping):
            return _example_value(schema[key][0], name)
    kinds = schema.get("type")
    kind = kinds[0] if isinstance(kinds, list) and kinds else kinds
    if kind in ("integer", "number") and isinstance(schema.get("minimum"), int | float):
        return schema["minimum"]
    return _EXAMPLES.get(kind, name.upper()) if isinstance(kind, str) else name.upper()


def check_names(tool: Tool, names: Iterable[str]) -> InvalidArguments | None:
    """Return the error for argument names that the schema of a tool does not have; None if all are known.

    A JSON schema allows unknown names by default, so a server often ignores a misspelt one. If the schema itself has a
    rule about other names, such as `additionalProperties`, no name is rejected here: the usual check does that.
    """
    schema = tool.input_schema
    properties = properties_of(schema)
    open_keys = (
        "additionalProperties",
        "patternProperties",
        "unevaluatedProperties",
        "$ref",
        "allOf",
        "anyOf",
        "oneOf",
    )
    if not properties or any(key in schema for key in open_keys):
        return None  # the usual check of the arguments knows these
    violations = tuple(
        ArgumentViolation(f"$.{name}", "is unknown", nearest=next(iter(get_close_matches(name, properties, n=1)), ""))
        for name in names
        if name not in properties
    )
    if not violations:
        return None
    error = invalid_arguments(tool.server, tool.ref.tool, violations)
    error.hint = (
        f"show its arguments: toolway tools {tool.qualified_name}; to send other names anyway, pass one JSON object: "
        f"toolway call {tool.qualified_name} '{{\"name\": …}}'"
    )
    return error


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the properties of an object schema; empty if it has none."""
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def required_names(schema: Mapping[str, Any]) -> list[str]:
    """Return the names that an object schema requires."""
    found = schema.get("required")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
