"""Who was not let in, or calls too often, is told to whoever listens: some one by one, the rest as a number, for there
may be many."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from toolway.events import Access, Event
from toolway.gateway.rates import Rate

MOST: Final = 10  # in a second
PAUSE: Final = 60.0  # seconds until a key that calls too often is told of again
MOST_KEYS: Final = 1000  # of which is remembered when they were told of


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


class Throttled:
    """Keys that call more often than they may."""

    def __init__(self, emit: Callable[[Event], None], now: Callable[[], float] = time.monotonic) -> None:
        self._emit = emit
        self._now = now
        self._keys: dict[str, tuple[float, int]] = {}  # when each was told of, and how often it was refused since

    def add(self, key: str, rate: Rate) -> None:
        now = self._now()
        told, refused = self._keys.get(key, (-PAUSE, 0))
        if now - told < PAUSE:
            self._keys[key] = (told, refused + 1)
            return
        more = f", and {refused} more calls were refused before" if refused else ""
        self._emit(Access("", "throttled", f"more calls than {rate}{more}", who=key))
        self._keys.pop(key, None)
        self._keys[key] = (now, 0)
        if len(self._keys) > MOST_KEYS:
            del self._keys[next(iter(self._keys))]  # the one that was told of longest ago
