"""JSON as people keep it in files: comments and trailing commas are allowed, and every key knows its line.

What JSON does not know is blanked out in place, so that offsets stay right; the rest must be strict JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from toolway.errors import ConfigError

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT = re.compile(rf"{_STRING}|(//[^\n]*|/\*.*?\*/)", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"{_STRING}|(?<=[}}\]\"\w])(\s*,)(?=\s*[}}\]])")
_KEY_OR_BRACKET = re.compile(rf"({_STRING})(\s*:)?|([{{\[])|([}}\]])")

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file. Where a key stands twice in one object, the last one counts and `twice` tells."""

    value: Any
    lines: dict[Path, int]  # the line of each key; what is inside an array is left out
    twice: dict[Path, int]  # keys that stand twice in their object, and the line of the second


def parse(text: str, file: str = "") -> Document:
    """Raises `ConfigError` with file and line."""
    plain = _blank(_TRAILING_COMMA, _blank(_COMMENT, text.removeprefix("\ufeff")))
    try:
        value = json.loads(plain, parse_constant=_refuse_constant)
    except json.JSONDecodeError as exc:
        raise _syntax_error(f"line {exc.lineno}, column {exc.colno}: {exc.msg}", file, exc.lineno) from None
    except (ValueError, RecursionError) as exc:
        raise _syntax_error(str(exc), file, None) from None
    lines: dict[Path, int] = {}
    twice: dict[Path, int] = {}
    for path, offset in _keys(plain):
        known = twice if path in lines else lines
        known[path] = plain.count("\n", 0, offset) + 1
    return Document(value, lines, twice)


def _blank(pattern: re.Pattern[str], text: str) -> str:
    def blank(found: re.Match[str]) -> str:
        return found[0] if found[1] is None else re.sub(r"[^\n]", " ", found[1])

    return pattern.sub(blank, text)


def _keys(text: str) -> Iterator[tuple[Path, int]]:
    """The path and offset of every key outside of arrays, in valid JSON."""
    path: list[str] = []
    arrays = 0
    pending = ""
    for found in _KEY_OR_BRACKET.finditer(text):
        string, colon, opened, closed = found.groups()
        if opened:
            path.append(pending)
            arrays += opened == "[" or arrays > 0
        elif closed:
            path.pop()
            arrays -= arrays > 0
        elif colon and not arrays:
            pending = json.loads(string)
            yield (*path[1:], pending), found.start()


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
