"""A budget for retries: they may add a fifth to a server's load, and no more.

Pure: the time is handed in.
"""

from __future__ import annotations

from typing import Final

WINDOW: Final = 10  # seconds looked back
SHARE: Final = 0.2  # retries for the calls of the window
FLOOR: Final = 3  # retries at once that are always allowed


class Budget:
    def __init__(self, share: float = SHARE, floor: int = FLOOR) -> None:
        self._share = share
        self._floor = floor
        self._attempts = [0] * WINDOW
        self._retries = [0] * WINDOW
        self._second = 0
        self.active = 0
        self.refused = 0

    def attempt(self, now: float) -> None:
        """A call is tried for the first time."""
        self._turn(now)
        self._attempts[self._second % WINDOW] += 1

    def allow(self, now: float) -> bool:
        """Take a retry out of the budget; False where there is none. `done` must follow."""
        self._turn(now)
        used, made = sum(self._retries), sum(self._attempts)
        if self.active >= self._floor and used + 1 > self._share * made:
            self.refused += 1
            return False
        self._retries[self._second % WINDOW] += 1
        self.active += 1
        return True

    def done(self) -> None:
        """A retry that was allowed has ended."""
        self.active -= 1

    def _turn(self, now: float) -> None:
        """Forget the seconds that have left the window."""
        second = int(now)
        if second == self._second:
            return
        for passed in range(min(second - self._second, WINDOW)):
            self._attempts[(second - passed) % WINDOW] = 0
            self._retries[(second - passed) % WINDOW] = 0
        self._second = max(second, self._second)
