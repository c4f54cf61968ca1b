"""Text patches that change single values in a config file and leave the rest of its text alone.

Each file format implements three patches, which only touch the text of one value: `replace` for an existing value,
`add` for a new key or item, and `remove` for an old one. An edit is done when the patched text, parsed again, has
exactly the intended value. So a patch cannot cause unnoticed damage, because a file with any other value is never
written.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from toolway.errors import ConfigError

KeyPath = tuple[str | int, ...]
REMOVED: Final = object()  # marks a value to remove
_MAX_ROUNDS: Final = 20
_SPACES: Final = " \t"
_COMMENT_OR_COMMA = re.compile(r"(?:\s|#[^\n]*)*+(,)?")
_INDENTED = re.compile(r"^([ \t]+)\S", re.MULTILINE)


class Patch(NamedTuple):
    """One text patch: `replace`, `add` or `remove` the item at `path`. `value` is the new value."""

    kind: str
    path: KeyPath
    value: Any = None


class TextFormat(Protocol):
    """The interface of a file format module: `jsonc.py`, `toml.py`, or `yaml.py`.

    Its functions are pure. They raise `ConfigError` if the text is invalid or a patch cannot be applied.
    """

    def parse_text(self, text: str, file: str) -> Any: ...

    def key_lines(self, text: str, root: KeyPath) -> dict[str | int, int]: ...

    def apply_patch(self, text: str, patch: Patch) -> str: ...


def apply_value(text_format: TextFormat, text: str, path: KeyPath, value: Any, file: str = "") -> str:
    """Return a config file's text with `value` at `path`, or without that key if `value` is `REMOVED`.

    All other values stay unchanged. Raises `ConfigError` if the text is invalid or cannot be edited like this.
    """
    current = text_format.parse_text(text, file)
    target = _with_value(current, path, value, file)
    # Later rounds repair side effects of a patch, such as removing a table together with its only item.
    for _ in range(_MAX_ROUNDS):
        if is_same_value(current, target):
            return text
        text = _apply_patches(text_format, text, current, target, file)
        current = text_format.parse_text(text, file)
    raise cannot_edit_error(path, file)


def _apply_patches(text_format: TextFormat, text: str, current: Any, target: Any, file: str) -> str:
    """Return the text after applying the patches that change its value from `current` to `target`.

    The text is not parsed after each patch, because that is slow. The caller must parse the result and compare it.
    """
    patch = next_patch(current, target)
    while patch is not None:
        text = text_format.apply_patch(text, patch)
        current = _with_value(current, patch.path, REMOVED if patch.kind == "remove" else patch.value, file)
        patch = next_patch(current, target)
    return text


def cannot_edit_error(path: KeyPath, file: str = "") -> ConfigError:
    return ConfigError(
        f"{file or 'the file'} cannot be edited without touching unrelated text",
        file=file,
        detail=f"at {'.'.join(str(part) for part in path)}; nothing was written",
        hint="edit the file manually at that key",
        code="E-EDIT-SHAPE",
    )


def is_same_value(one: Any, other: Any) -> bool:
    """Return True if two parsed values are equal, including their types.

    `1`, `1.0` and `true` differ; the order of keys is ignored.
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_same_value(item, other[key]) for key, item in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same_value, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))


def next_patch(current: Any, target: Any, path: KeyPath = ()) -> Patch | None:
    """Return the first patch needed to change `current` into `target`, or None if they are equal."""
    if current is target:
        return None
    if isinstance(current, Mapping) and isinstance(target, Mapping):
        return _next_mapping_patch(current, target, path)
    if isinstance(current, list) and isinstance(target, list):
        return _next_list_patch(current, target, path)
    return None if is_same_value(current, target) else Patch("replace", path, target)


def _next_mapping_patch(current: Mapping[str, Any], target: Mapping[str, Any], path: KeyPath) -> Patch | None:
    for key, value in target.items():
        if key not in current:
            return Patch("add", (*path, key), value)
        patch = next_patch(current[key], value, (*path, key))
        if patch is not None:
            return patch
    removed = next((key for key in current if key not in target), None)
    return None if removed is None else Patch("remove", (*path, removed))


def _next_list_patch(current: list[Any], target: list[Any], path: KeyPath) -> Patch | None:
    """Return the first patch needed to change one list into another, or None if they are equal.

    Lists are compared item by item, so comments between unchanged items stay.
    """
    if is_same_value(current, target):
        return None
    at = _first_difference(current, target)
    if len(current) > len(target):
        return Patch("remove", (*path, at))
    if at == len(current):
        return Patch("add", (*path, at), target[at])
    return next_patch(current[at], target[at], (*path, at))


