"""Where everything stands in a text of TOML: its statements in their order, and what is inside of inline values.

The text is valid: `tomllib` has read it before. A library that keeps comments would move those between two tables along
with the table before them; here nothing moves that is not named.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from typing import Final, Literal

from toolway.config.editing.change import KeyPath

_STRING: Final = (
    r'"""(?:[^"\\]|\\(?s:.)|"{1,2}(?!"))*+"{3,5}'
    r"|'''(?:[^']|'{1,2}(?!'))*+'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*+"'
    r"|'[^'\n]*+'"
)
_BLANK = re.compile(r"(?:\s|#[^\n]*)*+")
_SPACE = re.compile(r"[ \t]*+")
_KEY_PART = re.compile(rf"(?:{_STRING}|[A-Za-z0-9_-]++)")
_DOT = re.compile(r"[ \t]*\.[ \t]*")
_SCALAR = re.compile(rf"{_STRING}|[^\s,\]}}#]++(?: \d\d:\d\d[^\s,\]}}#]*+)?")


@dataclass(slots=True)
class Node:
    """A value of a pair, or inside of one."""

    start: int
    end: int = 0
    members: list[Member] | None = None  # of an inline table
    items: list[Node] | None = None  # of an array


@dataclass(slots=True)
class Member:
    key: tuple[str, ...]
    start: int
    value: Node


@dataclass(slots=True)
class Statement:
    """`[table]`, `[[array]]` or `key = value`; `path` is where it leads from the top of the document."""

    kind: Literal["table", "array", "pair"]
    path: KeyPath
    start: int
    end: int  # without the comment behind it
    section: int  # the number of its header among the statements; -1 before the first
    value: Node | None = None


@dataclass(slots=True)
class _Scanner:
    text: str
    at: int = 0
    arrays: dict[KeyPath, int] = field(default_factory=dict)  # how many tables an array has so far

    def statements(self) -> list[Statement]:
        found: list[Statement] = []
        prefix: KeyPath = ()
        section = -1
        while self._skip(_BLANK) < len(self.text):
            start = self.at
            if self.text.startswith("[", start):
                kind: Literal["table", "array"] = "array" if self.text.startswith("[[", start) else "table"
                width = 2 if kind == "array" else 1
                self.at += width
                prefix = self._header(self._key(), kind)
                self._skip(_SPACE)
                self.at += width
                section = len(found)
                found.append(Statement(kind, prefix, start, self.at, section))
            else:
                path = (*prefix, *self._key())
                value = self._after_equals()
                found.append(Statement("pair", path, start, self.at, section, value))
        return found

    def _header(self, key: tuple[str, ...], kind: str) -> KeyPath:
        path: KeyPath = ()
        for part in key[:-1]:
            path = (*path, part)
            if path in self.arrays:
                path = (*path, self.arrays[path] - 1)
        path = (*path, key[-1])
        if kind == "array":
            self.arrays[path] = self.arrays.get(path, 0) + 1
            path = (*path, self.arrays[path] - 1)
        return path

    def _key(self) -> tuple[str, ...]:
        parts = []
        self._skip(_SPACE)
        while True:
            part = self._match(_KEY_PART)
            parts.append(tomllib.loads(f"x={part}")["x"] if part[0] in "\"'" else part)
            if not _DOT.match(self.text, self.at):
                return tuple(parts)
            self._skip(_DOT)

    def _after_equals(self) -> Node:
        self._skip(_SPACE)
        self.at += 1
        self._skip(_SPACE)
        return self._value()

    def _value(self) -> Node:
        node = Node(self.at)
        opened = self.text[self.at]
        if opened == "[":
            node.items = []
        elif opened == "{":
            node.members = []
        else:
            self._match(_SCALAR)
            node.end = self.at
            return node
        self.at += 1
        while self.text[self._skip(_BLANK)] not in "]}":
            if self.text[self.at] == ",":
                self.at += 1
            elif node.items is not None:
                node.items.append(self._value())
            elif node.members is not None:
                start = self.at
                node.members.append(Member(self._key(), start, self._after_equals()))
        self.at += 1
        node.end = self.at
        return node

    def _skip(self, pattern: re.Pattern[str]) -> int:
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return self.at

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise ValueError(f"not understood at {self.at}")
        self.at = found.end()
        return found[0]


def statements(text: str) -> list[Statement]:
    return _Scanner(text).statements()


def inside(node: Node, path: KeyPath) -> Node | None:
    """The value at a path inside of an inline value."""
    if not path:
        return node
    if node.items is not None and isinstance(path[0], int):
        return inside(node.items[path[0]], path[1:]) if path[0] < len(node.items) else None
    for member in node.members or []:
        if member.key == path[: len(member.key)]:
            found = inside(member.value, path[len(member.key) :])
            if found is not None:
                return found
    return None
