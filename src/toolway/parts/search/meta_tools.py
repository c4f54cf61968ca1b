"""The meta-tools of endpoints with tool search: their definitions, and the messages they answer with.

An endpoint with search lists these four tools instead of all of its servers' tools. Their definitions never change, so
a model provider can cache them. Nothing here does I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from toolway.types import Effect, Json

SEARCH_TOOL: Final = "search_tools"
DESCRIBE_TOOL: Final = "describe_tool"
READ_TOOL: Final = "read_tool"
CALL_TOOL: Final = "call_tool"
MAX_RESULTS: Final = 20  # tools in one answer
MAX_DESCRIPTION_CHARS: Final = 160  # of the first sentence of a description
MAX_LISTED_ARGUMENTS: Final = 12  # in one line; `describe_tool` returns the rest
MAX_NAMED_SERVERS: Final = 20  # in one note
_MAX_CHOICES_CHARS: Final = 40  # of an enumeration's values
_SENTENCE_END: Final = re.compile(r"(?<=[.!?。])(?:\s|$)|\n\s*\n")
_SPACES: Final = re.compile(r"\s+")
_TEXT_OR_LIST: Final[Json] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_CALL_SCHEMA: Final[Json] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
    "required": ["name"],
}

#: Definitions, in the order they are listed.
_DEFINITIONS: Final[tuple[Json, ...]] = (
    {
        "name": SEARCH_TOOL,
        "description": "Find tools by what they do. Answers with names, arguments (? = optional) and effects.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": {**_TEXT_OR_LIST, "description": "The task in a few words; a list for several steps"},
                "server": {"type": "string"},
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_RESULTS},
            },
            "required": ["query"],
        },
        "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    },
    {
        "name": DESCRIBE_TOOL,
        "description": "Full definition of a tool, or of several.",
        "inputSchema": {"type": "object", "properties": {"name": _TEXT_OR_LIST}, "required": ["name"]},
        "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    },
    {
        "name": READ_TOOL,
        "description": "Call a read-only tool you found. Other tools are rejected.",
        "inputSchema": _CALL_SCHEMA,
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": CALL_TOOL,
        "description": "Call a tool you found. If the arguments are wrong, you get its schema back.",
        "inputSchema": _CALL_SCHEMA,
        "annotations": {"destructiveHint": True},
    },
)
META_TOOLS: Final[Mapping[str, Json]] = {each["name"]: each for each in _DEFINITIONS}


class FoundTool(msgspec.Struct, frozen=True):
    """One result of a tool search, as a client of the gateway sees it."""

    name: str  # that the client calls
    server: str
    arguments: tuple[tuple[str, str], ...]  # name, with `?` if optional, and type
    effect: str  # reads or changes
    description: str  # its first sentence
    is_down: bool = False  # the server cannot be called now

    @property
    def line(self) -> str:
        """Return the result as one line: name, typed arguments, effect, and first sentence."""
        shown = [f"{name}: {type_}" for name, type_ in self.arguments[:MAX_LISTED_ARGUMENTS]]
        if len(self.arguments) > MAX_LISTED_ARGUMENTS:
            shown.append(f"… {len(self.arguments) - MAX_LISTED_ARGUMENTS} more")
        down = ", its server is down" if self.is_down else ""
        return f"{self.name}({', '.join(shown)}) {self.effect}{down}" + (
            f": {self.description}" if self.description else ""
        )

    def to_json(self) -> Json:
        found: Json = {
            "name": self.name,
            "arguments": dict(self.arguments),
            "effect": self.effect,
            "description": self.description,
        }
        return {**found, "down": True} if self.is_down else found


class Coverage(msgspec.Struct, frozen=True):
    """What a tool search covered: how many tools and servers, and which ones it could not cover."""

    tools: int
    servers: Sequence[str]
    down: Sequence[str] = ()  # servers that cannot be called now
    unlisted: Sequence[str] = ()  # servers that have not listed their tools yet
    held: Sequence[str] = ()  # servers that need an administrator's review; their tools are not known
    held_tools: int = 0  # tools whose changed definitions wait for it; they are not found

    def notes(self) -> list[str]:
        """Return one sentence for each reason why the search result may lack tools."""
        found = []
        if self.down:
            found.append(f"{_count(len(self.down), 'server')} down: {_names(self.down)}.")
        if self.unlisted:
            found.append(f"{_count(len(self.unlisted), 'server')} not listed yet: {_names(self.unlisted)}.")
        if self.held:
            count = _count(len(self.held), "server")
            found.append(f"{count} waiting for an administrator's review: {_names(self.held)}.")
        if self.held_tools:
            found.append(f"{_count(self.held_tools, 'tool')} waiting for an administrator's review.")
        return found


def search_result(found: Sequence[FoundTool], *, fits: bool, coverage: Coverage, notes: Iterable[str] = ()) -> Json:
    """Return the result of `search_tools`: a line for each tool found, then counts, and why tools may be missing."""
    all_notes = [*coverage.notes(), *notes]
    total = f"{_count(coverage.tools, 'tool')} of {_count(len(coverage.servers), 'server')}"
    lines = [each.line for each in found]
    if not fits and found:
        lines = ["Nothing fits well. The nearest:", *lines]
    elif not found:
        lines = ["No tool was found."]
    if not fits or not found:
        lines.append(f"Servers: {_names(coverage.servers, limit=None) or 'none'}.")
    lines.append(" ".join([f"{len(found)} of {total}.", *all_notes]))
    structured: Json = {
        "tools": [each.to_json() for each in found],
        "totalTools": coverage.tools,
        "totalServers": len(coverage.servers),
        "fits": fits and bool(found),
    }
    if all_notes:
        structured["notes"] = all_notes
    if not fits or not found:
        structured["servers"] = list(coverage.servers)
    return {**text_result("\n".join(lines)), "structuredContent": structured}


def text_result(text: str, *, is_error: bool = False) -> Json:
    """Return a tool result whose content is one text block."""
    result: Json = {"content": [{"type": "text", "text": text}]}
    return {**result, "isError": True} if is_error else result


def search_instructions(servers: Sequence[str]) -> str:
    """Return the instructions for clients of an endpoint with tool search: how to find tools, and all server names.

    The definitions of the meta-tools do not list the servers.
    """
    return (
        f"Many tools are not listed. Find them with {SEARCH_TOOL}; call them with {READ_TOOL} if they only read,"
        f" else with {CALL_TOOL}. Servers: {_names(servers, limit=None) or 'none'}."
    )


def effect_word(effect: Effect) -> str:
    return "reads" if effect is Effect.READ else "changes"


# -- compact forms of a definition -------------------------------------------------------------------------------------


def typed_arguments(schema: Json) -> tuple[tuple[str, str], ...]:
    """Return an input schema's arguments with their types, required ones first."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return ()
    needed = {each for each in required if isinstance(each, str)} if isinstance(required, list) else set()
    named = [(_one_line(str(name), 64), value) for name, value in properties.items()]
    first = [(name, short_type(value)) for name, value in named if name in needed]
    return (*first, *((f"{name}?", short_type(value)) for name, value in named if name not in needed))


