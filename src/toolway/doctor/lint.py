"""What model providers would refuse of a server's tools, and what the tools cost. No I/O, no server, no model.

A rule is a function of one place in a schema. Only what a provider answers with an error is told: one such tool makes
the whole request fail, with all the others in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from toolway.doctor.tokens import Cost, cost_of
from toolway.model import Json
from toolway.protocol import names
from toolway.protocol.schemas import cost

Provider = Literal["openai", "anthropic", "gemini"]
PROVIDERS: Final[tuple[Provider, ...]] = ("openai", "anthropic", "gemini")
LONGEST: Final[Mapping[Provider, int]] = {"openai": 64, "anthropic": 128, "gemini": 64}
MOST_TOOLS: Final = 128  # that OpenAI takes in one request
MAX_DEPTH: Final = 32  # a schema that is deeper was set aside with its tool


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about one tool, or about all of a server (`tool` is empty)."""

    severity: Literal["error", "warning"]
    tool: str
    what: str
    fix: str
    where: str = ""  # the place in the schema, as a path: `properties.tags`
    providers: tuple[Provider, ...] = PROVIDERS  # who refuses it
    code: str = "E-LINT-SCHEMA"


@dataclass(frozen=True, slots=True)
class Lint:
    """All findings about the tools of one server, and what the tools cost with each provider."""

    server: str
    tools: int
    findings: tuple[Finding, ...]
    cost: Cost


def lint(server: str, tools: Sequence[Json]) -> Lint:
    """Look at tools as a server sent them, under the names that models will see."""
    found: list[Finding] = []
    for tool in tools:
        name = str(tool.get("name", ""))
        found += _of_schema(name, tool.get("inputSchema"))
        found += _of_name(server, name)
    if len(tools) > MOST_TOOLS:
        what = f"{len(tools)} tools, and OpenAI takes {MOST_TOOLS} in one request"
        fix = "serve a group of the tools that are needed: `toolway.groups` in the file of servers"
        found.append(Finding("warning", "", what, fix, providers=("openai",), code="E-LINT-MANY"))
    return Lint(server, len(tools), tuple(found), cost_of(tools))


# -- names ------------------------------------------------------------------------------------------------------------


def _of_name(server: str, tool: str) -> Iterator[Finding]:
    plain = f"{server}__{tool}"
    shown = names.for_models_of(server, tool)
    if shown == plain:
        return
    if len(plain) > names.MODEL_LIMIT:
        room = names.MODEL_LIMIT - len(tool) - 2
        long = f"{tool} has {len(plain)} characters with the server's name"
        what = f"{long}, and models take {names.MODEL_LIMIT}: they see {shown}"
        fix = f"give the server a name of at most {room} characters" if room > 0 else "the tool's own name is too long"
    else:
        what = f"the name {tool} has characters that models refuse: they see {shown}"
        fix = "report it to the server's maker: only letters, digits, _ and - are safe"
    yield Finding("warning", tool, what, fix, code="E-LINT-NAME")


# -- schemas ----------------------------------------------------------------------------------------------------------

Rule = Callable[[Json, bool], Iterator[tuple[str, str, tuple[Provider, ...]]]]  # (schema, at the top) → what, fix, who

_COMBINED: Final = ("anyOf", "oneOf", "allOf", "not", "enum")
_PROPERTY: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_GEMINI_FORMATS: Final = frozenset({"enum", "date-time"})


def _top(schema: Json, top: bool) -> Iterator[tuple[str, str, tuple[Provider, ...]]]:
    if not top:
        return
    if schema.get("type") != "object":
        yield 'the schema has no "type": "object" at its top', 'add "type": "object"', PROVIDERS
    for word in _COMBINED:
        if word in schema:
            fix = f'write its cases as optional properties instead of "{word}", and check them in the tool'
            yield f'"{word}" at the top of the schema', fix, ("openai", "anthropic")


def _arrays(schema: Json, top: bool) -> Iterator[tuple[str, str, tuple[Provider, ...]]]:
    if "array" in _types(schema) and not isinstance(schema.get("items"), dict | bool) and "prefixItems" not in schema:
        yield 'an array without "items"', 'add "items": {"type": "string"}, or what it holds', ("openai", "gemini")


def _keys(schema: Json, top: bool) -> Iterator[tuple[str, str, tuple[Provider, ...]]]:
    properties = schema.get("properties")
    for key in properties if isinstance(properties, dict) else ():
        if not _PROPERTY.fullmatch(key):
            yield f"the property {key[:60]!r}", "call it by 1 to 64 letters, digits, _, . and -", ("anthropic",)


def _enums(schema: Json, top: bool) -> Iterator[tuple[str, str, tuple[Provider, ...]]]:
    values = schema.get("enum")
    if isinstance(values, list) and not all(isinstance(value, str) for value in values):
        yield "an enum of values that are no texts", 'write them as texts, with "type": "string"', ("gemini",)


def _references(schema: Json, top: bool) -> Iterator[tuple[str, str, tuple[Provider, ...]]]:
    reference = schema.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        yield f"a reference to another document ({reference[:60]})", 'put the schema under "$defs"', PROVIDERS


_RULES: Final[tuple[Rule, ...]] = (_top, _arrays, _keys, _enums, _references)


def _of_schema(tool: str, schema: Any) -> Iterator[Finding]:
    if not isinstance(schema, dict):
        yield Finding("error", tool, "inputSchema is not an object", 'send {"type": "object", "properties": {}}')
        return
    invalid = _invalid(schema)
    if invalid:
        where, why = invalid
        yield Finding("error", tool, f"inputSchema is not valid JSON Schema: {why}", "correct the schema", where)
        return
    for path, node in _nodes(schema, (), 0):
        for rule in _RULES:
            for what, fix, providers in rule(node, not path):
                yield Finding("error", tool, what, fix, ".".join(path), providers)


def _invalid(schema: Json) -> tuple[str, str] | None:
    """Where and why a schema breaks the rules of JSON Schema."""
    import jsonschema_rs

    try:
        cost(schema)  # what is too dear is not looked at: it was set aside with its tool
    except ValueError:
        return None
    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as exc:
        return ".".join(str(part) for part in exc.instance_path), exc.message[:120]
    except ValueError as exc:  # a dialect that nobody knows
        return "$schema", str(exc)[:120]
    return None


def _nodes(schema: Any, path: tuple[str, ...], depth: int) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Every schema inside a schema, with its path."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return
    yield path, schema
    for word in ("properties", "$defs", "definitions", "patternProperties"):
        inner = schema.get(word)
        for key, node in inner.items() if isinstance(inner, dict) else ():
            yield from _nodes(node, (*path, word, str(key)), depth + 1)
    for word in ("items", "additionalProperties", "not"):
        yield from _nodes(schema.get(word), (*path, word), depth + 1)
    for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        inner = schema.get(word)
        for number, node in enumerate(inner if isinstance(inner, list) else ()):
            yield from _nodes(node, (*path, word, str(number)), depth + 1)


def _types(schema: Json) -> tuple[Any, ...]:
    written = schema.get("type")
    return tuple(written) if isinstance(written, list) else (written,)
