"""Who was not let in is told to whoever listens: some one by one, the rest as a number, for there may be many."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from toolway.events import Access, Event

MOST: Final = 10  # in a second


class Refusals:
    def __init__(self, emit: Callable[[Event], None], now: Callable[[], float] = time.monotonic) -> None:
        self._emit = emit
        self._now = now
        self._second = 0
        self._told = 0
        self._untold = 0

    def add(self, status: int, path: str) -> None:
        second = int(self._now())
        if second != self._second:
            self._second, self._told = second, 0
        if self._told >= MOST:
            self._untold += 1
            return
        self._told += 1
        more = f", and {self._untold} more before it" if self._untold else ""
        self._untold = 0
        self._emit(Access("", "refused", f"HTTP {status} at {path[:200]}{more}"))
