"""Deadline middleware: one time budget for the whole rest of the middleware chain.

Time during which the server waits for the caller's answer to a server request does not count. Time during which the
gateway was not running counts, even before it read the request, because the client was waiting. When time runs out,
the call state decides whether the error says "not sent" or "may have run".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from toolway._async import Timers
from toolway.config.schema import MAX_TIMEOUT_S
from toolway.errors import CallTimeout
from toolway.types import Call, CallHandler, CallResult

PauseBefore = Callable[[float], float]

MIN_TIME_LEFT_S: Final = 0.05  # seconds; a call with less time left is not started


class DeadlineMiddleware:
    """Cancels a call at its deadline and raises `CallTimeout`.

    `timeout_for` returns a call's timeout in seconds. `pause_before` returns for how many seconds before a given time
    the event loop was not running.
    """

    def __init__(
        self, timeout_for: Callable[[Call], float], now: Callable[[], float], pause_before: PauseBefore
    ) -> None:
        self._timeout_for = timeout_for
        self._now = now
        self._pause_before = pause_before
        self._timers = Timers()

    async def __call__(self, call: Call, next: CallHandler) -> CallResult:
        seconds = min(self._timeout_for(call), MAX_TIMEOUT_S)
        left, now = seconds, self._now()
        if call.downstream is not None:  # a program that calls has not waited: it did not run either
            left -= self._pause_before(now)
        if left < MIN_TIME_LEFT_S:
            raise _not_started(call, seconds)
        call = replace(call, deadline=now + left)
        try:
            with self._timers.start(call.deadline, call.state.user_wait_seconds):
                return await next(call)
        except CallTimeout:
            raise  # of one attempt, or of another node
        except TimeoutError:
            raise _timed_out(call, seconds) from None

    def require_time(self, call: Call) -> None:
        """Raise `CallTimeout` if too little time is left to send the call."""
        if call.deadline - self._now() < MIN_TIME_LEFT_S:
            raise _not_started(call, min(self._timeout_for(call), MAX_TIMEOUT_S))

    async def resume(self, call: Call, began: float, next: CallHandler) -> CallResult:
        """Await a call whose request was sent before it entered the middleware chain, until its deadline.

        The deadline counts from the time `began`. Raises `CallTimeout` if it passes.
        """
        seconds = min(self._timeout_for(call), MAX_TIMEOUT_S)
        call = replace(call, deadline=began + seconds)
        try:
            with self._timers.start(call.deadline, call.state.user_wait_seconds):
                return await next(call)
        except CallTimeout:
            raise
        except TimeoutError:
            raise _timed_out(call, seconds) from None


def deadline(
    timeout_for: Callable[[Call], float], now: Callable[[], float], pause_before: PauseBefore = lambda _: 0.0
) -> DeadlineMiddleware:
    """Return middleware that cancels a call at its deadline."""
    return DeadlineMiddleware(timeout_for, now, pause_before)


def _not_started(call: Call, seconds: float) -> CallTimeout:
    return _timed_out(call, seconds, f"it was not started, because less than {MIN_TIME_LEFT_S:g} s were left")


def _timed_out(call: Call, seconds: float, detail: str = "") -> CallTimeout:
    attempt = call.state
    phase_text = {
        "queue": "it was still waiting for a free slot",
        "start": "the server was still starting",
        "pause": "the server had requested a pause",
        "turn": "it was queued: this server serves one caller at a time",
        "connect": "there was no connection to the server yet",
        "auth": "there was no credential for the server yet",
        "send": "it was still being sent",
        "server": "the server had not answered",
        "stream": "the server had started but not finished its answer",
        "caller": "the caller had not answered a server request",
        "retry": "it was waiting for the next attempt",
    }[attempt.current_phase]
    return CallTimeout(
        f"{call.server}.{call.name} timed out after {seconds:g} s",
        phase=attempt.current_phase,
        server=call.server,
        tool=call.name,
        certainty=attempt.overall_certainty(),
        attempts=attempt.attempts,
        detail=detail or phase_text,
        hint="allow more time (timeout=… in Python, --timeout in the terminal), or check the server",
    )
