"""TOML: the three moves on its text."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

from toolway.config.editing import toml_render as render
from toolway.config.editing.change import KeyPath, Move, unchangeable
from toolway.config.editing.inline import Inline
from toolway.config.editing.lines import indent_at, line_end, line_start
from toolway.config.editing.toml_tree import Node, Statement, inside, statements
from toolway.errors import ConfigError

_BOM: Final = "\ufeff"
_LINE = re.compile(r"line (\d+)")
_BLANK_ABOVE = re.compile(r"\n[ \t]*\r?\n\Z")


def parse(text: str, file: str = "") -> Any:
    try:
        return tomllib.loads(text.removeprefix(_BOM))
    except (tomllib.TOMLDecodeError, RecursionError) as exc:
        found = _LINE.search(str(exc))
        raise ConfigError(
            f"{file or 'the configuration'} is not valid TOML",
            file=file,
            line=int(found[1]) if found else None,
            evidence=str(exc),
            fix="look for a missing quote or bracket there or on the line before",
            code="E-CONFIG-SYNTAX",
        ) from None


def lines(text: str, root: KeyPath) -> dict[str | int, int]:
    """The line of each key or item below `root`."""
    text = text.removeprefix(_BOM)
    starts: dict[str | int, int] = {}
    for statement in statements(text):
        if statement.path[: len(root)] == root and len(statement.path) > len(root):
            starts.setdefault(statement.path[len(root)], statement.start)
        elif statement.value is not None and root[: len(statement.path)] == statement.path:
            node = inside(statement.value, root[len(statement.path) :])
            for member in (node.members or []) if node else []:
                starts.setdefault(member.key[0], member.start)
            for at, item in enumerate((node.items or []) if node else []):
                starts.setdefault(at, item.start)
    return {key: text.count("\n", 0, start) + 1 for key, start in starts.items()}


def move(text: str, move: Move) -> str:
    mark = _BOM if text.startswith(_BOM) else ""
    return mark + _Moving(text.removeprefix(_BOM)).move(move)


class _Moving:
    def __init__(self, text: str) -> None:
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.all = statements(text)

    def move(self, move: Move) -> str:
        if move.kind == "set":
            return self._set(move.path, move.value)
        return self._add(move.path, move.value) if move.kind == "add" else self._drop(move.path)

    def _set(self, path: KeyPath, value: Any) -> str:
        holder = self._holder(path)
        node = inside(holder.value, path[len(holder.path) :]) if holder is not None and holder.value else None
        if node is None:  # a table becomes something else
            return _Moving(self._drop(path))._add(path, value)
        return self.text[: node.start] + render.inline(value) + self.text[node.end :]

    # -- add -----------------------------------------------------------------------------------------------------------

    def _add(self, path: KeyPath, value: Any) -> str:
        parent, name = path[:-1], path[-1]
        holder = self._holder(parent)
        if holder is not None and holder.value is not None:
            node = inside(holder.value, parent[len(holder.path) :])
            return self._added_inline(node, holder.value, path[len(holder.path) :], value)
        if isinstance(name, int):
            return self._block(parent, [value], self._end_of_sections(parent))
        if self._dotted(parent):
            return self._beside(parent, name, value)
        in_array = any(isinstance(part, int) for part in parent)
        if not in_array and (isinstance(value, Mapping) or _is_tables(value)):
            return self._block(path, value, self._end_of_sections(parent) if parent else len(self.text))
        header = next((each for each in self.all if each.kind != "pair" and each.path == parent), None)
        if header is None and parent:
            return self._block(parent, {name: value}, self._end_of_sections(parent))
        return self._line(header, f"{render.key(name)} = {render.inline(value)}")

    def _added_inline(self, node: Node | None, outer: Node, path: KeyPath, value: Any) -> str:
        if node is None or (node.members is None and node.items is None):
            # Somewhere below dotted keys of an inline table: its first part says where.
            node, path = outer, path
            name = render.dotted(path)
        else:
            name = render.key(path[-1]) if isinstance(path[-1], str) else ""
        new = f"{name} = {render.inline(value)}" if name else render.inline(value)
        return Inline(self.text, node.start, node.end, _spans(node)).added(new)

    def _block(self, path: KeyPath, value: Any, at: int) -> str:
        """Tables of their own, with an empty line before them."""
        before, after = self.text[:at], self.text[at:]
        if before and not before.endswith("\n"):
            before += self.newline
        new = list(render.tables(path, value))
        if not before or before.endswith(f"{self.newline}{self.newline}"):
            new = new[1:]
        return before + "".join(f"{line}{self.newline}" for line in new) + after

    def _beside(self, parent: KeyPath, name: str, value: Any) -> str:
        """A pair beside those whose dotted keys make up the table."""
        last = [each for each in self.all if each.kind == "pair" and _below(each.path, parent)][-1]
        header = self.all[last.section].path if last.section >= 0 else ()
        key = render.dotted((*parent[len(header) :], name))
        return self._after(last, f"{indent_at(self.text, last.start)}{key} = {render.inline(value)}")

    def _line(self, header: Statement | None, new: str) -> str:
        """A pair in the section of a header, or before all headers."""
        number = -1 if header is None else header.section
        pairs = [each for each in self.all if each.kind == "pair" and each.section == number]
        if pairs:
            return self._after(pairs[-1], indent_at(self.text, pairs[-1].start) + new)
        if header is not None:
            return self._after(header, indent_at(self.text, header.start) + new)
        return f"{new}{self.newline}{self.newline if self.all else ''}{self.text}"

    def _after(self, statement: Statement, new: str) -> str:
        at = self._past(statement)
        before = self.text[:at] if self.text[:at].endswith("\n") else self.text[:at] + self.newline
        return f"{before}{new}{self.newline}{self.text[at:]}"

    # -- drop ----------------------------------------------------------------------------------------------------------

    def _drop(self, path: KeyPath) -> str:
        holder = self._holder(path)
        if holder is not None and holder.value is not None and holder.path != path:
            return self._dropped_inline(holder.value, path[len(holder.path) :])
        gone = [at for at, each in enumerate(self.all) if each.path[: len(path)] == path]
        if not gone:
            raise unchangeable(path)
        text = self.text
        for first, last in reversed(_runs(gone)):
            start, end = line_start(text, self.all[first].start), self._past(self.all[last])
            left = self._left_alone(path[:-1], gone) if first == gone[0] else ""
            text = f"{text[:start]}{left}{text[end:]}" if left else _closed_up(text[:start], text[end:])
        return text

    def _left_alone(self, parent: KeyPath, gone: list[int]) -> str:
        """The header of a table that was only there for what is gone."""
        others = (each for at, each in enumerate(self.all) if at not in gone)
        if not parent or isinstance(parent[-1], int) or any(each.path[: len(parent)] == parent for each in others):
            return ""
        return f"[{render.dotted(parent)}]{self.newline}"

    def _dropped_inline(self, node: Node, path: KeyPath) -> str:
        parent = inside(node, path[:-1])
        if parent is not None and parent.items is not None:
            return Inline(self.text, parent.start, parent.end, _spans(parent)).dropped([int(path[-1])])
        for depth in range(len(path)):
            table = inside(node, path[:depth])
            rest = path[depth:]
            gone = [
                at for at, each in enumerate((table.members or []) if table else []) if each.key[: len(rest)] == rest
            ]
            if table is not None and gone:
                return Inline(self.text, table.start, table.end, _spans(table)).dropped(gone)
        raise unchangeable(path)

    # -- where ---------------------------------------------------------------------------------------------------------

    def _holder(self, path: KeyPath) -> Statement | None:
        """The pair in whose value a path leads, or which it is."""
        pairs = (each for each in self.all if each.kind == "pair")
        return next((each for each in pairs if path[: len(each.path)] == each.path), None)

    def _dotted(self, parent: KeyPath) -> bool:
        """Is a table made up of dotted keys alone?"""
        below = [each for each in self.all if _below(each.path, parent)]
        headers = any(each.kind != "pair" and each.path[: len(parent)] == parent for each in self.all)
        return bool(parent) and bool(below) and not headers

    def _end_of_sections(self, parent: KeyPath) -> int:
        """Behind the last section that belongs to a table."""
        numbers = {at for at, each in enumerate(self.all) if each.kind != "pair" and each.path[: len(parent)] == parent}
        inner = [each for each in self.all if each.section in numbers]
        return self._past(inner[-1]) if inner else len(self.text)

    def _past(self, statement: Statement) -> int:
        """Behind the line on which a statement ends."""
        return min(line_end(self.text, statement.end) + 1, len(self.text))


def _spans(node: Node) -> list[tuple[int, int]]:
    spans = [(member.start, member.value.end) for member in node.members or []]
    return spans or [(item.start, item.end) for item in node.items or []]


def _below(path: KeyPath, parent: KeyPath) -> bool:
    return len(path) > len(parent) and path[: len(parent)] == parent


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Neighbours together: what stands between them belongs to them."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _closed_up(before: str, after: str) -> str:
    """Of the empty lines before and after what is gone, one is enough."""
    blank = re.match(r"[ \t]*\r?\n", after)
    above = _BLANK_ABOVE.search(before)
    if blank and (above or not before.strip()):
        after = after[blank.end() :]
    elif above and not after:
        before = before[: above.start() + 1]
    return before + after
