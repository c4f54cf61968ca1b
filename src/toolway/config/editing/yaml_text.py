"""YAML: the three moves on its text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from toolway.config.editing import yaml_render as render
from toolway.config.editing.change import KeyPath, Move, unchangeable
from toolway.config.editing.inline import Inline
from toolway.config.editing.lines import line_end, line_start, style_of
from toolway.config.editing.yaml_tree import NOWHERE, Member, Node, find, tree
from toolway.errors import ConfigError

_BOM: Final = "\ufeff"


def parse(text: str, file: str = "") -> Any:
    """Raises `ConfigError`. An empty file is an empty map; the names of all keys are texts."""
    try:
        value = YAML(typ="safe", pure=True).load(text.removeprefix(_BOM))
    except (YAMLError, ValueError, RecursionError) as exc:
        raise _syntax_error(exc, file) from None
    return {} if value is None else _named(value)


def lines(text: str, root: KeyPath) -> dict[str | int, int]:
    """The line of each key or item below `root`."""
    text = text.removeprefix(_BOM)
    node = find(_tree(text), root)
    if node is None:
        return {}
    starts: list[tuple[str | int, int]] = [(member.key, member.start) for member in node.members or []]
    starts += [(at, item.start) for at, item in enumerate(node.items or []) if item.start != NOWHERE]
    return {key: text.count("\n", 0, start) + 1 for key, start in starts}


def move(text: str, move: Move) -> str:
    mark = _BOM if text.startswith(_BOM) else ""
    return mark + _Moving(text.removeprefix(_BOM)).move(move)


class _Moving:
    def __init__(self, text: str) -> None:
        self.text = text
        self.newline, unit = style_of(text)
        self.unit = unit if unit.strip("\t") else "  "
        self.root = _tree(text)

    def move(self, move: Move) -> str:
        if move.kind == "set":
            return self._set(move.path, move.value)
        parent = find(self.root, move.path[:-1])
        if parent is None and len(move.path) == 1:
            return self._lines_at(len(self.text), render.block({move.path[0]: move.value}, self.unit), "")
        if parent is None or parent.start == NOWHERE or (parent.members is None and parent.items is None):
            raise unchangeable(move.path)
        if move.kind == "add":
            return self._add(parent, move.path, move.value)
        return self._drop(parent, move.path)

    # -- set -----------------------------------------------------------------------------------------------------------

    def _set(self, path: KeyPath, value: Any) -> str:
        node, member = find(self.root, path), self._member(path)
        if node is None or node.start == NOWHERE:
            raise unchangeable(path)
        if member is not None and self._in_block(path) and (render.is_block(value) or not node.flow):
            return self._set_below(member, value)
        if not node.flow:
            raise unchangeable(path)
        new = render.inline(value)
        return self.text[: node.start] + (f" {new}" if node.empty else new) + self.text[node.end :]

    def _set_below(self, member: Member, value: Any) -> str:
        """A value of a key in a block, where the old or the new one takes lines of its own."""
        node = member.value
        if node.flow:
            text = self.text[: member.colon] + self.text[node.end :]
        else:
            text = self.text[: line_start(self.text, node.start)] + self.text[_past(self.text, node.end) :]
        if not render.is_block(value):
            return f"{text[: member.colon]} {render.inline(value)}{text[member.colon :]}"
        indent = self._column(member.start) + self.unit
        return self._lines_at(_past(text, member.colon), render.block(value, self.unit), indent, text)

    # -- add -----------------------------------------------------------------------------------------------------------

    def _add(self, parent: Node, path: KeyPath, value: Any) -> str:
        key = path[-1]
        if parent.flow:
            spans = _spans(parent)
            member = self._member(path[:-1])
            whole = [value] if isinstance(key, int) else {key: value}
            if not spans and member is not None and self._in_block(path[:-1]):
                return self._set_below(member, whole)
            if not spans and len(path) == 1:
                return self.text[: parent.start] + render.inline(whole) + self.text[parent.end :]
            new = render.inline(value) if isinstance(key, int) else f"{render.scalar(key)}: {render.inline(value)}"
            return Inline(self.text, parent.start, parent.end, spans).added(new)
        new_lines = render.item(value, self.unit) if isinstance(key, int) else render.member(key, value, self.unit)
        return self._lines_at(_past(self.text, parent.end), new_lines, self._column(parent.start))

    # -- drop ----------------------------------------------------------------------------------------------------------

    def _drop(self, parent: Node, path: KeyPath) -> str:
        key, spans = path[-1], _spans(parent)
        at = key if isinstance(key, int) else [member.key for member in parent.members or []].index(key)
        if parent.flow:
            return Inline(self.text, parent.start, parent.end, spans).dropped([at])
        if len(spans) == 1 and len(path) > 1:
            return self._set(path[:-1], [] if isinstance(key, int) else {})
        start, end = spans[at]
        if start == NOWHERE:
            raise unchangeable(path)
        begin = self.text.rindex("-", 0, start) if isinstance(key, int) else start
        if not self.text[line_start(self.text, begin) : begin].strip():
            return self.text[: line_start(self.text, begin)] + self.text[_past(self.text, end) :]
        if isinstance(key, int) or at + 1 == len(spans):
            raise unchangeable(path)
        return self.text[:start] + self.text[spans[at + 1][0] :]  # the first key of an item, behind its dash

    # -- where ---------------------------------------------------------------------------------------------------------

    def _member(self, path: KeyPath) -> Member | None:
        parent = find(self.root, path[:-1]) if path else None
        return next((each for each in (parent.members or []) if each.key == path[-1]), None) if parent else None

    def _in_block(self, path: KeyPath) -> bool:
        """Is nothing above it between brackets?"""
        above = [find(self.root, path[:depth]) for depth in range(len(path))]
        return all(node is not None and not node.flow for node in above)

    def _column(self, at: int) -> str:
        return " " * (at - line_start(self.text, at))

    def _lines_at(self, at: int, new: Iterable[str], indent: str, text: str | None = None) -> str:
        text = self.text if text is None else text
        before = text[:at]
        if before and not before.endswith("\n"):
            before += self.newline
        return before + "".join(f"{indent}{line}{self.newline}" for line in new) + text[at:]


def _past(text: str, at: int) -> int:
    """Behind the line of a place."""
    return min(line_end(text, at) + 1, len(text))


def _spans(node: Node) -> list[tuple[int, int]]:
    spans = [(member.start, member.value.end) for member in node.members or []]
    return spans or [(item.start, item.end) for item in node.items or []]


def _tree(text: str) -> Node | None:
    return tree(YAML(typ="safe", pure=True).compose(text), text)


def _named(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _named(item) for key, item in value.items()}
    return [_named(item) for item in value] if isinstance(value, list) else value


def _syntax_error(exc: Exception, file: str) -> ConfigError:
    mark = exc.problem_mark if isinstance(exc, MarkedYAMLError) else None
    problem = exc.problem if isinstance(exc, MarkedYAMLError) else str(exc)
    line = mark.line + 1 if mark is not None else None
    return ConfigError(
        f"{file or 'the configuration'} is not valid YAML",
        file=file,
        line=line,
        evidence=f"line {line}: {problem}" if line else str(problem),
        fix="look at the indentation there and on the line before",
        code="E-CONFIG-SYNTAX",
    )
