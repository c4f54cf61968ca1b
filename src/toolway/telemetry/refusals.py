"""Counts a caller's repeated rejections instead of logging each, so a client cannot fill a log with them.

The first `FIRST_REFUSALS` rejections for a caller and reason are reported one by one. Later ones are counted, and the
count is reported every `INTERVAL_S` seconds and at the end, so it includes every rejection. After an interval without
such a rejection, the next ones are reported one by one again.

    1.0 s   caller k1   E-DENIED bank.pay                          ten of these
    9.0 s   caller k1   990 times: E-DENIED bank.pay 985, E-NOT-FOUND x.y 5
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from toolway.events import CallFinished
from toolway.outcomes import error_code

FIRST_REFUSALS: Final = 10  # of one caller and reason that are reported one by one
INTERVAL_S: Final = 10.0
MAX_CALLERS: Final = 1_000  # any more share one count
MAX_NAMES: Final = 20  # different reasons and tools in one count; the rest has one name
OTHER: Final = "…"
_MAX_NAME_CHARS: Final = 100


@dataclass(frozen=True, slots=True)
class RejectedCalls:
    """How many of one caller's calls were rejected in an interval, by reason and tool."""

    caller: str
    count: int
    names: dict[str, int]  # such as `E-DENIED bank.pay`
    seconds: float


@dataclass(slots=True)
class _Caller:
    seen: Counter[str] = field(default_factory=Counter)  # reason → refusals that were reported one by one
    counted: Counter[str] = field(default_factory=Counter)  # reason and tool → refusals since the last report


def is_rejected(event: CallFinished) -> bool:
    """Return True if a call ended before anything was sent: it was denied, unknown, invalid, or over a limit."""
    return event.executed == "no" and not event.attempts and error_code(event.code) != ""


class RefusalCounter:
    """Decides which rejected calls are reported individually, and counts the rest."""

    def __init__(self, report: Callable[[RejectedCalls], None], now: Callable[[], float] = time.monotonic) -> None:
        """Create the counter. `report` gets each caller's count at the end of an interval."""
        self._report = report
        self._now = now
        self._callers: dict[str, _Caller] = {}
        self._began = 0.0  # time at which the interval began
        self._timer: asyncio.TimerHandle | None = None

    def admits(self, caller: str, reason: str, tool: str = "") -> bool:
        """Return True if a rejection should be reported on its own. Otherwise, count it."""
        now = self._now()
        if not self._callers:
            self._began = now
        elif now - self._began >= INTERVAL_S:
            self.flush()
        found = self._callers.get(caller)
        if found is None:
            key = caller if len(self._callers) < MAX_CALLERS else OTHER
            found = self._callers.setdefault(key, _Caller())
        seen = reason if reason in found.seen or len(found.seen) < MAX_NAMES else OTHER
        if found.seen[seen] < FIRST_REFUSALS:
            found.seen[seen] += 1
            return True
        name = f"{reason} {tool[:_MAX_NAME_CHARS]}".rstrip()
        found.counted[name if name in found.counted or len(found.counted) < MAX_NAMES else OTHER] += 1
        self._start_timer(INTERVAL_S - (now - self._began))
        return False

    def flush(self) -> None:
        """Report all counts and start the next interval."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._now()
        seconds, self._began = now - self._began, now
        counted = {caller: found for caller, found in self._callers.items() if found.counted}
        self._callers = counted
        for caller, found in counted.items():
            names, found.counted = found.counted, Counter()
            self._report(RejectedCalls(caller, names.total(), dict(names), round(seconds, 1)))

    def _start_timer(self, delay: float) -> None:
        if self._timer is not None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # the next refusal, or the end, reports the counts
        self._timer = loop.call_later(max(0.0, delay), self.flush)
