"""Generator of a typed Python client for the tools of one server, from their JSON schemas. It does no I/O.

Each tool becomes a method whose parameters have the types of its `inputSchema`. Object schemas become `TypedDict`s.
What a type of Python cannot express (patterns, limits, conditions) is left to the check of arguments before a call.
"""

from __future__ import annotations

import json
import keyword
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

_WORD: Final = re.compile(r"[^0-9a-zA-Z]+")
_SCALARS: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_MAX_DEPTH: Final = 12  # of nested types; deeper ones are `Any`
_LINE: Final = 110
_IMPORTED: Final = (
    "Any",
    "Literal",
    "NotRequired",
    "TypedDict",
    "Hub",
    "ToolResult",
)  # names that classes must not have
_RESERVED: Final = frozenset({"self", "timeout", "idempotency_key"})  # parameters of every method


def client_source(server: str, tools: Sequence[Mapping[str, Any]], version: str) -> str:
    """Return the source of a Python module with a class for the server and a method for each tool."""
    class_name = f"{pascal_case(server)}Client"
    types = _Types({class_name, *_IMPORTED})
    names = _unique_names([str(tool["name"]) for tool in tools], reserved={"hub"})
    methods = [_method(server, tool, name, types) for tool, name in zip(tools, names, strict=True)]
    used = " ".join([*types.definitions, *methods])
    imported = ", ".join(name for name in _IMPORTED[:4] if re.search(rf"\b{name}\b", f"Any {used}"))
    head = f'''"""Typed client for the tools of the server {_plain(server)}.

Written by `toolway tools codegen` {version}; do not edit.
"""
# fmt: off
# ruff: noqa

from __future__ import annotations

from typing import {imported}

from toolway import Hub, ToolResult

__all__ = ["{class_name}"]
'''
    body = f'''class {class_name}:
    """Tools of the server {_plain(server)}, called through a hub.

    Example:
        async with Hub("mcp.json") as hub:
            result = await {class_name}(hub).{names[0] if names else "tool"}(...)
    """

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
'''
    return "\n\n".join([head, *types.definitions, body]) + "".join(f"\n{method}" for method in methods)


def pascal_case(name: str) -> str:
    """Convert a name to the form of a class name: `search_issues` gives SearchIssues."""
    words = "".join(word[:1].upper() + word[1:] for word in _WORD.split(name) if word)
    return words if words and not words[0].isdigit() else f"T{words}"


def snake_case(name: str) -> str:
    """Convert a name to the form of a function or parameter: `searchIssues` and `search-issues` give search_issues."""
    spread = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    word = _WORD.sub("_", spread).strip("_").lower() or "value"
    word = f"_{word}" if word[0].isdigit() else word
    return f"{word}_" if keyword.iskeyword(word) else word


def _unique_names(names: Sequence[str], reserved: set[str]) -> list[str]:
    taken = set(reserved)
    found = []
    for name in names:
        word = base = snake_case(name)
        number = 2
        while word in taken:
            word, number = f"{base}_{number}", number + 1
        taken.add(word)
        found.append(word)
    return found


def _method(server: str, tool: Mapping[str, Any], name: str, types: _Types) -> str:
    schema = tool.get("inputSchema")
    schema = schema if isinstance(schema, Mapping) else {}
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = [each for each in schema.get("required") or [] if each in properties]
    ordered = [*required, *(each for each in properties if each not in required)]
    parameters = _unique_names(ordered, reserved=set(_RESERVED))
    base = pascal_case(str(tool["name"]))
    lines = []
    for given, parameter in zip(ordered, parameters, strict=True):
        kind = types.annotation(properties[given], f"{base}{pascal_case(given)}", schema)
        lines.append(f"{parameter}: {kind}" if given in required else f"{parameter}: {_optional(kind)} = None")
    signature = ["self", "*", *lines, "timeout: float | None = None"]
    signature.append("idempotency_key: str | None = None")
    must = ", ".join(
        f"{_text(given)}: {parameter}"
        for given, parameter in zip(ordered, parameters, strict=True)
        if given in required
    )
    may = ", ".join(
        f"{_text(given)}: {parameter}"
        for given, parameter in zip(ordered, parameters, strict=True)
        if given not in required
    )
    text = _docstring(str(tool.get("description") or tool.get("title") or f"Call {tool['name']}."))
    code = [f"async def {name}(", *(f"    {part}," for part in signature), ") -> ToolResult:"]
    code += [f"    {line}".rstrip() for line in text]
    code.append(f"    arguments: dict[str, Any] = {{{must}}}")
    if may:
        code.append(f"    optional: dict[str, Any] = {{{may}}}")
        code.append("    arguments |= {name: value for name, value in optional.items() if value is not None}")
    qualified = f"{server}.{tool['name']}"
    code.append("    return await self.hub.call_tool(")
    code.append(f"        {_text(qualified)}, arguments, timeout=timeout, idempotency_key=idempotency_key")
    code.append("    )")
    return textwrap.indent("\n".join(code) + "\n", "    ", lambda line: bool(line.strip()))


