"""How the attempts of the last seconds ended, in memory that does not grow with their number.

What ends at almost the same time is counted together, in slots of a two-hundredth of the window. Pure: the time is
handed in.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

SLOTS: Final = 200


@dataclass(slots=True)
class _Slot:
    began: float
    good: int = 0
    bad: int = 0


class Recent:
    def __init__(self, window: float) -> None:
        self._window = window
        self._slots: deque[_Slot] = deque()  # oldest first
        self._newest = _Slot(0.0)
        self._until = -math.inf  # when the newest one ends

    def succeeded(self, now: float) -> None:
        if now >= self._until:
            self._begin_slot(now)
        self._newest.good += 1

    def failed(self, now: float) -> None:
        if now >= self._until:
            self._begin_slot(now)
        self._newest.bad += 1

    def count(self, now: float) -> tuple[int, int]:
        """Attempts that have ended within the window, and how many of them failed."""
        self._forget_old(now)
        bad = sum(slot.bad for slot in self._slots)
        return bad + sum(slot.good for slot in self._slots), bad

    def last_success(self) -> float:
        """When about it was, as far as it is remembered."""
        return next((slot.began for slot in reversed(self._slots) if slot.good), -math.inf)

    def clear(self) -> None:
        self._slots.clear()
        self._until = -math.inf

    def __len__(self) -> int:
        """Slots in use."""
        return len(self._slots)

    def _begin_slot(self, now: float) -> None:
        self._forget_old(now)
        self._newest = _Slot(now)
        self._until = now + self._window / SLOTS
        self._slots.append(self._newest)

    def _forget_old(self, now: float) -> None:
        while self._slots and self._slots[0].began <= now - self._window:
            self._slots.popleft()
