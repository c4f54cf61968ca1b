"""What was a secret once in this process is hidden wherever text is shown.

A secret is known only when it is needed, by the one server that names it; but what that server repeats comes out at
many places. So whoever fetches a secret remembers it here, and whoever shows text asks here. Kept in memory alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

HIDDEN: Final = "***"
SHORTEST: Final = 6  # a shorter value is found in ordinary words
LINE: Final = 16  # a line of a longer secret, such as a key, that is hidden by itself
MOST: Final = 4096  # values; the oldest is forgotten: a command may give another each time


class Known:
    """A set of secrets, and a function that hides them."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._values: dict[str, None] = {}
        self._pattern: re.Pattern[str] | None = None

    def remember(self, value: str) -> None:
        if value in self._values or len(value) < SHORTEST:
            return
        self._values[value] = None
        while len(self._values) > self._most:
            self._values.pop(next(iter(self._values)))
        self._pattern = None

    def hide(self, text: str) -> str:
        if not self._values:
            return text
        if self._pattern is None:
            self._pattern = pattern(self._values)
        return self._pattern.sub(HIDDEN, text)


def pattern(values: dict[str, None] | set[str]) -> re.Pattern[str]:
    """What finds each of these values, however it is written. Longest first: one may be the beginning of another."""
    forms = {form for value in values for form in _forms(value)}
    return re.compile("|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)))


def _forms(value: str) -> Iterator[str]:
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield quote(value, safe="")
    lines = value.splitlines()
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= LINE and not line.startswith("-----"))


_known = Known()
remember = _known.remember
hide = _known.hide
