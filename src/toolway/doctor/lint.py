"""Lint of tool definitions for model providers, and their token cost. No I/O.

A lint rule is a function of one schema object. Only schemas that a provider answers with an error are reported: one
such tool makes the whole request fail, with all other tools in it. Invisible characters are reported everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from toolway.protocol import tool_names
from toolway.protocol.json_schema import find_schema_error
from toolway.protocol.sanitize import describe_invisible, remove_invisible
from toolway.search.tokens import TokenCost
from toolway.secrets.replacer import cut_text
from toolway.types import Json

Provider = Literal["openai", "anthropic", "gemini"]
PROVIDERS: Final[tuple[Provider, ...]] = ("openai", "anthropic", "gemini")
MAX_OPENAI_TOOLS: Final = 128  # that OpenAI accepts in one request
MAX_SCHEMA_DEPTH: Final = 32  # the catalog already dropped tools with deeper schemas


@dataclass(frozen=True, slots=True)
class Finding:
    """One lint finding about a tool definition, or about the whole server if `tool` is empty."""

    severity: Literal["error", "warning"]
    tool: str
    message: str
    hint: str
    where: str = ""  # path in the schema: `properties.tags`
    providers: tuple[Provider, ...] = PROVIDERS  # that reject it
    code: str = "E-LINT-SCHEMA"


@dataclass(frozen=True, slots=True)
class LintResult:
    """All findings about the tools of one server, and their token cost per provider."""

    server: str
    tools: int
    findings: tuple[Finding, ...]
    cost: TokenCost


def lint_tools(server: str, tools: Sequence[Json]) -> LintResult:
    """Lint the tool definitions of a server: schemas, names that models see, number of tools."""
    found: list[Finding] = []
    for tool in tools:
        name = str(tool.get("name", ""))
        found += _lint_schema(name, tool.get("inputSchema"))
        found += _lint_output(name, tool)
        found += _lint_name(server, name)
        found += _lint_invisible(name, tool)
    if len(tools) > MAX_OPENAI_TOOLS:
        message = f"{len(tools)} tools, but OpenAI accepts {MAX_OPENAI_TOOLS} in one request"
        hint = "let clients search (/mcp/search), or serve only the tools they need as a toolset: `toolway.toolsets`"
        found.append(Finding("warning", "", message, hint, providers=("openai",), code="E-LINT-MANY"))
    return LintResult(server, len(tools), tuple(found), TokenCost.of_server(server, tools))


def _lint_name(server: str, tool: str) -> Iterator[Finding]:
    full_name = f"{server}__{tool}"
    model_name = tool_names.make_model_name(server, tool)
    if model_name == full_name:
        return
    if len(full_name) > tool_names.MAX_MODEL_NAME:
        max_server_chars = tool_names.MAX_MODEL_NAME - len(tool) - 2
        length_text = f"{tool} has {len(full_name)} characters with the server's name"
        message = f"{length_text}, but models accept {tool_names.MAX_MODEL_NAME}: they see {model_name}"
        hint = (
            f"rename the server: at most {max_server_chars} characters"
            if max_server_chars > 0
            else "the tool's own name is too long"
        )
    else:
        message = f"the name {tool} has characters that models reject: they see {model_name}"
        hint = "report it to the server's author: only letters, digits, _ and - are safe"
    yield Finding("warning", tool, message, hint, code="E-LINT-NAME")


def _lint_invisible(tool: str, definition: Any, path: tuple[str, ...] = ()) -> Iterator[Finding]:
    """Yield a finding for each string with control, direction or invisible characters."""
    if isinstance(definition, str):
        described = describe_invisible(definition)
        if described:
            message = f"invisible or control characters: {described}"
            hint = "the model reads text that you cannot see: report it, or check the server before you use it"
            yield Finding("warning", tool, message, hint, ".".join(path), code="E-LINT-INVISIBLE")
    elif isinstance(definition, dict):
        for key, value in definition.items():
            yield from _lint_invisible(tool, str(key), (*path, remove_invisible(str(key))))
            yield from _lint_invisible(tool, value, (*path, remove_invisible(str(key))))
    elif isinstance(definition, list):
        for number, value in enumerate(definition):
            yield from _lint_invisible(tool, value, (*path, str(number)))


# -- rules of schemas --------------------------------------------------------------------------------------------------


#: (schema, is it the top level) → message, hint, rejecting providers.
SchemaRule = Callable[[Json, bool], Iterator[tuple[str, str, tuple[Provider, ...]]]]
COMBINATORS: Final = ("anyOf", "oneOf", "allOf", "not", "enum")
PROPERTY_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def check_top_level(schema: Json, top: bool) -> Iterator[tuple[str, str, tuple[Provider, ...]]]:
    if not top:
        return
    if schema.get("type") != "object":
        yield 'the schema has no "type": "object" at its top level', 'add "type": "object"', PROVIDERS
    for word in COMBINATORS:
        if word in schema:
            hint = f'use optional properties for the cases instead of "{word}", and check them in the tool'
            yield f'"{word}" at the top level of the schema', hint, ("openai", "anthropic")


def check_arrays(schema: Json, top: bool) -> Iterator[tuple[str, str, tuple[Provider, ...]]]:
    if (
        "array" in _type_names(schema)
        and not isinstance(schema.get("items"), dict | bool)
        and "prefixItems" not in schema
    ):
        yield 'an array without "items"', 'add "items": {"type": "string"}, or its item type', ("openai", "gemini")


def check_property_names(schema: Json, top: bool) -> Iterator[tuple[str, str, tuple[Provider, ...]]]:
    properties = schema.get("properties")
    for key in properties if isinstance(properties, dict) else ():
        if not PROPERTY_NAME.fullmatch(key):
            yield (
                f"the property {cut_text(key, 60)!r}",
                "rename it: 1 to 64 letters, digits, _, . and -",
                ("anthropic",),
            )


def check_enums(schema: Json, top: bool) -> Iterator[tuple[str, str, tuple[Provider, ...]]]:
    values = schema.get("enum")
    if isinstance(values, list) and not all(isinstance(value, str) for value in values):
        yield "an enum with non-string values", 'use strings, with "type": "string"', ("gemini",)


def check_references(schema: Json, top: bool) -> Iterator[tuple[str, str, tuple[Provider, ...]]]:
    reference = schema.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        yield f"a reference to another document ({cut_text(reference, 60)})", 'move the schema under "$defs"', PROVIDERS


SCHEMA_RULES: Final[tuple[SchemaRule, ...]] = (
    check_top_level,
    check_arrays,
    check_property_names,
    check_enums,
    check_references,
)


def _lint_schema(tool: str, schema: Any) -> Iterator[Finding]:
    if not isinstance(schema, dict):
        yield Finding("error", tool, "inputSchema is not an object", 'send {"type": "object", "properties": {}}')
        return
    invalid = schema_error(schema)
    if invalid:
        where, why = invalid
        yield Finding("error", tool, f"inputSchema is not valid JSON Schema: {why}", "fix the schema", where)
        return
    for path, node in subschemas(schema, (), 0):
        for rule in SCHEMA_RULES:
            for message, hint, providers in rule(node, not path):
                yield Finding("error", tool, message, hint, ".".join(path), providers)


def _lint_output(tool: str, definition: Json) -> Iterator[Finding]:
    if "outputSchema" not in definition:
        return
    schema = definition["outputSchema"]
    if not isinstance(schema, dict):
        yield Finding("error", tool, "outputSchema is not an object", "send a JSON Schema, or none", providers=())
    elif (invalid := schema_error(schema)) is not None:
        where, why = invalid
        message = f"outputSchema is not valid JSON Schema: {why}"
        yield Finding("error", tool, message, "fix the schema", where, providers=())
    elif schema.get("type") != "object":
        message = "clients before 2026-07-28 reject the whole list because this outputSchema is not of type object"
        hint = 'use the gateway, which wraps it for them, or return {"result": …} yourself'
        yield Finding("warning", tool, message, hint, providers=())


def schema_error(schema: Json) -> tuple[str, str] | None:
    """Return (path, reason) if a tool's input schema is not valid JSON Schema, else None."""
    found = find_schema_error(schema)
    return (found[0], cut_text(found[1], 120)) if found is not None else None


def subschemas(schema: Any, path: tuple[str, ...], depth: int) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Yield a JSON schema and all schemas nested in it, each with its path."""
    if not isinstance(schema, dict) or depth > MAX_SCHEMA_DEPTH:
        return
    yield path, schema
    for word in ("properties", "$defs", "definitions", "patternProperties"):
        inner = schema.get(word)
        for key, node in inner.items() if isinstance(inner, dict) else ():
            yield from subschemas(node, (*path, word, str(key)), depth + 1)
    for word in ("items", "additionalProperties", "not"):
        yield from subschemas(schema.get(word), (*path, word), depth + 1)
    for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        inner = schema.get(word)
        for number, node in enumerate(inner if isinstance(inner, list) else ()):
            yield from subschemas(node, (*path, word, str(number)), depth + 1)


def _type_names(schema: Json) -> tuple[Any, ...]:
    written = schema.get("type")
    return tuple(written) if isinstance(written, list) else (written,)
