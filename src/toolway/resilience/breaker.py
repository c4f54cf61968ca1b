"""Circuit breakers: a server or a tool that keeps failing is left alone for a while.

    closed ──(5 failures in a row, or half of 20 in 10 s)──▶ open ──(its time is over)──▶ half open
      ▲                                                       ▲                              │
      └──────────────(2 successes in a row)───────────────────┼──────────────────────────────┤
                                                              └───────────(a failure)────────┘

A person may open one from anywhere, and a closed one is opened by what another gateway found out. Pure: the time and
the dice are handed in. The table below is the machine; the class keeps the counts that raise its events.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from toolway.resilience.recent import Recent


class Position(enum.StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Happening(enum.StrEnum):
    TOO_MANY = "too many failures"
    TIME_OVER = "time over"
    FAILED = "trial failed"
    RECOVERED = "trials succeeded"
    TRIPPED = "opened by a person"
    HEARSAY = "opened by another gateway"


TRANSITIONS: Final[Mapping[Position, Mapping[Happening, Position]]] = {
    Position.CLOSED: {
        Happening.TOO_MANY: Position.OPEN,
        Happening.TRIPPED: Position.OPEN,
        Happening.HEARSAY: Position.OPEN,
    },
    Position.OPEN: {Happening.TIME_OVER: Position.HALF_OPEN, Happening.TRIPPED: Position.OPEN},
    Position.HALF_OPEN: {
        Happening.FAILED: Position.OPEN,
        Happening.RECOVERED: Position.CLOSED,
        Happening.TRIPPED: Position.OPEN,
    },
}


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    in_a_row: int = 5  # failures that open it
    share: float = 0.5  # or this share of failures
    among: int = 20  # among at least so many attempts
    window: float = 10.0  # in so many seconds
    pause: float = 5.0  # how long it stays open, the first time; then twice as long
    jitter: float = 0.2
    longest: float = 60.0
    forget: float = 300.0  # closed for so long, and the next pause is the first again
    trials: int = 2  # successes in a row that close it
    own_eyes: float = 1.0  # seconds after a success of our own in which what others say does not count


@dataclass(frozen=True, slots=True)
class BreakerFacts:
    """A breaker at one moment, for a person who looks."""

    position: Position
    wait: float  # seconds until it may be tried again
    in_a_row: int  # failures
    ended: int  # attempts within the window
    failures: int  # of those
    openings: int  # lately


class Breaker:
    def __init__(self, dice: Callable[[], float], policy: BreakerPolicy = BreakerPolicy()) -> None:  # noqa: B008  frozen
        self.position = Position.CLOSED
        self._policy = policy
        self._dice = dice
        self._recent = Recent(policy.window)
        self._in_a_row = 0
        self._openings = 0
        self._opens_until = 0.0
        self._closed_at = 0.0
        self._successes = 0
        self._trial = False  # one at a time

    def wait(self, now: float) -> float:
        """Seconds until an attempt may be made; 0 where it may be made now. In half open, `begin_trial` must follow."""
        if self.position is Position.OPEN and now >= self._opens_until:
            self._move(Happening.TIME_OVER)
            self._successes = 0
            self._trial = False
        if self.position is Position.OPEN:
            return self._opens_until - now
        if self.position is Position.HALF_OPEN and self._trial:
            return self._policy.pause / 10
        return 0.0

    def begin_trial(self) -> bool:
        """An attempt begins. Whether it is the trial that decides."""
        self._trial = self.position is Position.HALF_OPEN
        return self._trial

    def end_trial(self) -> None:
        """A trial ended without saying anything about the server."""
        self._trial = False

    def succeeded(self, now: float) -> None:
        self._trial = False
        self._in_a_row = 0
        if self.position is not Position.HALF_OPEN:
            self._recent.succeeded(now)
            return
        self._successes += 1
        if self._successes >= self._policy.trials:
            self._move(Happening.RECOVERED)
            self._closed_at = now
            self._recent.clear()

    def failed(self, now: float) -> None:
        self._trial = False
        if self.position is Position.HALF_OPEN:
            self._open(Happening.FAILED, now)
            return
        self._in_a_row += 1
        self._recent.failed(now)
        if self.position is Position.CLOSED and self._too_many(now):
            self._open(Happening.TOO_MANY, now)

    def trip(self, now: float) -> None:
        """Open it because a person says so, for the longest time that it is ever open."""
        self._move(Happening.TRIPPED)
        self._opens_until = now + self._policy.longest
        self._in_a_row = 0
        self._recent.clear()

    def told(self, wait: float, now: float) -> bool:
        """Another gateway has opened its own. Whether we leave it alone too: what we know ourselves counts more, so not
        where a call has just succeeded here, and not where we are finding out already."""
        if self.position is not Position.CLOSED:
            return False
        if not self._in_a_row and self._recent.last_success() > now - self._policy.own_eyes:
            return False
        self._move(Happening.HEARSAY)
        self._opens_until = now + min(max(wait, 0.0), self._policy.longest)
        self._in_a_row = 0
        self._recent.clear()
        return True

    def facts(self, now: float) -> BreakerFacts:
        ended, failures = self._recent.count(now)
        wait = max(0.0, self._opens_until - now) if self.position is Position.OPEN else 0.0
        return BreakerFacts(self.position, wait, self._in_a_row, ended, failures, self._openings)

    def _too_many(self, now: float) -> bool:
        policy = self._policy
        if self._in_a_row >= policy.in_a_row:
            return True
        ended, failures = self._recent.count(now)
        return ended >= policy.among and failures >= policy.share * ended

    def _open(self, why: Happening, now: float) -> None:
        policy = self._policy
        if why is Happening.TOO_MANY and now - self._closed_at >= policy.forget:
            self._openings = 0
        pause = policy.pause * 2.0 ** min(self._openings, 30)
        self._openings += 1
        self._opens_until = now + min(policy.longest, pause * (1 + policy.jitter * (2 * self._dice() - 1)))
        self._in_a_row = 0
        self._recent.clear()
        self._move(why)

    def _move(self, happening: Happening) -> None:
        self.position = TRANSITIONS[self.position][happening]
