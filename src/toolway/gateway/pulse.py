"""How many calls each server had in the last half hour, how they ended and how long they took.

Counts by the minute, so that memory does not grow with the number of calls. Times are counted in classes that are a
quarter wider each, so a percentile is right to within an eighth. Pure: the time is handed in.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import Final

from toolway.model import Json

MINUTES: Final = 30
EDGES: Final = tuple(0.0001 * 1.25**step for step in range(72))  # seconds: 0.1 ms to 13 minutes


class _Minute:
    __slots__ = ("calls", "errors", "number", "times")

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls = 0
        self.errors = 0
        self.times: dict[int, int] = {}  # how many took a time of this class


class Pulse:
    """One server, or one tool."""

    def __init__(self) -> None:
        self._minutes: deque[_Minute] = deque(maxlen=MINUTES)

    def record(self, seconds: float, failed: bool, now: float) -> None:
        number = int(now // 60)
        if not self._minutes or self._minutes[-1].number != number:
            self._minutes.append(_Minute(number))
        minute = self._minutes[-1]
        minute.calls += 1
        minute.errors += failed
        place = bisect_left(EDGES, seconds)
        minute.times[place] = minute.times.get(place, 0) + 1

    def minutes(self, now: float) -> list[_Minute]:
        """Those that have not passed by."""
        oldest = int(now // 60) - MINUTES
        return [minute for minute in self._minutes if minute.number > oldest]


def summary(pulses: Iterable[Pulse], now: float) -> Json:
    """Several pulses taken together, as a person is told."""
    minutes = [minute for pulse in pulses for minute in pulse.minutes(now)]
    last = int(now // 60)
    calls, errors = [0] * MINUTES, [0] * MINUTES
    times = [0] * (len(EDGES) + 1)
    for minute in minutes:
        place = minute.number - last + MINUTES - 1
        if 0 <= place < MINUTES:
            calls[place] += minute.calls
            errors[place] += minute.errors
            for index, count in minute.times.items():
                times[index] += count
    return {
        "calls": sum(calls),
        "errors": sum(errors),
        "per_minute": calls,
        "errors_per_minute": errors,
        **{name: percentile(times, share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))},
    }


def percentile(times: list[int], share: float) -> float | None:
    """The middle of the class below which this share of the calls is; None where there was no call."""
    wanted, seen = share * sum(times), 0
    if not wanted:
        return None
    for index, count in enumerate(times):
        seen += count
        if seen >= wanted:
            upper = EDGES[min(index, len(EDGES) - 1)]
            return upper / 1.125
    return None
