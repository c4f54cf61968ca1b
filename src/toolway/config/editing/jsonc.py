"""JSON files with comments and trailing commas: parser, line numbers and text patches.

Comments and trailing commas are replaced with spaces, so offsets stay valid. The rest must be strict JSON. Time and
memory are linear in the text: an unclosed token extends to the end of the text and is not scanned again.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import msgspec

from toolway.config.editing.mistakes import syntax_hint
from toolway.config.editing.patch import (
    KeyPath,
    Patch,
    cannot_edit_error,
    detect_style,
    indent_at,
    line_end,
    line_start,
    spaces_after,
    spaces_before,
)
from toolway.errors import ConfigError

_STRING = r'"(?:[^"\\\n]++|\\.)*+"?'
_COMMENT = re.compile(rf"{_STRING}|(//[^\n]*|/\*(?s:.*?)\*/)|/\*(?s:.*)")  # last: an unclosed comment, an error later
_TRAILING_COMMA = re.compile(rf"{_STRING}|(?<=[}}\]\"\w])(\s*,)(?=\s*[}}\]])")
_KEY_OR_BRACKET = re.compile(rf"({_STRING})(\s*:)?|([{{\[])|([}}\]])")
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|[{}\[\]:,]|[^\s{}\[\]:,"]++')
_COMMA = re.compile(r"\s*,")
_EMPTY = re.compile(r"[{\[]\s*[}\]]")
_BOM: Final = "\ufeff"

LINE_LEVELS: Final = 2  # levels of keys with line numbers: server entries are not nested deeper
JsonPath = tuple[str, ...]
_K = TypeVar("_K", str, JsonPath)


class DuplicateKey(NamedTuple):
    """A key that occurs twice in one JSON object, with the line numbers of both occurrences."""

    path: JsonPath
    first: int
    second: int


class JsonDocument(msgspec.Struct, frozen=True):
    """A parsed JSON file with the line numbers of its keys, and its duplicate keys.

    If a key occurs twice, the last value counts.
    """

    value: Any
    lines: dict[JsonPath, int]  # line of each key of the first `LINE_LEVELS` levels, except inside arrays
    duplicates: dict[JsonPath, DuplicateKey]  # for each of these keys the first duplicate: the key, or one below it


def parse_jsonc(text: str, file: str = "") -> JsonDocument:
    """Parse JSON with comments and trailing commas.

    Raises `ConfigError` with file and line if the text is invalid.
    """
    plain = strip_comments_and_commas(text.removeprefix(_BOM))
    try:
        value = json.loads(plain, parse_constant=_reject_constant)
    except json.JSONDecodeError as exc:
        hint = syntax_hint(plain, exc.pos, exc.msg)
        raise _syntax_error(f"line {exc.lineno}, column {exc.colno}: {exc.msg}", file, exc.lineno, hint) from None
    except (ValueError, RecursionError) as exc:
        raise _syntax_error(str(exc), file, None) from None
    keys = _collect_keys(plain)
    return JsonDocument(value, keys.lines, keys.duplicates)


def strip_comments_and_commas(text: str) -> str:
    """Replace comments and trailing commas in a JSON document with spaces, so offsets stay valid."""
    return _blank_matches(_TRAILING_COMMA, strip_comments(text))


def strip_comments(text: str) -> str:
    return _blank_matches(_COMMENT, text)


def find_comments(text: str) -> list[tuple[int, int]]:
    """Return the start and end offsets of all comments in a JSON text."""
    return [found.span(1) for found in _COMMENT.finditer(text) if found[1] is not None]


def _blank_matches(pattern: re.Pattern[str], text: str) -> str:
    def blank(found: re.Match[str]) -> str:
        return found[0] if found[1] is None else re.sub(r"[^\n]", " ", found[1])

    return pattern.sub(blank, text)


class _KeyCollector:
    """Collects the lines of keys, and duplicate keys, while a JSON text is scanned.

    Paths deeper than `levels` are not kept, because together they could be many times larger than the file.
    """

    def __init__(self, levels: int = LINE_LEVELS) -> None:
        self._levels = levels
        self.lines: dict[JsonPath, int] = {}
        self.duplicates: dict[JsonPath, DuplicateKey] = {}
        self._path: list[str] = []  # the current key of each open object
        # For each open object: the lines of its keys, if they are below the first `levels`.
        self._deep_keys: list[dict[str, int]] = []

    def open(self) -> None:
        self._path.append("")
        self._deep_keys.append({})

    def close(self) -> None:
        self._path.pop()
        self._deep_keys.pop()

    def add(self, key: str, line: int) -> None:
        self._path[-1] = key
        first = self._earlier_line(key, line)
        prefix = tuple(self._path[: self._levels])
        if first is not None and prefix not in self.duplicates:
            self.duplicates[prefix] = DuplicateKey(tuple(self._path), first, line)

    def _earlier_line(self, key: str, line: int) -> int | None:
        """Return the line of an earlier occurrence of `key` in the open object, or None if the key is new.

        A new key is recorded with its line.
        """
        if len(self._path) > self._levels:
            return _record_first(self._deep_keys[-1], key, line)
        return _record_first(self.lines, tuple(self._path), line)


def _record_first(lines: dict[_K, int], key: _K, line: int) -> int | None:
    first = lines.get(key)
    if first is None:
        lines[key] = line
    return first


def find_key_lines(text: str, levels: int) -> dict[JsonPath, int]:
    """Return the line number of each key in the first `levels` levels of a JSON text, by path.

    Keys inside arrays are left out. The text must be valid for `parse_jsonc`.
    """
    return _collect_keys(_blank_matches(_COMMENT, text.removeprefix(_BOM)), levels).lines


def _collect_keys(text: str, levels: int = LINE_LEVELS) -> _KeyCollector:
    """Return the key lines and duplicate keys of a valid JSON text, except inside arrays."""
    keys, arrays, line, counted = _KeyCollector(levels), 0, 1, 0
    for found in _KEY_OR_BRACKET.finditer(text):
        string, colon, opened, closed = found.groups()
        if arrays or opened == "[":
            arrays += bool(opened) - bool(closed)
        elif opened:
            keys.open()
        elif closed:
            keys.close()
        elif colon:
            line += text.count("\n", counted, found.start())
            counted = found.start()
            keys.add(json.loads(string), line)
    return keys


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _syntax_error(detail: str, file: str, line: int | None, hint: str = "") -> ConfigError:
    return ConfigError(
        f"{file or 'the configuration'} is not valid JSON",
        file=file,
        line=line,
        detail=detail,
        hint=hint or "check for a missing comma, quote or bracket there or on the line before",
        code="E-CONFIG-SYNTAX",
    )


# -- text patches -----------------------------------------------------------------------------------------------------


def parse_text(text: str, file: str = "") -> Any:
    """Return the value of a JSON text with comments. Like all clients, treat an empty text as {}.

    Raises `ConfigError` if the text is invalid.
    """
    return parse_jsonc(text, file).value if text.removeprefix(_BOM).strip() else {}


def key_lines(text: str, root: KeyPath) -> dict[str | int, int]:
    """Return the line number of each key or array item directly below the key path `root`."""
    text = text.removeprefix(_BOM)
    node = find_node(build_tree(text), root) if text.strip() else None
    if node is None:
        return {}
    starts: list[tuple[str | int, int]] = [(member.key, member.start) for member in node.members or []]
    starts += [(at, item.start) for at, item in enumerate(node.items or [])]
    return {key: text.count("\n", 0, start) + 1 for key, start in starts}


def apply_patch(text: str, patch: Patch) -> str:
    """Return the JSON text with one patch applied. All other text and comments stay.

    Raises `ConfigError` if the patch's path does not exist in the text.
    """
    bom = _BOM if text.startswith(_BOM) else ""
    text = text.removeprefix(_BOM)
    return bom + _JsonPatcher(text if text.strip() else f"{text}{{}}\n").apply(patch)


class _JsonPatcher:
    """Patches one JSON text. `plain` is the text with spaces in place of comments."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.plain = strip_comments(text)
        self.comments = find_comments(text)
        self.root = build_tree(text)
        self.style = detect_style(text)

    def apply(self, patch: Patch) -> str:
        if patch.kind == "replace":
            node = find_node(self.root, patch.path)
            if node is None:
                raise cannot_edit_error(patch.path)
            one_line = node.members or node.items
            if one_line and "\n" not in self.text[node.start : node.end]:
                new = json.dumps(patch.value, ensure_ascii=False)
            else:
                new = self._render(patch.value, indent_at(self.text, node.start))
            return self._with_text(node.start, node.end, new)
        parent = find_node(self.root, patch.path[:-1])
        if parent is None or (parent.members is None and parent.items is None):
            raise cannot_edit_error(patch.path)
        if patch.kind == "add":
            return self._with_added(parent, patch.path[-1], patch.value)
        return self._without(parent, patch.path[-1])

    # -- add -----------------------------------------------------------------------------------------------------------

    def _with_added(self, parent: JsonNode, key: str | int, value: Any) -> str:
        name = f"{json.dumps(key, ensure_ascii=False)}: " if isinstance(key, str) else ""
        spans = _child_spans(parent)
        if not spans:
            return self._with_first(parent, name, value)
        start, end = spans[-1]
        comma = self._comma_after(end)
        if "\n" not in self.text[parent.start : start]:
            new = name + json.dumps(value, ensure_ascii=False)
            if comma is None:
                return self._with_text(end, end, f", {new}")
            return self._with_text(comma + 1, comma + 1, f" {new},")
        indent = self._member_indent(parent, start)
        new = f"{self.style.newline}{indent}{name}{self._render(value, indent)}"
        insert_at = self._line_end_after(end if comma is None else comma + 1, parent.end - 1)
        if comma is None:
            return f"{self.text[:end]},{self.text[end:insert_at]}{new}{self.text[insert_at:]}"
        return self._with_text(insert_at, insert_at, f"{new},")

    def _with_first(self, parent: JsonNode, name: str, value: Any) -> str:
        """Return the text with a first member or item added to an empty object or array.

        It is added after any comments inside the brackets.
        """
        outer = indent_at(self.text, parent.start)
        indent, newline = outer + self.style.indent, self.style.newline
        comments = self.text[parent.start + 1 : parent.end - 1].rstrip()
        new = f"{comments}{newline}{indent}{name}{self._render(value, indent)}{newline}{outer}"
        return self._with_text(parent.start + 1, parent.end - 1, new)

    def _member_indent(self, parent: JsonNode, start: int) -> str:
        if not self.text[line_start(self.text, start) : start].strip():
            return indent_at(self.text, start)
        return indent_at(self.text, parent.start) + self.style.indent

    def _line_end_after(self, at: int, limit: int) -> int:
        """Return the offset at which a new line can be inserted after `at`: after a trailing comment, at most `limit`.

        If another value follows on the line, or a comment continues on the next line, return `at` itself.
        """
        end = min(line_end(self.text, at), limit)
        if self.plain[at:end].strip() or self._in_comment(end):
            return at  # another value follows on this line, or a comment that continues on the next
        return at + len(self.text[at:end].rstrip())

    # -- remove --------------------------------------------------------------------------------------------------------

    def _without(self, parent: JsonNode, key: str | int) -> str:
        """Return the text without a member or item and its comma.

        If this leaves its line empty, the line is removed too.
        """
        spans = _child_spans(parent)
        names: list[str | int] = [member.key for member in parent.members or []] or list(range(len(spans)))
        at = max(at for at, name in enumerate(names) if name == key)
        start, end = spans[at]
        comma = self._comma_after(end)
        start, stop = self._range_to_remove(start, end if comma is None else comma + 1)
        # If the last member is removed, so is the comma before it.
        before = self._comma_after(spans[at - 1][1]) if comma is None and at > 0 else None
        if before is None or before >= start:
            text = self.text[:start] + self.text[stop:]
        else:
            text = self.text[:before] + self.text[before + 1 : start] + self.text[stop:]
        return _collapse_empty(text, parent.start) if len(spans) == 1 else text

    def _range_to_remove(self, start: int, stop: int) -> tuple[int, int]:
        """Return the start and end offsets of the text to remove with a member.

        If nothing else is on its lines, this includes the whole lines and a trailing comment.
        """
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
        """Return the offset of the comma after a value, past spaces and comments, or None if no comma follows."""
        found = _COMMA.match(self.plain, end)
        return None if found is None else found.end() - 1

    def _render(self, value: Any, indent: str) -> str:
        text = json.dumps(value, ensure_ascii=False, indent=self.style.indent)
        return text.replace("\n", f"{self.style.newline}{indent}")

    def _with_text(self, start: int, end: int, new: str) -> str:
        return self.text[:start] + new + self.text[end:]