def _optional(kind: str) -> str:
    return kind if kind == "Any" or kind.endswith("| None") else f"{kind} | None"


def _docstring(text: str) -> list[str]:
    clean = _plain(text).strip() or "Call the tool."
    paragraphs = [textwrap.wrap(part, _LINE) or [""] for part in clean.splitlines()]
    lines = [line for part in paragraphs for line in part]
    if len(lines) == 1:
        return [f'"""{lines[0]}"""']
    return [f'"""{lines[0]}', *lines[1:], '"""']


def _text(value: str) -> str:
    """Return text as a Python string literal.

    JSON's escapes are valid in Python if other characters stay as they are.
    """
    return json.dumps(value, ensure_ascii=False)


def _plain(text: str) -> str:
    """Return text from a server without characters that could end a docstring or begin an escape."""
    printable = "".join(each if each.isprintable() or each == "\n" else " " for each in text)
    return printable.replace("\\", "/").replace('"', "'")


class _Types:
    """Converter of JSON schemas to Python annotations. It collects the `TypedDict` definitions that they need."""

    def __init__(self, taken: set[str]) -> None:
        self.definitions: list[str] = []
        self._names = set(taken)

    def annotation(self, schema: Any, name: str, root: Mapping[str, Any], depth: int = 0) -> str:
        """Return the Python annotation for a JSON schema.

        `name` is the name of the class if the schema is an object.
        """
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return "Any"
        if isinstance(schema.get("$ref"), str):
            return self._reference(schema["$ref"], name, root, depth)
        if "const" in schema:
            return _literal([schema["const"]])
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return _literal(schema["enum"])
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list) and schema[key]:
                return _union([self.annotation(each, name, root, depth + 1) for each in schema[key]])
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return _union([self.annotation({**schema, "type": kind}, name, root, depth + 1) for kind in kinds])
        if kinds == "array":
            return f"list[{self.annotation(schema.get('items'), name, root, depth + 1)}]"
        if kinds == "object":
            return self._object(schema, name, root, depth)
        return _SCALARS.get(kinds, "Any") if isinstance(kinds, str) else "Any"

    def _object(self, schema: Mapping[str, Any], name: str, root: Mapping[str, Any], depth: int) -> str:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            extra = schema.get("additionalProperties")
            value = self.annotation(extra, f"{name}Value", root, depth + 1) if isinstance(extra, Mapping) else "Any"
            return f"dict[str, {value}]"
        required = schema.get("required") or []
        own = self._unused(name)
        fields = []
        for field, part in properties.items():
            kind = self.annotation(part, f"{own}{pascal_case(field)}", root, depth + 1)
            fields.append((field, kind if field in required else f"NotRequired[{kind}]"))
        listed = "".join(f"        {_text(field)}: {kind},\n" for field, kind in fields)
        # The functional form accepts every name, for example one with a dash. Quotes: a type may follow later.
        quoted = re.sub(r": (.*),$", lambda found: f": {_quoted(found[1])},", listed, flags=re.MULTILINE)
        self.definitions.append(f'{own} = TypedDict(\n    "{own}",\n    {{\n{quoted}    }},\n)\n')
        return own

    def _unused(self, name: str) -> str:
        number, found = 2, name
        while found in self._names:
            found, number = f"{name}{number}", number + 1
        self._names.add(found)
        return found

    def _reference(self, reference: str, name: str, root: Mapping[str, Any], depth: int) -> str:
        """Return the annotation for a `$ref` into the same document; `Any` for every other reference."""
        if not reference.startswith("#/"):
            return "Any"
        part: Any = root
        for step in reference[2:].split("/"):
            part = part.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(part, Mapping) else None
        return self.annotation(part, name, root, depth + 3)  # a type that contains itself ends in `Any`


def _quoted(kind: str) -> str:
    return json.dumps(kind) if '"' not in kind else f"'{kind}'" if "'" not in kind else "Any"


def _literal(values: Sequence[Any]) -> str:
    usable = [each for each in values if each is None or isinstance(each, bool | int | str)]
    if len(usable) != len(values):
        return "Any"
    return f"Literal[{', '.join(repr(each) if not isinstance(each, str) else _text(each) for each in usable)}]"


def _union(kinds: Sequence[str]) -> str:
    unique = list(dict.fromkeys(kinds))
    if "Any" in unique:
        return "Any"
    return " | ".join(sorted(unique, key=lambda each: each == "None"))
