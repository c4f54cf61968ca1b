"""Removes patterns from schemas that the linear-time engine cannot evaluate, such as look-aheads.

Without a pattern, a schema must accept more values, never fewer: no value that the server's schema accepts may be
rejected. Some keywords, such as `not`, turn this around. Where such a keyword may contain a dropped pattern, directly
or behind a reference, the keyword is dropped or replaced too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from toolway.types import Json

_DATA: Final = frozenset({"const", "enum", "default", "examples", "example"})  # their values are not schemas
_SCHEMAS_BY_NAME: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")  # they depend on what else matched


def find_patterns(schema: Any) -> set[str]:
    """Return all patterns in a schema."""
    found: set[str] = set()
    _visit(schema, found.add)
    return found


def drop_patterns(schema: Json, bad: set[str]) -> Json:
    """Return a copy of a schema without the `bad` patterns. It accepts the same values, or more."""
    return dict(_Dropper(bad).schema(schema))


def _visit(node: Any, on_pattern: Callable[[str], None], *, by_name: bool = False) -> None:
    if isinstance(node, list):
        for each in node:
            _visit(each, on_pattern)
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        if by_name:
            _visit(value, on_pattern)
        elif key == "pattern" and isinstance(value, str):
            on_pattern(value)
        elif key not in _DATA:
            if key == "patternProperties" and isinstance(value, dict):
                for pattern in value:
                    on_pattern(pattern)
            _visit(value, on_pattern, by_name=key in _SCHEMAS_BY_NAME)


class _Dropper:
    def __init__(self, bad: set[str]) -> None:
        self._bad = bad
        self._known: dict[int, bool] = {}  # answers of `_may_accept_more`, by the id of a part of the schema

    def schema(self, node: Any) -> Any:
        """Return a copy of a schema, or list of schemas, that accepts at least as much."""
        if isinstance(node, list):
            return [self.schema(each) for each in node]
        if not isinstance(node, dict):
            return node
        node = dict(node)
        if isinstance(node.get("pattern"), str) and node["pattern"] in self._bad:
            del node["pattern"]
        patterns = node.get("patternProperties")
        if isinstance(patterns, dict) and not self._bad.isdisjoint(patterns):
            node["patternProperties"] = {name: each for name, each in patterns.items() if name not in self._bad}
            node.pop("additionalProperties", None)  # it counts the properties that match no pattern
        for key in _UNEVALUATED:
            node.pop(key, None)
        if self._may_accept_more(node.get("not")):
            del node["not"]
        if self._may_accept_more(node.get("if")):
            for key in ("if", "then", "else"):
                node.pop(key, None)
        if self._may_accept_more(node.get("contains")):
            node.pop("maxContains", None)
        if self._may_accept_more(node.get("oneOf")):
            alternatives = node.pop("oneOf")  # several of them may match now: at least one must
            node["allOf"] = [*_as_list(node.get("allOf")), {"anyOf": alternatives}]
        return {
            key: value if key in _DATA else self._by_name(value) if key in _SCHEMAS_BY_NAME else self.schema(value)
            for key, value in node.items()
        }

    def _by_name(self, node: Any) -> Any:
        return {name: self.schema(each) for name, each in node.items()} if isinstance(node, Mapping) else node

    def _may_accept_more(self, node: Any) -> bool:
        """Return True if part of a schema has a bad pattern, or a reference that may lead to one."""
        if isinstance(node, list):
            return any(self._may_accept_more(each) for each in node)
        if not isinstance(node, dict):
            return False
        known = self._known.get(id(node))  # parts overlap: each is searched once
        if known is None:
            own = {each for each in (node.get("pattern"),) if isinstance(each, str)}
            has_own = "$ref" in node or not self._bad.isdisjoint(own | node.keys())
            known = self._known[id(node)] = has_own or any(self._may_accept_more(each) for each in node.values())
        return known


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
