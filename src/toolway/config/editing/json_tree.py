"""Where everything stands in a text of JSON. Comments are blanked out in place, so that offsets are the text's."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from toolway.config import jsonc
from toolway.config.editing.change import KeyPath

_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|[{}\[\]:,]|[^\s{}\[\]:,"]++')


@dataclass(slots=True)
class Node:
    """A value: where it begins and ends, and what is in it."""

    start: int
    end: int = 0
    members: list[Member] | None = None  # of an object
    items: list[Node] | None = None  # of an array

    def child(self, key: str | int) -> Node | None:
        if isinstance(key, int):
            return self.items[key] if self.items is not None and key < len(self.items) else None
        # Where a key stands twice, the last one counts.
        return next((member.value for member in reversed(self.members or []) if member.key == key), None)


@dataclass(slots=True)
class Member:
    key: str
    start: int
    value: Node


@dataclass(slots=True)
class _Open:
    """An object or array that is not closed yet."""

    node: Node
    key: str | None = None
    key_start: int = 0
    colon: bool = field(default=False)


def tree(text: str) -> Node:
    """The tree of a valid text. It is built without recursion: files may be deep."""
    open_: list[_Open] = []
    root = Node(0)
    for found in _TOKEN.finditer(jsonc.blanked(text)):
        token, start, end = found[0], found.start(), found.end()
        if token in "}]":
            done = open_.pop()
            done.node.end = end
        elif token == ",":
            continue
        elif token == ":":
            open_[-1].colon = True
        elif open_ and open_[-1].node.members is not None and not open_[-1].colon:
            open_[-1].key, open_[-1].key_start = json.loads(token), start
        else:
            node = Node(start, end)
            if token == "{":
                node.members = []
            elif token == "[":
                node.items = []
            if open_:
                _put(open_[-1], node)
            else:
                root = node
            if token in "{[":
                open_.append(_Open(node))
    return root


def _put(into: _Open, node: Node) -> None:
    if into.node.members is not None:
        into.node.members.append(Member(into.key or "", into.key_start, node))
        into.colon = False
    elif into.node.items is not None:
        into.node.items.append(node)


def find(root: Node, path: KeyPath) -> Node | None:
    node: Node | None = root
    for key in path:
        if node is None:
            return None
        node = node.child(key)
    return node
