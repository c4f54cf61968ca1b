"""Clock of workflow runs: the wall clock, which is not set back while the process lives."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

CATCH_UP: Final = 0.9  # speed of the clock while the wall clock is behind it


class RunClock:
    """Wall clock in seconds since 1970 that never goes back.

    Waits are stored as times of the wall clock, because they outlive the process. If the wall clock is set back by an
    hour, a run that waits must not wait an hour longer. So this clock continues by the monotonic clock, a tenth slower,
    until the wall clock has caught up. If the wall clock is set forward, this clock follows at once.
    """

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._last = wall()
        self._read_at = monotonic()

    def __call__(self) -> float:
        now = self._monotonic()
        self._last = max(self._wall(), self._last + CATCH_UP * (now - self._read_at))
        self._read_at = now
        return self._last
