"""`$ref`: from one place of a document to another. Other documents are never opened."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from toolway.model import Json

_MOST_HOPS: Final = 20


class Unresolved(Exception):
    """A reference that leads nowhere we go. The text says why, for a person."""


class Pointers:
    """The places of one document."""

    def __init__(self, root: Json) -> None:
        self.root = root
        self._known: dict[str, Any] = {}
        self.marked: dict[tuple[str, int], tuple[Json, set[str]]] = {}  # what `variants` found out about fields

    def find(self, reference: str) -> Any:
        """What stands where `reference` points. Raises `Unresolved`."""
        if reference not in self._known:
            self._known[reference] = self._walk(reference)
        return self._known[reference]

    def follow(self, node: Any) -> Any:
        """`node` itself, or what it refers to in the end. Raises `Unresolved`."""
        for _ in range(_MOST_HOPS):
            reference = node.get("$ref") if isinstance(node, dict) else None
            if not isinstance(reference, str):
                return node
            node = self.find(reference)
        raise Unresolved(f"{_shown(node)} refers to itself")

    def object(self, node: Any) -> Json:
        """What `node` is in the end, if that is a mapping. Raises `Unresolved`."""
        found = self.follow(node)
        if not isinstance(found, dict):
            raise Unresolved(f"{_shown(node)} is no mapping")
        return found

    def _walk(self, reference: str) -> Any:
        if not reference.startswith("#"):
            raise Unresolved(
                f"{reference[:120]} is in another document, which is never opened; bundle them into one"
                " (for example with `npx @redocly/cli bundle`)"
            )
        node: Any = self.root
        for part in (
            reference[1:].split("/")[1:] if reference.startswith("#/") else [reference[1:]] * (reference != "#")
        ):
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isdecimal() and int(name[:9]) < len(node):
                node = node[int(name[:9])]
            else:
                raise Unresolved(f"the document has no {reference[:120]}")
        return node


def _shown(node: Any) -> str:
    reference = node.get("$ref") if isinstance(node, dict) else None
    return str(reference)[:120] if reference else f"{node!r}"[:60]
