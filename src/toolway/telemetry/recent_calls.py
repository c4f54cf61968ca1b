"""Ring buffers of recently finished calls, from which operators list and inspect calls.

One buffer holds the newest calls. A second one holds the newest failed calls, so that many successful calls do not
displace them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from toolway.events import CallFinished, Event
from toolway.types import Json

MAX_CALLS: Final = 1000
MAX_FAILED_CALLS: Final = 500
MAX_ARGUMENT_CHARS: Final = 8192  # larger arguments are not stored
MAX_ARGUMENT_VALUES: Final = 200
MAX_TEXT_CHARS: Final = 2000  # of a name, which may be a URI, and of each text of an error; the rest is cut off
_TEXTS: Final = ("name", "tool", "message", "detail", "hint")


class CallQuery(msgspec.Struct, frozen=True):
    """Filter for recent calls: a call matches if it matches every field that is set."""

    server: str = ""
    tool: str = ""  # its name on the server
    caller: str | None = None
    outcome: str = ""  # ok, tool_error, cancelled, or a code
    failed: bool = False
    slow: float = 0.0  # minimum duration in seconds
    text: str = ""  # substring of the name, server, outcome, error or call id
    trace: str = ""

    def matches(self, event: CallFinished) -> bool:
        return (
            (not self.server or event.server == self.server)
            and (not self.tool or event.tool == self.tool)
            and (self.caller is None or event.caller == self.caller)
            and (not self.outcome or event.outcome == self.outcome)
            and (not self.failed or event.failed)
            and event.seconds >= self.slow
            and (not self.trace or event.trace_id == self.trace)
            and (not self.text or self._contains_text(event))
        )

    def _contains_text(self, event: CallFinished) -> bool:
        needle = self.text.lower()
        return any(
            needle in each.lower() for each in (event.name, event.server, event.outcome, event.message, event.id)
        )


class RecentCalls:
    """Event sink that stores the newest finished calls, and separately the newest failed ones.

    The `on_added` callbacks get each stored call, for a live view.
    """

    wants_attempts = False

    def __init__(self, max_calls: int = MAX_CALLS, max_failed: int = MAX_FAILED_CALLS) -> None:
        self._all: deque[CallFinished] = deque(maxlen=max_calls)
        self._failed: deque[CallFinished] = deque(maxlen=max_failed)
        self.count = 0  # of all calls that ever ended
        self.on_added: tuple[Callable[[CallFinished], None], ...] = ()

    def on_call(self, event: CallFinished) -> None:
        if event.params is not None and not is_small(event.params):
            event = replace(event, params=None)
        if (
            len(event.name) + len(event.tool) + len(event.message) + len(event.detail) + len(event.hint)
            > MAX_TEXT_CHARS
        ):
            event = replace(event, **{field: _shorten(getattr(event, field)) for field in _TEXTS})
        self.count += 1
        self._all.append(event)
        if event.outcome != "ok":
            self._failed.append(event)
        for callback in self.on_added:
            callback(event)

    def on_event(self, event: Event) -> None:
        """Do nothing: only finished calls are stored, and the hub passes them to `on_call`."""

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

        Failed calls that are no longer in the buffer of all calls are last.
        """
        yield from reversed(self._all)
        oldest = self._all[0].started_at + self._all[0].seconds if self._all else 0.0
        yield from (event for event in reversed(self._failed) if event.started_at + event.seconds < oldest)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + "…"


def is_small(value: Any) -> bool:
    """Return True if the arguments of a call are small enough to be stored with the call.

    The limits are 8192 characters and 200 values in all.
    """
    chars_left, values_left, stack = MAX_ARGUMENT_CHARS, MAX_ARGUMENT_VALUES, [value]
    while stack:
        each = stack.pop()
        values_left -= 1
        if isinstance(each, str):
            chars_left -= len(each)
        elif isinstance(each, dict):
            if len(each) > values_left:
                return False
            stack += each.values()
            chars_left -= sum(map(len, each))
        elif isinstance(each, list):
            if len(each) > values_left:
                return False
            stack += each
        if chars_left < 0 or values_left < 0:
            return False
    return True


def call_to_json(event: CallFinished) -> Json:
    """Return a finished call as a JSON object for a list of calls, without its attempts.

    Error texts are not masked: the code that calls this must hide secrets in them.
    """
    return {
        "id": event.id,
        "at": event.started_at,
        "server": event.server,
        "tool": event.tool,
        "name": event.name,
        "method": event.method,
        "outcome": event.outcome,
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
            "certainty": each.certainty.code,
            "phases": [{"name": phase.name, "began": phase.offset, "seconds": phase.seconds} for phase in each.phases],
        }
        for each in event.attempt_timings
    ]
    return {**call_to_json(event), "attempt_details": attempts}
