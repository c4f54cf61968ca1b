"""JSON with comments: the three moves on its text."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from toolway.config import jsonc
from toolway.config.editing.change import KeyPath, Move, unchangeable
from toolway.config.editing.json_tree import Node, find, tree
from toolway.config.editing.lines import indent_at, line_end, line_start, spaces_after, spaces_before, style_of

_BOM: Final = "\ufeff"
_COMMA = re.compile(r"\s*,")
_EMPTY = re.compile(r"[{\[]\s*[}\]]")


def parse(text: str, file: str = "") -> Any:
    """Raises `ConfigError`. An empty file is an empty object, as every client has it."""
    return jsonc.parse(text, file).value if text.removeprefix(_BOM).strip() else {}


def lines(text: str, root: KeyPath) -> dict[str | int, int]:
    """The line of each key or item below `root`."""
    text = text.removeprefix(_BOM)
    node = find(tree(text), root) if text.strip() else None
    if node is None:
        return {}
    starts: list[tuple[str | int, int]] = [(member.key, member.start) for member in node.members or []]
    starts += [(at, item.start) for at, item in enumerate(node.items or [])]
    return {key: text.count("\n", 0, start) + 1 for key, start in starts}


def move(text: str, move: Move) -> str:
    mark = _BOM if text.startswith(_BOM) else ""
    text = text.removeprefix(_BOM)
    return mark + _Moving(text if text.strip() else f"{text}{{}}\n").move(move)


class _Moving:
    """One text. `plain` is the same with blanks for comments, so that only what counts is seen in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.plain = jsonc.without_comments(text)
        self.comments = jsonc.comments(text)
        self.root = tree(text)
        self.style = style_of(text)

    def move(self, move: Move) -> str:
        if move.kind == "set":
            node = find(self.root, move.path)
            if node is None:
                raise unchangeable(move.path)
            one_line = node.members or node.items
            if one_line and "\n" not in self.text[node.start : node.end]:
                new = json.dumps(move.value, ensure_ascii=False)
            else:
                new = self._rendered(move.value, indent_at(self.text, node.start))
            return self._replaced(node.start, node.end, new)
        parent = find(self.root, move.path[:-1])
        if parent is None or (parent.members is None and parent.items is None):
            raise unchangeable(move.path)
        if move.kind == "add":
            return self._added(parent, move.path[-1], move.value)
        return self._dropped(parent, move.path[-1])

    # -- add -----------------------------------------------------------------------------------------------------------

    def _added(self, parent: Node, key: str | int, value: Any) -> str:
        name = f"{json.dumps(key, ensure_ascii=False)}: " if isinstance(key, str) else ""
        spans = _spans(parent)
        if not spans:
            return self._first(parent, name, value)
        start, end = spans[-1]
        comma = self._comma_after(end)
        if "\n" not in self.text[parent.start : start]:
            new = name + json.dumps(value, ensure_ascii=False)
            if comma is None:
                return self._replaced(end, end, f", {new}")
            return self._replaced(comma + 1, comma + 1, f" {new},")
        indent = self._indent_of_members(parent, start)
        new = f"{self.style.newline}{indent}{name}{self._rendered(value, indent)}"
        behind = self._behind(end if comma is None else comma + 1, parent.end - 1)
        if comma is None:
            return f"{self.text[:end]},{self.text[end:behind]}{new}{self.text[behind:]}"
        return self._replaced(behind, behind, f"{new},")

    def _first(self, parent: Node, name: str, value: Any) -> str:
        """Into an empty object or array, behind the comments that it may hold."""
        outer = indent_at(self.text, parent.start)
        indent, newline = outer + self.style.unit, self.style.newline
        held = self.text[parent.start + 1 : parent.end - 1].rstrip()
        new = f"{held}{newline}{indent}{name}{self._rendered(value, indent)}{newline}{outer}"
        return self._replaced(parent.start + 1, parent.end - 1, new)

    def _indent_of_members(self, parent: Node, start: int) -> str:
        if not self.text[line_start(self.text, start) : start].strip():
            return indent_at(self.text, start)
        return indent_at(self.text, parent.start) + self.style.unit

    def _behind(self, at: int, limit: int) -> int:
        """The end of the line of what ends at `at`, with the comment that stands behind it; never past `limit`."""
        end = min(line_end(self.text, at), limit)
        if self.plain[at:end].strip() or self._in_comment(end):
            return at  # something else stands on this line, or a comment that goes on
        return at + len(self.text[at:end].rstrip())

    # -- drop ----------------------------------------------------------------------------------------------------------

    def _dropped(self, parent: Node, key: str | int) -> str:
        """Without a member or an item, its comma, and the line that is empty then."""
        spans = _spans(parent)
        names: list[str | int] = [member.key for member in parent.members or []] or list(range(len(spans)))
        at = max(at for at, name in enumerate(names) if name == key)
        start, end = spans[at]
        comma = self._comma_after(end)
        start, stop = self._room(start, end if comma is None else comma + 1)
        # The last one takes along the comma before it.
        before = self._comma_after(spans[at - 1][1]) if comma is None and at > 0 else None
        if before is None or before >= start:
            text = self.text[:start] + self.text[stop:]
        else:
            text = self.text[:before] + self.text[before + 1 : start] + self.text[stop:]
        return _closed_up(text, parent.start) if len(spans) == 1 else text

    def _room(self, start: int, stop: int) -> tuple[int, int]:
        """What goes with a member: its lines with the comment behind it, if nothing else is on them; else spaces."""
        begin, end = line_start(self.text, start), line_end(self.text, stop)
        alone = not self.text[begin:start].strip()
        if alone and not self.plain[stop:end].strip() and not self._in_comment(end):
            return begin, min(end + 1, len(self.text))
        after = spaces_after(self.text, stop)
        if not alone and self.text[after : after + 1] in ("\n", "\r", "}", "]", "/", ""):
            return spaces_before(self.text, start), stop
        return start, after

    # -- text ----------------------------------------------------------------------------------------------------------

    def _in_comment(self, at: int) -> bool:
        return any(start < at < end for start, end in self.comments)

    def _comma_after(self, end: int) -> int | None:
        """Where the comma behind a value is, beyond spaces and comments."""
        found = _COMMA.match(self.plain, end)
        return None if found is None else found.end() - 1

    def _rendered(self, value: Any, indent: str) -> str:
        text = json.dumps(value, ensure_ascii=False, indent=self.style.unit)
        return text.replace("\n", f"{self.style.newline}{indent}")

    def _replaced(self, start: int, end: int, new: str) -> str:
        return self.text[:start] + new + self.text[end:]


def _spans(parent: Node) -> list[tuple[int, int]]:
    spans = [(member.start, member.value.end) for member in parent.members or []]
    return spans or [(item.start, item.end) for item in parent.items or []]


def _closed_up(text: str, start: int) -> str:
    """An object that has become empty is `{}`, if it holds no comment."""
    found = _EMPTY.match(text, start)
    return text if found is None else text[: start + 1] + text[found.end() - 1 :]
