"""JSON as people keep it in files: comments and trailing commas are allowed, and the keys near the top know their line.

What JSON does not know is blanked out in place, so that offsets stay right; the rest must be strict JSON.
Time and memory grow with the text and no faster: what is not closed is one token to its end, never looked for again.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from toolway.errors import ConfigError

_STRING = r'"(?:[^"\\\n]++|\\.)*+"?'
_COMMENT = re.compile(rf"{_STRING}|(//[^\n]*|/\*(?s:.*?)\*/)|/\*(?s:.*)")  # the last is not closed: left to be refused
_TRAILING_COMMA = re.compile(rf"{_STRING}|(?<=[}}\]\"\w])(\s*,)(?=\s*[}}\]])")
_KEY_OR_BRACKET = re.compile(rf"({_STRING})(\s*:)?|([{{\[])|([}}\]])")

NEAR: Final = 2  # levels of keys: the entries of servers are no deeper
Path = tuple[str, ...]
_K = TypeVar("_K", str, Path)


class Twice(NamedTuple):
    """A key that stands twice in its object, and the lines of both."""

    path: Path
    first: int
    second: int


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file. Where a key stands twice in one object, the last one counts and `twice` tells."""

    value: Any
    lines: dict[Path, int]  # the line of each key of the first `NEAR` levels; what is inside an array is left out
    twice: dict[Path, Twice]  # for each of these keys, the first that stands twice: it, or one below it


def parse(text: str, file: str = "") -> Document:
    """Raises `ConfigError` with file and line."""
    plain = blanked(text.removeprefix("\ufeff"))
    try:
        value = json.loads(plain, parse_constant=_refuse_constant)
    except json.JSONDecodeError as exc:
        raise _syntax_error(f"line {exc.lineno}, column {exc.colno}: {exc.msg}", file, exc.lineno) from None
    except (ValueError, RecursionError) as exc:
        raise _syntax_error(str(exc), file, None) from None
    keys = _keys(plain)
    return Document(value, keys.lines, keys.twice)


def blanked(text: str) -> str:
    """`text` with spaces for comments and trailing commas: everything else is where it was."""
    return _blank(_TRAILING_COMMA, without_comments(text))


def without_comments(text: str) -> str:
    return _blank(_COMMENT, text)


def comments(text: str) -> list[tuple[int, int]]:
    """Where each comment begins and ends."""
    return [found.span(1) for found in _COMMENT.finditer(text) if found[1] is not None]


def _blank(pattern: re.Pattern[str], text: str) -> str:
    def blank(found: re.Match[str]) -> str:
        return found[0] if found[1] is None else re.sub(r"[^\n]", " ", found[1])

    return pattern.sub(blank, text)


class _Keys:
    """The keys of a text, as they come. Few paths are kept: in a deep file they would be many times its size."""

    def __init__(self, near: int = NEAR) -> None:
        self._near = near
        self.lines: dict[Path, int] = {}
        self.twice: dict[Path, Twice] = {}
        self._path: list[str] = []  # the latest key of each open object
        self._below: list[dict[str, int]] = []  # for each open object that is not near: its keys and their lines

    def open(self) -> None:
        self._path.append("")
        self._below.append({})

    def close(self) -> None:
        self._path.pop()
        self._below.pop()

    def add(self, key: str, line: int) -> None:
        self._path[-1] = key
        first = self._seen(key, line)
        near = tuple(self._path[: self._near])
        if first is not None and near not in self.twice:
            self.twice[near] = Twice(tuple(self._path), first, line)

    def _seen(self, key: str, line: int) -> int | None:
        """The line where this key stood before, if it did."""
        if len(self._path) > self._near:
            return _first(self._below[-1], key, line)
        return _first(self.lines, tuple(self._path), line)


def _first(lines: dict[_K, int], key: _K, line: int) -> int | None:
    first = lines.get(key)
    if first is None:
        lines[key] = line
    return first


def deep_lines(text: str, levels: int) -> dict[Path, int]:
    """The line of each key of the first `levels` levels of a text that `parse` has taken."""
    return _keys(_blank(_COMMENT, text.removeprefix("\ufeff")), levels).lines


def _keys(text: str, near: int = NEAR) -> _Keys:
    """The keys of valid JSON, without those inside arrays."""
    keys, arrays, line, counted = _Keys(near), 0, 1, 0
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


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _syntax_error(evidence: str, file: str, line: int | None) -> ConfigError:
    return ConfigError(
        f"{file or 'the configuration'} is not valid JSON",
        file=file,
        line=line,
        evidence=evidence,
        fix="look for a missing comma, quote or bracket there or on the line before",
        code="E-CONFIG-SYNTAX",
    )
