"""Lists and tables between brackets, their items separated by commas: TOML's and YAML's."""

from __future__ import annotations

import re
from collections.abc import Sequence

_COMMENT_OR_COMMA = re.compile(r"(?:\s|#[^\n]*)*+(,)?")


class Inline:
    """What stands between two brackets, and where its items are."""

    def __init__(self, text: str, start: int, end: int, spans: Sequence[tuple[int, int]]) -> None:
        self._text, self._start, self._end, self._spans = text, start, end, spans

    def added(self, new: str) -> str:
        """With one more item at the end."""
        text = self._text
        if not self._spans:
            space = " " if text[self._start] == "{" else ""
            return f"{text[: self._start + 1]}{space}{new}{space}{text[self._end - 1 :]}"
        start, end = self._spans[-1]
        comma = self._comma_after(end)
        line = text.rfind("\n", self._start, start) + 1
        if line and not text[line:start].strip():  # one item a line
            lead = text[line - 2 : line] if text[line - 2 : line] == "\r\n" else "\n"
            lead += text[line:start]
        else:
            lead = " "
        if comma is None:
            return f"{text[:end]},{lead}{new}{text[end:]}"
        return f"{text[: comma + 1]}{lead}{new},{text[comma + 1 :]}"

    def dropped(self, numbers: Sequence[int]) -> str:
        """Without some of the items, and their commas."""
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
