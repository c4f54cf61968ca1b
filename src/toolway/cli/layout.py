"""Columns and colours as plain text. A library for terminals would take longer to load than most commands run."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from typing import Final

GAP: Final = "  "
NARROWEST: Final = 16  # columns that others leave to the last one, as far as they can
_LEAST: Final = 4  # of a last column, however narrow the terminal
_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}


def painted(text: str, style: str) -> str:
    """Text in a style such as `bold red`."""
    codes = ";".join(_CODES[word] for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and text else text


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(_columns(sign) for sign in text)


def _columns(sign: str) -> int:
    if unicodedata.combining(sign) or unicodedata.category(sign) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def cut_to(text: str, width: int) -> str:
    """Text that fits; what had to be cut ends with `…`."""
    if columns_of(text) <= width:
        return text
    taken, used = "", 1
    for sign in text:
        used += _columns(sign)
        if used > width:
            break
        taken += sign
    return taken.rstrip() + "…"


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a text that fit."""
    lines = [line for part in text.splitlines() for line in textwrap.wrap(part, width, break_on_hyphens=False) or [""]]
    return lines or [""]


def rows_of(
    cells: Sequence[Sequence[str]], width: int | None, *, right: frozenset[int] = frozenset(), cut: bool = False
) -> list[list[list[str]]]:
    """Every cell as padded lines, by rows and columns. Without a width nothing is cut or wrapped."""
    if not cells:
        return []
    last = len(cells[0]) - 1
    widths = [max(columns_of(row[number]) for row in cells) for number in range(last)]
    if width is not None:
        widths = _narrowed(widths, width)
    room = None if width is None else max(_LEAST, width - sum(widths) - len(GAP) * last)
    found = []
    for row in cells:
        front = [
            _padded(cut_to(cell, size), size, n in right)
            for n, (cell, size) in enumerate(zip(row, widths, strict=False))
        ]
        end = [row[last]] if room is None else [cut_to(row[last], room)] if cut else wrapped(row[last], room)
        found.append([[cell] for cell in front] + [end])
    return found


def _narrowed(widths: list[int], width: int) -> list[int]:
    """No column takes so much that the last one is left without room: the widest give way."""
    widths = list(widths)
    while widths and sum(widths) + len(GAP) * len(widths) + NARROWEST > width and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths


def _padded(text: str, width: int, right: bool) -> str:
    fill = " " * (width - columns_of(text))
    return fill + text if right else text + fill
