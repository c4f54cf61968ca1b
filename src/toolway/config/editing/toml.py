"""TOML files: parser, line numbers, and patches that keep comments and layout.

`tomllib` parses the file. A scanner finds the offsets of the statements in the valid text, so only the edited part
changes. A library that preserves comments would move the comments between two tables together with the first table.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from toolway.config.editing.patch import (
    InlineCollection,
    KeyPath,
    Patch,
    cannot_edit_error,
    indent_at,
    line_end,
    line_start,
)
from toolway.errors import ConfigError

_BOM: Final = "\ufeff"
_LINE = re.compile(r"line (\d+)")
_BLANK_ABOVE = re.compile(r"\n[ \t]*\r?\n\Z")
_TOML_STRING: Final = (
    r'"""(?:[^"\\]|\\(?s:.)|"{1,2}(?!"))*+"{3,5}'
    r"|'''(?:[^']|'{1,2}(?!'))*+'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*+"'
    r"|'[^'\n]*+'"
)
_BLANK = re.compile(r"(?:\s|#[^\n]*)*+")
_SPACE = re.compile(r"[ \t]*+")
_KEY_PART = re.compile(rf"(?:{_TOML_STRING}|[A-Za-z0-9_-]++)")
_DOT = re.compile(r"[ \t]*\.[ \t]*")
_SCALAR = re.compile(rf"{_TOML_STRING}|[^\s,\]}}#]++(?: \d\d:\d\d[^\s,\]}}#]*+)?")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def parse_text(text: str, file: str = "") -> Any:
    """Return the value of a TOML text. Raises `ConfigError` if the text is invalid."""
    try:
        return tomllib.loads(text.removeprefix(_BOM))
    except (tomllib.TOMLDecodeError, RecursionError) as exc:
        found = _LINE.search(str(exc))
        raise ConfigError(
            f"{file or 'the configuration'} is not valid TOML",
            file=file,
            line=int(found[1]) if found else None,
            detail=str(exc),
            hint="look for a missing quote or bracket on that line or the one before",
            code="E-CONFIG-SYNTAX",
        ) from None


def key_lines(text: str, root: KeyPath) -> dict[str | int, int]:
    """Return the line number of each key or array item directly below the key path `root`."""
    text = text.removeprefix(_BOM)
    starts: dict[str | int, int] = {}
    for statement in parse_statements(text):
        if statement.path[: len(root)] == root and len(statement.path) > len(root):
            starts.setdefault(statement.path[len(root)], statement.start)
        elif statement.value is not None and root[: len(statement.path)] == statement.path:
            node = find_inline_node(statement.value, root[len(statement.path) :])
            for member in (node.members or []) if node else []:
                starts.setdefault(member.key[0], member.start)
            for at, item in enumerate((node.items or []) if node else []):
                starts.setdefault(at, item.start)
    return {key: text.count("\n", 0, start) + 1 for key, start in starts.items()}


def apply_patch(text: str, patch: Patch) -> str:
    """Return the TOML text with one patch applied. All other text and comments stay.

    Raises `ConfigError` if the path to remove does not exist, or if TOML cannot express the value.
    """
    bom = _BOM if text.startswith(_BOM) else ""
    return bom + _TomlPatcher(text.removeprefix(_BOM)).apply(patch)


class _TomlPatcher:
    """Patches one TOML text, using the offsets of its statements."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.statements = parse_statements(text)

    def apply(self, patch: Patch) -> str:
        if patch.kind == "replace":
            return self._replace(patch.path, patch.value)
        return self._add(patch.path, patch.value) if patch.kind == "add" else self._remove(patch.path)

    def _replace(self, path: KeyPath, value: Any) -> str:
        pair = self._find_pair(path)
        node = find_inline_node(pair.value, path[len(pair.path) :]) if pair is not None and pair.value else None
        if node is None:  # the old value is a table, not a pair
            return _TomlPatcher(self._remove(path))._add(path, value)
        return self.text[: node.start] + render_inline(value) + self.text[node.end :]

    # -- add -----------------------------------------------------------------------------------------------------------

    def _add(self, path: KeyPath, value: Any) -> str:
        parent, name = path[:-1], path[-1]
        pair = self._find_pair(parent)
        if pair is not None and pair.value is not None:
            node = find_inline_node(pair.value, parent[len(pair.path) :])
            return self._with_inline_item(node, pair.value, path[len(pair.path) :], value)
        if isinstance(name, int):
            return self._insert_tables(parent, [value], self._sections_end(parent))
        if self._is_dotted_table(parent):
            return self._add_dotted_pair(parent, name, value)
        in_array = any(isinstance(part, int) for part in parent)
        if not in_array and (isinstance(value, Mapping) or _is_table_list(value)):
            return self._insert_tables(path, value, self._sections_end(parent) if parent else len(self.text))
        header = next((each for each in self.statements if each.kind != "pair" and each.path == parent), None)
        if header is None and parent:
            return self._insert_tables(parent, {name: value}, self._sections_end(parent))
        return self._add_pair(header, f"{render_key(name)} = {render_inline(value)}")

    def _with_inline_item(self, node: TomlNode | None, outer: TomlNode, path: KeyPath, value: Any) -> str:
        if node is None or (node.members is None and node.items is None):
            # The parent consists of dotted keys of an inline table: add another dotted key to that table.
            node = outer
            name = render_dotted_key(path)
        else:
            name = render_key(path[-1]) if isinstance(path[-1], str) else ""
        new = f"{name} = {render_inline(value)}" if name else render_inline(value)
        return InlineCollection(self.text, node.start, node.end, _child_spans(node)).with_item(new)

    def _insert_tables(self, path: KeyPath, value: Any, at: int) -> str:
        """Return the text with new `[table]` sections at offset `at`, after an empty line."""
        before, after = self.text[:at], self.text[at:]
        if before and not before.endswith("\n"):
            before += self.newline
        new = list(render_tables(path, value))
        if not before or before.endswith(f"{self.newline}{self.newline}"):
            new = new[1:]
        return before + "".join(f"{line}{self.newline}" for line in new) + after

    def _add_dotted_pair(self, parent: KeyPath, name: str, value: Any) -> str:
        """Return the text with a new pair next to the dotted keys that define `parent`.

        Dotted keys define a table without a header: `parent.name = value`.
        """
        last = [each for each in self.statements if each.kind == "pair" and _is_below(each.path, parent)][-1]
        header = self.statements[last.section].path if last.section >= 0 else ()
        key = render_dotted_key((*parent[len(header) :], name))
        return self._insert_after(last, f"{indent_at(self.text, last.start)}{key} = {render_inline(value)}")

    def _add_pair(self, header: Statement | None, new: str) -> str:
        """Return the text with the line `new` in the section of `header`.

        Without a header, the line is added to the pairs that come before all headers.
        """
        number = -1 if header is None else header.section
        pairs = [each for each in self.statements if each.kind == "pair" and each.section == number]
        if pairs:
            return self._insert_after(pairs[-1], indent_at(self.text, pairs[-1].start) + new)
        if header is not None:
            return self._insert_after(header, indent_at(self.text, header.start) + new)
        return f"{new}{self.newline}{self.newline if self.statements else ''}{self.text}"

    def _insert_after(self, statement: Statement, new: str) -> str:
        at = self._next_line_offset(statement)
        before = self.text[:at] if self.text[:at].endswith("\n") else self.text[:at] + self.newline
        return f"{before}{new}{self.newline}{self.text[at:]}"

    # -- remove --------------------------------------------------------------------------------------------------------

    def _remove(self, path: KeyPath) -> str:
        pair = self._find_pair(path)
        if pair is not None and pair.value is not None and pair.path != path:
            return self._without_inline_item(pair.value, path[len(pair.path) :])
        removed = [at for at, each in enumerate(self.statements) if each.path[: len(path)] == path]
        if not removed:
            raise cannot_edit_error(path)
        text = self.text
        for first, last in reversed(_group_consecutive(removed)):
            start, end = line_start(text, self.statements[first].start), self._next_line_offset(self.statements[last])
            left = self._orphaned_header(path[:-1], removed) if first == removed[0] else ""
            text = f"{text[:start]}{left}{text[end:]}" if left else _join_around_removed(text[:start], text[end:])
        return text

    def _orphaned_header(self, parent: KeyPath, removed: list[int]) -> str:
        """Return the line `[parent]` if only the removed statements defined the table, or else "".

        Without this line, the table, which is now empty, would disappear from the file.
        """
        remaining = (each for at, each in enumerate(self.statements) if at not in removed)
        if not parent or isinstance(parent[-1], int) or any(each.path[: len(parent)] == parent for each in remaining):
            return ""
        return f"[{render_dotted_key(parent)}]{self.newline}"

    def _without_inline_item(self, node: TomlNode, path: KeyPath) -> str:
        parent = find_inline_node(node, path[:-1])
        if parent is not None and parent.items is not None:
            return InlineCollection(self.text, parent.start, parent.end, _child_spans(parent)).without_items(
                [int(path[-1])]
            )
        for depth in range(len(path)):
            table = find_inline_node(node, path[:depth])
            rest = path[depth:]
            removed = [
                at for at, each in enumerate((table.members or []) if table else []) if each.key[: len(rest)] == rest
            ]
            if table is not None and removed:
                return InlineCollection(self.text, table.start, table.end, _child_spans(table)).without_items(removed)
        raise cannot_edit_error(path)

    # -- offsets -------------------------------------------------------------------------------------------------------

    def _find_pair(self, path: KeyPath) -> Statement | None:
        """Return the `key = value` statement at this key path, or the one whose inline value contains the path."""
        pairs = (each for each in self.statements if each.kind == "pair")
        return next((each for each in pairs if path[: len(each.path)] == each.path), None)

    def _is_dotted_table(self, parent: KeyPath) -> bool:
        """Return True if the table `parent` is defined only by dotted keys such as `a.b = 1`."""
        below = [each for each in self.statements if _is_below(each.path, parent)]
        headers = any(each.kind != "pair" and each.path[: len(parent)] == parent for each in self.statements)
        return bool(parent) and bool(below) and not headers

    def _sections_end(self, parent: KeyPath) -> int:
        """Return the offset after a table's last section, including its subtables.

        If the table has no section, return the end of the text.
        """
        numbers = {
            at for at, each in enumerate(self.statements) if each.kind != "pair" and each.path[: len(parent)] == parent
        }
        inner = [each for each in self.statements if each.section in numbers]
        return self._next_line_offset(inner[-1]) if inner else len(self.text)

    def _next_line_offset(self, statement: Statement) -> int:
        """Return the offset of the line that follows a statement."""
        return min(line_end(self.text, statement.end) + 1, len(self.text))


def _child_spans(node: TomlNode) -> list[tuple[int, int]]:
    spans = [(member.start, member.value.end) for member in node.members or []]
    return spans or [(item.start, item.end) for item in node.items or []]


def _is_below(path: KeyPath, parent: KeyPath) -> bool:
    return len(path) > len(parent) and path[: len(parent)] == parent


def _is_table_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _group_consecutive(numbers: list[int]) -> list[tuple[int, int]]:
    """Merge consecutive statement indexes into ranges (first, last).

    The text between consecutive statements is removed together with them.
    """
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _join_around_removed(before: str, after: str) -> str:
    """Join the text before and after a removed part, dropping a redundant empty line in between."""
    blank = re.match(r"[ \t]*\r?\n", after)
    above = _BLANK_ABOVE.search(before)
    if blank and (above or not before.strip()):
        after = after[blank.end() :]
    elif above and not after:
        before = before[: above.start() + 1]
    return before + after


# -- statements and offsets -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class TomlNode:
    """A TOML value in a `key = value` statement, or a value nested in it, with its offsets."""

    start: int
    end: int = 0
    members: list[TomlMember] | None = None  # if it is an inline table
    items: list[TomlNode] | None = None  # if it is an array


@dataclass(slots=True)
class TomlMember:
    key: tuple[str, ...]
    start: int
    value: TomlNode


@dataclass(slots=True)
class Statement:
    """A TOML statement: `[table]`, `[[array]]`, or `key = value`.

    `path` is its full path in the document.
    """

    kind: Literal["table", "array", "pair"]
    path: KeyPath
    start: int
    end: int  # without a trailing comment
    section: int  # index of its header in the list of statements; -1 before the first header
    value: TomlNode | None = None


@dataclass(slots=True)
class _Scanner:
    """Splits a valid TOML text into statements with their offsets."""

    text: str
    at: int = 0
    arrays: dict[KeyPath, int] = field(default_factory=dict)  # number of tables per array so far

    def scan(self) -> list[Statement]:
        found: list[Statement] = []
        prefix: KeyPath = ()
        section = -1
        while self._skip(_BLANK) < len(self.text):
            start = self.at
            if self.text.startswith("[", start):
                kind: Literal["table", "array"] = "array" if self.text.startswith("[[", start) else "table"
                width = 2 if kind == "array" else 1
                self.at += width
                prefix = self._header_path(self._scan_key(), kind)
                self._skip(_SPACE)
                self.at += width
                section = len(found)
                found.append(Statement(kind, prefix, start, self.at, section))
            else:
                path = (*prefix, *self._scan_key())
                value = self._scan_pair_value()
                found.append(Statement("pair", path, start, self.at, section, value))
        return found

    def _header_path(self, key: tuple[str, ...], kind: str) -> KeyPath:
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

    def _scan_key(self) -> tuple[str, ...]:
        parts = []
        self._skip(_SPACE)
        while True:
            part = self._match(_KEY_PART)
            parts.append(tomllib.loads(f"x={part}")["x"] if part[0] in "\"'" else part)
            if not _DOT.match(self.text, self.at):
                return tuple(parts)
            self._skip(_DOT)

    def _scan_pair_value(self) -> TomlNode:
        self._skip(_SPACE)
        self.at += 1
        self._skip(_SPACE)
        return self._scan_value()

    def _scan_value(self) -> TomlNode:
        node = TomlNode(self.at)
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
                node.items.append(self._scan_value())
            elif node.members is not None:
                start = self.at
                node.members.append(TomlMember(self._scan_key(), start, self._scan_pair_value()))
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
            raise ValueError(f"unexpected text at offset {self.at}")
        self.at = found.end()
        return found[0]


def parse_statements(text: str) -> list[Statement]:
    return _Scanner(text).scan()


def find_inline_node(node: TomlNode, path: KeyPath) -> TomlNode | None:
    """Return the value at `path` inside an inline table or array, or None if it has none.

    An empty path returns `node` itself.
    """
    if not path:
        return node
    if node.items is not None and isinstance(path[0], int):
        return find_inline_node(node.items[path[0]], path[1:]) if path[0] < len(node.items) else None
    for member in node.members or []:
        if member.key == path[: len(member.key)]:
            found = find_inline_node(member.value, path[len(member.key) :])
            if found is not None:
                return found
    return None


# -- rendering: inline, or as separate tables -------------------------------------------------------------------------


def render_inline(value: Any) -> str:
    if isinstance(value, str):
        return render_string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return (
            f"{{ {', '.join(f'{render_key(name)} = {render_inline(item)}' for name, item in value.items())} }}"
            if value
            else "{}"
        )
    if isinstance(value, list | tuple):
        return f"[{', '.join(render_inline(item) for item in value)}]"
    if value is None:
        raise ConfigError("TOML has no null", hint="leave the key out", code="E-EDIT-SHAPE")
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def render_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def render_key(name: Any) -> str:
    return str(name) if _BARE_KEY.fullmatch(str(name)) else render_string(str(name))


def render_dotted_key(path: KeyPath) -> str:
    """Return a dotted key such as `a.b`, quoted if needed.

    Array indexes are left out, because the position in the file determines them.
    """
    return ".".join(render_key(part) for part in path if isinstance(part, str))


def render_tables(path: KeyPath, value: Any) -> Iterator[str]:
    """Yield the lines of a `[table]` and its subtables, or of a list of tables as `[[…]]`."""
    if isinstance(value, list):
        for item in value:
            yield from _render_table(path, item, f"[[{render_dotted_key(path)}]]", inline_below=True)
    else:
        yield from _render_table(path, value, f"[{render_dotted_key(path)}]", inline_below=False)


def _render_table(path: KeyPath, value: Mapping[str, Any], header: str, *, inline_below: bool) -> Iterator[str]:
    below = {} if inline_below else {name: item for name, item in value.items() if isinstance(item, Mapping)}
    if len(below) < len(value) or not value:
        yield ""
        yield header
    yield from (f"{render_key(name)} = {render_inline(item)}" for name, item in value.items() if name not in below)
    for name, item in below.items():
        yield from render_tables((*path, name), item)
