"""Where everything stands in a text of YAML. The parser says where a value begins; where it really ends, we find out.

For a block the parser's end is the next thing it met, beyond comments and empty lines that belong to what follows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from toolway.config.editing.change import KeyPath

_COLON = re.compile(r"\s*:")
_ALIAS = re.compile(r"\s*(\*[^\s,\]}]+)")
NOWHERE: Final = -1


@dataclass(slots=True)
class Node:
    """A value. `start` is `NOWHERE` for one that stands somewhere else, under an alias."""

    start: int
    end: int
    flow: bool = True  # a scalar, or between brackets
    members: list[Member] | None = None
    items: list[Node] | None = None
    empty: bool = False  # a key without a value

    def child(self, key: str | int) -> Node | None:
        if isinstance(key, int):
            return self.items[key] if self.items is not None and key < len(self.items) else None
        return next((member.value for member in self.members or [] if member.key == key), None)


@dataclass(slots=True)
class Member:
    key: str
    start: int
    colon: int  # behind it
    value: Node


def tree(composed: Any, text: str) -> Node | None:
    """Our tree from the parser's nodes; None where a document says nothing."""
    return None if composed is None or _says_nothing(composed) else _node(composed, text, 0)


def _node(composed: Any, text: str, floor: int) -> Node:
    start, end = composed.start_mark.index, composed.end_mark.index
    if start < floor:
        return Node(NOWHERE, NOWHERE)
    if isinstance(composed.value, str):
        return Node(start, start + len(text[start:end].rstrip()) if composed.style in ("|", ">") else end)
    flow = bool(composed.flow_style)
    node = Node(start, end, flow)
    if composed.id == "mapping":
        node.members = [_member(key, value, text) for key, value in composed.value]
        last = node.members[-1].value if node.members else None
    else:
        node.items = []
        for item in composed.value:
            node.items.append(_item(item, text, node.items[-1].end if node.items else start))
        last = node.items[-1] if node.items else None
    if not flow and last is not None:
        node.end = last.end
    return node


def _member(key: Any, value: Any, text: str) -> Member:
    end = key.end_mark.index
    found = _COLON.match(text, end)
    colon = found.end() if found else end
    alias = _ALIAS.match(text, colon)
    if alias and value.start_mark.index < colon:
        node = Node(*alias.span(1))
    elif _says_nothing(value):
        node = Node(colon, colon, empty=True)
    else:
        node = _node(value, text, colon)
    return Member(str(key.value), key.start_mark.index, colon, node)


def _item(item: Any, text: str, floor: int) -> Node:
    return Node(NOWHERE, floor) if _says_nothing(item) else _node(item, text, floor)


def _says_nothing(composed: Any) -> bool:
    return isinstance(composed.value, str) and composed.start_mark.index == composed.end_mark.index


def find(root: Node | None, path: KeyPath) -> Node | None:
    node = root
    for key in path:
        node = None if node is None else node.child(key)
    return node