def short_type(schema: Any) -> str:
    """Return a short name for a value's type: `string`, `integer[]`, `"a"|"b"`, or `any`."""
    if not isinstance(schema, dict):
        return "any"
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        text = "|".join(_choice(each) for each in choices[:8])
        if len(text) <= _MAX_CHOICES_CHARS:
            return text if len(choices) <= 8 else f"{text}|…"
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), None)
    if kind == "array":
        return f"{short_type(schema.get('items'))}[]"
    if isinstance(kind, str):
        return _one_line(kind, 20)
    for keyword in ("anyOf", "oneOf"):
        options = schema.get(keyword)
        if isinstance(options, list):
            names = list(
                dict.fromkeys(
                    short_type(each)
                    for each in options[:8]
                    if not (isinstance(each, dict) and each.get("type") == "null")
                )
            )
            return "|".join(names[:3]) if names and len("|".join(names[:3])) <= _MAX_CHOICES_CHARS else "any"
    return "object" if "properties" in schema else "any"


def first_sentence(text: str) -> str:
    """Return the first sentence of a description on one line, shortened to 160 characters."""
    return _one_line(_SENTENCE_END.split(text.strip(), maxsplit=1)[0], MAX_DESCRIPTION_CHARS)


def _choice(value: Any) -> str:
    return f'"{_one_line(value, 40)}"' if isinstance(value, str) else _one_line(str(value), 40)


def _one_line(text: str, limit: int) -> str:
    text = _SPACES.sub(" ", text[: limit * 8]).strip()
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _names(names: Sequence[str], limit: int | None = MAX_NAMED_SERVERS) -> str:
    shown = names if limit is None else names[:limit]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")
