"""Lines of a text, and how it is written: what an addition should look like."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

SPACE: Final = " \t"
_INDENTED = re.compile(r"^([ \t]+)\S", re.MULTILINE)


class Style(NamedTuple):
    newline: str
    unit: str  # of indentation


def style_of(text: str) -> Style:
    found = _INDENTED.search(text)
    unit = found[1] if found else "  "
    return Style("\r\n" if "\r\n" in text else "\n", "\t" if unit.startswith("\t") else unit)


def line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def line_end(text: str, at: int) -> int:
    """Where the newline is, or the end of the text."""
    found = text.find("\n", at)
    return len(text) if found < 0 else found


def indent_at(text: str, at: int) -> str:
    """The white space at the beginning of the line."""
    begin = line_start(text, at)
    return text[begin : spaces_after(text, begin)]


def spaces_after(text: str, at: int) -> int:
    while at < len(text) and text[at] in SPACE:
        at += 1
    return at


def spaces_before(text: str, at: int) -> int:
    while at > 0 and text[at - 1] in SPACE:
        at -= 1
    return at
