"""How the attempts of the last seconds ended, in memory that does not grow with their number.

What ends at almost the same time is counted together, in slots of a two-hundredth of the window. Pure: the time is
handed in.
"""

from __future__ import annotations

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

    def succeeded(self, now: float) -> None:
        self._slot(now).good += 1

    def failed(self, now: float) -> None:
        self._slot(now).bad += 1

    def count(self, now: float) -> tuple[int, int]:
        """Attempts that have ended within the window, and how many of them failed."""
        self._forget_old(now)
        bad = sum(slot.bad for slot in self._slots)
        return bad + sum(slot.good for slot in self._slots), bad

    def clear(self) -> None:
        self._slots.clear()

    def __len__(self) -> int:
        """Slots in use."""
        return len(self._slots)

    def _slot(self, now: float) -> _Slot:
        if self._slots:
            newest = self._slots[-1]
            if now - newest.began < self._window / SLOTS:
                return newest
        self._forget_old(now)
        self._slots.append(slot := _Slot(now))
        return slot

    def _forget_old(self, now: float) -> None:
        while self._slots and self._slots[0].began <= now - self._window:
            self._slots.popleft()
