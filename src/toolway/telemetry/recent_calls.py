"""Ring buffers of recently finished calls, from which administrators list and inspect calls.

One buffer holds the newest calls, and a second one the newest failed calls, so many successful calls cannot displace
them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from toolway.events import CallFinished
from toolway.outcomes import OK_CODE, error_code
from toolway.types import Json

MAX_CALLS: Final = 1000
MAX_FAILED_CALLS: Final = 500


class CallQuery(msgspec.Struct, frozen=True):
    """Filter for recent calls: a call matches if it matches every field that is set."""

    server: str = ""
    tool: str = ""  # its name on the server
    caller: str | None = None
    outcome: str = ""  # ok, tool error, not run, unknown, waiting, or the code of an error
    failed: bool = False
    slow: float = 0.0  # minimum duration in seconds
    text: str = ""  # substring of the name, server, outcome, error or call id
    trace: str = ""

    def matches(self, event: CallFinished) -> bool:
        return (
            (not self.server or event.server == self.server)
            and (not self.tool or event.tool == self.tool)
            and (self.caller is None or event.caller == self.caller)
            and (not self.outcome or self.outcome in (event.outcome, event.code))
            and (not self.failed or event.failed)
            and event.seconds >= self.slow
            and (not self.trace or event.trace_id == self.trace)
            and (not self.text or self._contains_text(event))
        )

    def _contains_text(self, event: CallFinished) -> bool:
        needle = self.text.lower()
        return any(
            needle in each.lower()
            for each in (event.name, event.server, event.outcome, event.code, event.message, event.id)
        )


class RecentCalls:
    """The newest finished calls, and separately the newest failed ones."""

    def __init__(self, max_calls: int = MAX_CALLS, max_failed: int = MAX_FAILED_CALLS) -> None:
        self._all: deque[CallFinished] = deque(maxlen=max_calls)
        self._failed: deque[CallFinished] = deque(maxlen=max_failed)
        self.count = 0  # of all calls that ever ended

    def on_calls(self, calls: Sequence[CallFinished]) -> None:
        """Store finished calls. Their arguments and strings were limited before (`limit_size`)."""
        self.count += len(calls)
        self._all.extend(calls)
        self._failed.extend([event for event in calls if event.code != OK_CODE and event.failed])

    def add_reported(self, calls: Sequence[CallFinished], count: int) -> None:
        """Add finished calls that another worker process of the gateway reported.

        `count` is their number, of which only those in `calls` are known in detail.
        """
        self.on_calls(calls)
        self.count += count - len(calls)

    def find(self, call_id: str) -> CallFinished | None:
        return next((event for event in self._newest_first() if event.id == call_id), None)

    def find_newest(self, query: CallQuery | None = None, limit: int = 100) -> list[CallFinished]:
        """Return at most `limit` stored calls that match `query`, newest first."""
        query = query if query is not None else CallQuery()
        found: list[CallFinished] = []
        for event in self._newest_first():
            if len(found) >= limit:
                break
            if query.matches(event):
                found.append(event)
        return found

    def _newest_first(self) -> Iterator[CallFinished]:
        """Yield all stored calls, newest first.

        Failed calls that are no longer in the buffer of all calls come last.
        """
        yield from reversed(self._all)
        oldest = self._all[0].started_at + self._all[0].seconds if self._all else 0.0
        yield from (event for event in reversed(self._failed) if event.started_at + event.seconds < oldest)


def call_to_json(event: CallFinished) -> Json:
    """Return a finished call as a JSON object for a list of calls, without its attempts.

    Error messages are not masked, so the caller of this function must hide secrets in them.
    """
    return {
        "id": event.id,
        "at": event.started_at,
        "server": event.server,
        "tool": event.tool,
        "name": event.name,
        "method": event.method,
        "outcome": event.outcome,
        "failed": event.failed,
        "code": error_code(event.code),
        "executed": event.executed,
        "certainty": event.certainty.code,
        "effect": event.effect,
        "seconds": event.seconds,
        "attempts": event.attempts,
        "caller": event.caller,
        "trace": event.trace_id,
        "source": event.source,
        "message": event.message,
        "detail": event.detail,
        "hint": event.hint,
    }


def call_details_to_json(event: CallFinished) -> Json:
    """Return a finished call as a JSON object with the phases of every attempt.

    Arguments are left out. Times are in seconds since the arrival of the call.
    """
    attempts = [
        {
            "number": each.number,
            "began": each.offset,
            "seconds": each.seconds,
            "outcome": each.outcome,
            "code": error_code(each.code),
            "certainty": each.certainty.code,
            "phases": [{"name": phase.name, "began": phase.offset, "seconds": phase.seconds} for phase in each.phases],
        }
        for each in event.attempt_timings
    ]
    return {**call_to_json(event), "attempt_details": attempts}