def _first_difference(current: list[Any], target: list[Any]) -> int:
    """Return the index of the first item that differs, or the length of the shorter list."""
    pairs = enumerate(zip(current, target, strict=False))
    return next((at for at, (one, other) in pairs if not is_same_value(one, other)), min(len(current), len(target)))


def _with_value(document: Any, path: KeyPath, value: Any, file: str) -> Any:
    """Return a copy of the parsed document with `value` at `path`, or without it if `value` is `REMOVED`.

    Raises `ConfigError` if a parent on the path is neither a map nor a list.
    """
    if not path:
        return {} if value is REMOVED else value
    if document is not None and not isinstance(document, list if isinstance(path[0], int) else Mapping):
        raise cannot_edit_error(path, file)
    new: Any = copy.copy(document) if document is not None else {}
    key: Any = path[0]
    inner = _get_item(new, key)
    if len(path) > 1:
        if inner is None and value is REMOVED:
            return new
        new[key] = _with_value(inner, path[1:], value, file)
    elif value is REMOVED:
        if inner is not None or isinstance(new, dict):
            new.pop(key, *([None] if isinstance(new, dict) else []))
    elif isinstance(new, list) and key == len(new):
        new.append(value)
    else:
        new[key] = value
    return new


def _get_item(container: Any, key: Any) -> Any:
    if isinstance(container, dict):
        return container.get(key)
    return container[key] if isinstance(key, int) and key < len(container) else None


# -- bracketed lists and tables ---------------------------------------------------------------------------------------


class InlineCollection:
    """A list or table in brackets in a TOML text, with the offsets of its items."""

    def __init__(self, text: str, start: int, end: int, spans: Sequence[tuple[int, int]]) -> None:
        self._text, self._start, self._end, self._spans = text, start, end, spans

    def with_item(self, new: str) -> str:
        """Return the whole text with `new`, a rendered item, at the end of the list or table."""
        text = self._text
        if not self._spans:
            space = " " if text[self._start] == "{" else ""
            return f"{text[: self._start + 1]}{space}{new}{space}{text[self._end - 1 :]}"
        start, end = self._spans[-1]
        comma = self._comma_after(end)
        line = text.rfind("\n", self._start, start) + 1
        if line and not text[line:start].strip():  # one item per line
            lead = text[line - 2 : line] if text[line - 2 : line] == "\r\n" else "\n"
            lead += text[line:start]
        else:
            lead = " "
        if comma is None:
            return f"{text[:end]},{lead}{new}{text[end:]}"
        return f"{text[: comma + 1]}{lead}{new},{text[comma + 1 :]}"

    def without_items(self, numbers: Sequence[int]) -> str:
        """Return the whole text without the items at the indexes `numbers` and their commas."""
        text = self._text
        for number in sorted(numbers, reverse=True):
            start, end = self._spans[number]
            comma = self._comma_after(end)
            if comma is not None:
                stop = comma + 1
                while text[stop] in " \t":
                    stop += 1
                text = text[:start] + text[stop:]
            elif number > 0:
                before = self._comma_after(self._spans[number - 1][1])
                text = text[:before] + text[end:]
            else:
                text = text[:start].rstrip(" \t") + text[end:].lstrip(" \t")
        return text

    def _comma_after(self, end: int) -> int | None:
        found = _COMMENT_OR_COMMA.match(self._text, end)
        return found.end(1) - 1 if found and found[1] else None


# -- lines and style of a text ----------------------------------------------------------------------------------------


class TextStyle(NamedTuple):
    """The newline characters and the indentation that a config text uses."""

    newline: str
    indent: str  # one level of indentation


def detect_style(text: str) -> TextStyle:
    found = _INDENTED.search(text)
    unit = found[1] if found else "  "
    return TextStyle("\r\n" if "\r\n" in text else "\n", "\t" if unit.startswith("\t") else unit)


def line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def line_end(text: str, at: int) -> int:
    """Return the offset of the newline after `at`, or the text's end if no newline follows."""
    found = text.find("\n", at)
    return len(text) if found < 0 else found


def indent_at(text: str, at: int) -> str:
    """Return the white space at the beginning of the line that contains offset `at`."""
    begin = line_start(text, at)
    return text[begin : spaces_after(text, begin)]


def spaces_after(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACES:
        at += 1
    return at


def spaces_before(text: str, at: int) -> int:
    while at > 0 and text[at - 1] in _SPACES:
        at -= 1
    return at