def _child_spans(parent: JsonNode) -> list[tuple[int, int]]:
    spans = [(member.start, member.value.end) for member in parent.members or []]
    return spans or [(item.start, item.end) for item in parent.items or []]


def _collapse_empty(text: str, start: int) -> str:
    """Collapse the object or array at `start` to `{}` or `[]` if it contains only white space."""
    found = _EMPTY.match(text, start)
    return text if found is None else text[: start + 1] + text[found.end() - 1 :]


# -- offsets ----------------------------------------------------------------------------------------------------------


class JsonNode(msgspec.Struct):
    """A JSON value in a string: its start and end offsets, and its members or items."""

    start: int
    end: int = 0
    members: list[JsonMember] | None = None  # if it is an object
    items: list[JsonNode] | None = None  # if it is an array

    def child(self, key: str | int) -> JsonNode | None:
        if isinstance(key, int):
            return self.items[key] if self.items is not None and key < len(self.items) else None
        # Of a duplicate key the last value counts.
        return next((member.value for member in reversed(self.members or []) if member.key == key), None)


class JsonMember(msgspec.Struct):
    key: str
    start: int
    value: JsonNode


class _OpenContainer(msgspec.Struct):
    """An object or array that `build_tree` has not closed yet, with the key read last."""

    node: JsonNode
    key: str | None = None
    key_start: int = 0
    colon: bool = False


def build_tree(text: str) -> JsonNode:
    """Build the tree of values in a valid JSON document, with their offsets.

    This does not use recursion, because files may be deeply nested.
    """
    open_: list[_OpenContainer] = []
    root = JsonNode(0)
    for found in _TOKEN.finditer(strip_comments_and_commas(text)):
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
            node = JsonNode(start, end)
            if token == "{":
                node.members = []
            elif token == "[":
                node.items = []
            if open_:
                _append_child(open_[-1], node)
            else:
                root = node
            if token in "{[":
                open_.append(_OpenContainer(node))
    return root


def _append_child(container: _OpenContainer, node: JsonNode) -> None:
    if container.node.members is not None:
        container.node.members.append(JsonMember(container.key or "", container.key_start, node))
        container.colon = False
    elif container.node.items is not None:
        container.node.items.append(node)


def find_node(root: JsonNode, path: KeyPath) -> JsonNode | None:
    node: JsonNode | None = root
    for key in path:
        if node is None:
            return None
        node = node.child(key)
    return node
