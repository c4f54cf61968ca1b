"""What is wrong with the schema of a tool, by its shape alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

MAX_SCHEMA_DEPTH: Final = 32
MAX_SUBSCHEMAS: Final = 2000

_NAMED: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_VALUES: Final = frozenset({"default", "const", "enum", "examples"})


def schema_problem(schema: Any) -> str | None:
    """Depth, size and references of a schema, without evaluating anything. What stands in a value (`default`, `enum`)
    looks like a reference at the most; a property of that name is a schema."""
    level: list[Any] = [schema]
    named: list[Any] = []  # tables of schemas by name
    data: list[Any] = []  # values
    count = 0
    for _ in range(MAX_SCHEMA_DEPTH * 2):  # a schema level is a keyword and a name
        level, named, data = _nodes(level), _nodes(named), _nodes(data)
        every = [*level, *named, *data]
        if not every:
            return None
        count += sum(len(node) for node in every)
        if count > MAX_SUBSCHEMAS * 8:
            return "its schema is too large"
        if any(_refers_elsewhere(node) for node in (*level, *named)):
            return "its schema refers to another document"
        below: tuple[list[Any], list[Any], list[Any]] = ([*_values(named)], [], [*_values(data)])
        for node in level:
            for key, value in node.items() if isinstance(node, dict) else (("", each) for each in node):
                below[1 if key in _NAMED else 2 if key in _VALUES else 0].append(value)
        level, named, data = below
    return f"its schema is deeper than {MAX_SCHEMA_DEPTH}"


def _nodes(some: list[Any]) -> list[Any]:
    return [node for node in some if isinstance(node, dict | list)]


def _values(nodes: list[Any]) -> Iterator[Any]:
    for node in nodes:
        yield from node.values() if isinstance(node, dict) else node


def _refers_elsewhere(node: Any) -> bool:
    ref = node.get("$ref") if isinstance(node, dict) else None
    return isinstance(ref, str) and not ref.startswith("#")
