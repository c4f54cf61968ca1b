"""JSON Schema, evaluated only where that is sure to be cheap.

A schema comes from a server, so it may be made to be slow: patterns that backtrack, references that double at every
level, recursion with branches. Patterns run on a linear-time engine. Before anything is compiled, its cost is counted
with all references followed; what is too dear, or recursive in more than one place, is not evaluated at all.
References to other documents are never followed.
"""

from __future__ import annotations

from typing import Any, Final

import jsonschema_rs

from toolway.model import Json

MAX_COST: Final = 20_000  # schema positions, references followed
MAX_WORK: Final = 1_000_000  # positions × values of one instance
_NOT_FOLLOWED: Final = ("$dynamicRef", "$recursiveRef", "$id", "id")  # they change what a reference means


class Schema:
    """A compiled schema, or one that is not evaluated (`skipped` says why)."""

    def __init__(self, schema: Json) -> None:
        self._validator: Any = None
        self.skipped = ""
        try:
            self._cost = cost(schema)
            self._validator = jsonschema_rs.validator_for(
                schema, retriever=_refuse, pattern_options=jsonschema_rs.RegexOptions()
            )
        except (ValueError, RecursionError) as exc:
            self.skipped = str(exc)[:200] or type(exc).__name__

    def problem(self, instance: Any) -> str | None:
        """Why `instance` does not fit, or None where it does or is not looked at."""
        if self._validator is None or _values(instance, MAX_WORK // self._cost) is None:
            return None
        error = next(iter(self._validator.iter_errors(instance)), None)
        return None if error is None else f"{error.message}"[:500]


def cost(schema: Json) -> int:
    """How many schema positions an evaluation may visit. Raises `ValueError` where that cannot be bounded."""
    return _Count(schema).of(schema)


class _Count:
    def __init__(self, root: Json) -> None:
        self._root = root
        self._known: dict[int, int] = {}
        self._open: set[int] = set()
        self._recursions = 0

    def of(self, node: Any) -> int:
        if isinstance(node, list):
            return self._total(node)
        if not isinstance(node, dict):
            return 0
        if id(node) in self._known:
            return self._known[id(node)]
        if id(node) in self._open:
            self._recursions += 1
            if self._recursions > 1:
                raise ValueError("the schema refers to itself in more than one place")
            return 1
        if any(isinstance(node.get(word), str) for word in _NOT_FOLLOWED):
            raise ValueError("the schema changes what its references mean")
        self._open.add(id(node))
        total = 1 + self._total(list(node.values()))
        if isinstance(node.get("$ref"), str):
            total += self.of(self._target(node["$ref"]))
        self._open.discard(id(node))
        if total > MAX_COST:
            raise ValueError("the schema is too large with its references followed")
        self._known[id(node)] = total
        return total

    def _total(self, nodes: list[Any]) -> int:
        return sum(self.of(node) for node in nodes)

    def _target(self, reference: str) -> Any:
        if not reference.startswith("#"):
            raise ValueError("the schema refers to another document")
        node: Any = self._root
        for part in reference[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
                node = node[int(name)]
            else:
                raise ValueError(f"the schema has no {reference[:80]}")
        return node


def _values(instance: Any, most: int) -> int | None:
    """How many values `instance` has; None where they are more than `most`."""
    count, line = 0, [instance]
    while line:
        node = line.pop()
        count += 1
        if count + len(line) > most:
            return None
        if isinstance(node, dict):
            line.extend(node.values())
        elif isinstance(node, list):
            line.extend(node)
    return count


def _refuse(uri: str) -> Any:
    raise ValueError(f"references to other documents are not followed: {uri[:80]}")
