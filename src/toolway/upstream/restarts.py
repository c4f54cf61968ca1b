"""When to start a server again: waits that double, at random, and a limit on how often.

Pure: the time and the dice are handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from toolway.config.spec import Restart


class Restarts:
    def __init__(self, policy: Restart, dice: Callable[[], float]) -> None:
        self._policy = policy
        self._dice = dice  # uniform in [0, 1)
        self._ends: deque[float] = deque()
        self._in_a_row = 0
        self.total = 0

    def after_end(self, now: float, ready_for: float) -> tuple[float, bool]:
        """The link ended at `now` after `ready_for` healthy seconds (0 for a start that failed): the seconds to wait,
        and whether the server counts as failed."""
        policy = self._policy
        if ready_for >= policy.settled:
            self._ends.clear()
            self._in_a_row = 0
        self.total += 1
        self._ends.append(now)
        while self._ends[0] <= now - policy.window:
            self._ends.popleft()
        if len(self._ends) > policy.limit:
            self._in_a_row = 0
            return policy.pause, True
        ceiling = min(policy.cap, policy.delay * 2 ** min(self._in_a_row, 30))
        self._in_a_row += 1
        return ceiling * self._dice(), False

    def forgive(self) -> None:
        """A person asked for a new start: count from the beginning."""
        self._ends.clear()
        self._in_a_row = 0
