"""Finished calls that are waiting to be counted, because metrics and the dashboard get them in batches.

A call only appends its event to a list. The sinks get the list when it holds 30 calls, after a second, or before they
are read, for example by a scrape or a request from the dashboard.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from msgspec.structs import replace

from toolway.events import BatchSink, CallFinished

#: Few, because no other call is handled while they are counted: 100 take 0.2 ms and more, which one client sees as its
#: p99. Fewer than 30 would cost each call more.
MAX_CALLS: Final = 30
MAX_DELAY_S: Final = 1.0
MAX_ARGUMENT_CHARS: Final = 8192  # larger arguments are not kept
MAX_ARGUMENT_VALUES: Final = 200
MAX_TEXT_CHARS: Final = 2000  # of a name, which may be a URI, and of each text of an error; the rest is cut off
SMALL_REQUEST_BYTES: Final = 1024  # a request that is not longer has small arguments
_TEXTS: Final = ("name", "tool", "message", "detail", "hint")
_log = logging.getLogger(__name__)


class CallBatch:
    """A buffer of finished calls, which event sinks get in batches. Its number and size are limited."""

    def __init__(self) -> None:
        self.sinks: tuple[BatchSink, ...] = ()
        self._calls: list[CallFinished] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, event: CallFinished, *, is_small: bool = False) -> None:
        """Add a finished call. If `is_small` is False, large arguments are left out and long strings are cut first."""
        calls = self._calls
        calls.append(event if is_small else limit_size(event))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MAX_DELAY_S, self._on_timer)
        elif len(calls) >= MAX_CALLS:
            self.deliver()

    def deliver(self) -> None:
        """Deliver all waiting calls to the sinks, in the order the calls ended."""
        if not self._calls:
            return
        calls, self._calls = self._calls, []
        for sink in self.sinks:
            try:
                sink.on_calls(calls)
            except Exception:
                _log.exception("event sink failed")

    def close(self) -> None:
        """Deliver all waiting calls to the sinks, and stop the timer."""
        self.deliver()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None  # the next call starts it again
        self.deliver()


def limit_size(event: CallFinished) -> CallFinished:
    """Return a call's event without large arguments and with shortened strings, so many can be kept."""
    if event.params is not None and not is_small(event.params):
        event = replace(event, params=None)
    if len(event.name) + len(event.tool) + len(event.message) + len(event.detail) + len(event.hint) > MAX_TEXT_CHARS:
        event = replace(event, **{field: _shorten(getattr(event, field)) for field in _TEXTS})
    return event


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + "…"


def is_small(value: Any) -> bool:
    """Return True if the arguments of a call are small enough to be kept with the call.

    The limits are 8192 characters and 200 values in total.
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
            for name, inner in each.items():
                chars_left -= len(name)
                if type(inner) is str:
                    chars_left -= len(inner)
                    values_left -= 1
                else:
                    stack.append(inner)
        elif isinstance(each, list):
            if len(each) > values_left:
                return False
            stack += each
        if chars_left < 0 or values_left < 0:
            return False
    return True
