"""What goes wrong with a request, and how long things take; all of it drawn from the seed.

Times are whole ticks of a sixty-fourth of a second. Sums of such floats are exact, so many things happen at the very
same time, which is where the races are.
"""

from __future__ import annotations

import asyncio
import enum
import random
from collections.abc import Callable, Sequence
from typing import Final

TICK: Final = 1 / 64


def ticks(dice: random.Random, least: int, most: int) -> float:
    return dice.randint(least, most) * TICK


class Later:
    """Something that happens after a time, and some turns of the loop later: at one time there are many moments."""

    def __init__(self, dice: random.Random, delay: float, work: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._turns = dice.choice((0, 0, 0, 1, 2, 3))
        self._work = work
        self._handle: asyncio.Handle = self._loop.call_later(delay, self._turn)

    def cancel(self) -> None:
        self._handle.cancel()

    def _turn(self) -> None:
        if self._turns:
            self._turns -= 1
            self._handle = self._loop.call_soon(self._turn)
        else:
            self._work()


class Fate(enum.StrEnum):
    """What becomes of one request. A server has *done* its work, or not, when the rest happens."""

    FINE = "fine"
    UNSENT = "lost before it was sent"
    THROTTLED = "refused with 429"
    UNAVAILABLE = "refused with 503 and a time"
    FORGOTTEN = "session forgotten"
    MISMATCH = "headers called wrong"
    LOST_UNDONE = "lost before the work"
    LOST_DONE = "lost after the work"
    SILENT_UNDONE = "never answered, not done"
    SILENT_DONE = "never answered, done"
    LATE = "answered late"
    TWICE = "answered twice"
    CRASH_UNDONE = "crash before the work"
    CRASH_DONE = "crash after the work"
    ERROR_UNDONE = "error -32603 before the work"
    ERROR_DONE = "error -32603 after the work"
    SPOILED_UNDONE = "unusable answer, not done"
    SPOILED_DONE = "unusable answer, done"
    HANG = "server falls silent"


UNDONE: Final = frozenset(
    {Fate.LOST_UNDONE, Fate.SILENT_UNDONE, Fate.CRASH_UNDONE, Fate.ERROR_UNDONE, Fate.SPOILED_UNDONE}
)
SILENT: Final = frozenset({Fate.SILENT_UNDONE, Fate.SILENT_DONE})
CRASHES: Final = frozenset({Fate.CRASH_UNDONE, Fate.CRASH_DONE})

_ANYWHERE: Final = (
    Fate.UNSENT,
    *sorted(SILENT),
    Fate.LATE,
    *sorted(CRASHES),
    Fate.ERROR_UNDONE,
    Fate.ERROR_DONE,
    Fate.SPOILED_UNDONE,
    Fate.SPOILED_DONE,
    Fate.HANG,
)
ON_A_PIPE: Final = (*_ANYWHERE, Fate.TWICE)
ON_HTTP: Final = (*_ANYWHERE, Fate.THROTTLED, Fate.UNAVAILABLE, Fate.LOST_UNDONE, Fate.LOST_DONE)
PROTOCOL_SHARE: Final = 0.25  # of the rate, for requests that are not calls
_RARE: Final = {Fate.HANG: 0.2, Fate.CRASH_UNDONE: 0.5, Fate.CRASH_DONE: 0.5}  # each of them costs many calls


class Weather:
    """The fates of the requests to one server."""

    def __init__(self, dice: random.Random, rate: float, fates: Sequence[Fate]) -> None:
        self._dice = dice
        self._rate = rate
        self._fates = fates
        self._weights = [_RARE.get(fate, 1.0) for fate in fates]

    def calm(self) -> None:
        """From now on nothing goes wrong."""
        self._rate = 0.0

    def strikes(self, share: float = 1.0) -> bool:
        """Whether something goes wrong outside a request."""
        return self._dice.random() < self._rate * share

    def fate(self, method: str) -> Fate:
        if not self.strikes(1.0 if method == "tools/call" else PROTOCOL_SHARE):
            return Fate.FINE
        return self._dice.choices(self._fates, self._weights)[0]
