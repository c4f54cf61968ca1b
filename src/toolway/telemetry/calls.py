"""The last calls that ended, for people who ask what just happened.

Bounded: the newest of all, and the newest of those that failed, which a flood of good ones does not push out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from toolway.events import CallFinished, Event
from toolway.model import Json

MOST: Final = 1000  # calls
MOST_FAILED: Final = 500
LIGHT: Final = 8192  # characters of arguments that are kept
VALUES: Final = 200  # values in them


class Wanted(msgspec.Struct, frozen=True):
    """Which calls somebody asks for."""

    server: str = ""
    tool: str = ""  # as the server knows it
    caller: str | None = None
    outcome: str = ""  # ok, tool_error, cancelled, or a code
    failed: bool = False
    slow: float = 0.0  # seconds at least
    text: str = ""  # somewhere in the name, the outcome or the error
    trace: str = ""

    def fits(self, fact: CallFinished) -> bool:
        return (
            (not self.server or fact.server == self.server)
            and (not self.tool or fact.tool == self.tool)
            and (self.caller is None or fact.caller == self.caller)
            and (not self.outcome or fact.outcome == self.outcome)
            and (not self.failed or fact.failed)
            and fact.seconds >= self.slow
            and (not self.trace or fact.trace == self.trace)
            and (not self.text or self._has_text(fact))
        )

    def _has_text(self, fact: CallFinished) -> bool:
        wanted = self.text.lower()
        return any(wanted in each.lower() for each in (fact.name, fact.server, fact.outcome, fact.what, fact.id))


class RecentCalls:
    """A sink of facts. `on_new` hears of each call that is kept, for a live view."""

    wants_steps = False

    def __init__(self, most: int = MOST, most_failed: int = MOST_FAILED) -> None:
        self._all: deque[CallFinished] = deque(maxlen=most)
        self._failed: deque[CallFinished] = deque(maxlen=most_failed)
        self.count = 0  # of all that ever ended
        self.on_new: tuple[Callable[[CallFinished], None], ...] = ()

    def on_call(self, fact: CallFinished) -> None:
        if fact.params is not None and not is_light(fact.params):
            fact = replace(fact, params=None)
        self.count += 1
        self._all.append(fact)
        if fact.outcome != "ok":
            self._failed.append(fact)
        for hear in self.on_new:
            hear(fact)

    def on_event(self, fact: Event) -> None:
        """Only ends of calls are kept."""

    def find(self, id_: str) -> CallFinished | None:
        return next((fact for fact in self._newest() if fact.id == id_), None)

    def newest(self, wanted: Wanted | None = None, limit: int = 100) -> list[CallFinished]:
        """Those that fit, the newest first."""
        wanted = wanted if wanted is not None else Wanted()
        found: list[CallFinished] = []
        for fact in self._newest():
            if len(found) >= limit:
                break
            if wanted.fits(fact):
                found.append(fact)
        return found

    def _newest(self) -> Iterator[CallFinished]:
        """All that are kept; the failed ones that are older than the others come last."""
        yield from reversed(self._all)
        oldest = self._all[0].at + self._all[0].seconds if self._all else 0.0
        yield from (fact for fact in reversed(self._failed) if fact.at + fact.seconds < oldest)


def is_light(value: Any) -> bool:
    """Whether arguments are small enough to be kept."""
    left, values, stack = LIGHT, VALUES, [value]
    while stack:
        each = stack.pop()
        values -= 1
        if isinstance(each, str):
            left -= len(each)
        elif isinstance(each, dict):
            if len(each) > values:
                return False
            stack += each.values()
            left -= sum(map(len, each))
        elif isinstance(each, list):
            if len(each) > values:
                return False
            stack += each
        if left < 0 or values < 0:
            return False
    return True


def summary(fact: CallFinished) -> Json:
    """One line of a list. The words of an error are not masked: whoever shows them does that."""
    return {
        "id": fact.id,
        "at": fact.at,
        "server": fact.server,
        "tool": fact.tool,
        "name": fact.name,
        "method": fact.method,
        "outcome": fact.outcome,
        "executed": fact.executed,
        "certainty": fact.certainty.name,
        "effect": fact.effect,
        "seconds": fact.seconds,
        "attempts": fact.attempts,
        "caller": fact.caller,
        "trace": fact.trace,
        "source": fact.source,
        "what": fact.what,
        "evidence": fact.evidence,
        "fix": fact.fix,
    }


def waterfall(fact: CallFinished) -> Json:
    """The same, with every try and where its time went; seconds count from when the call came. The arguments are not
    in it."""
    tries = [
        {
            "number": each.number,
            "began": each.began,
            "seconds": each.seconds,
            "outcome": each.outcome,
            "certainty": each.certainty.name,
            "phases": [{"name": phase.name, "began": phase.began, "seconds": phase.seconds} for phase in each.phases],
        }
        for each in fact.tries
    ]
    return {**summary(fact), "tries": tries}
