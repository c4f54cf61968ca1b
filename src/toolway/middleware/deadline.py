"""Deadline middleware: one time budget for the whole rest of the chain.

Time that the server waits for the caller's answer to a server request does not count. On expiry, the call state
determines if the error is "not sent" or "may have been executed".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from types import TracebackType
from typing import Final

from msgspec.structs import replace

from toolway.config.schema import MAX_TIMEOUT_S
from toolway.errors import CallTimeout
from toolway.types import Call, CallHandler, CallResult, Middleware

MIN_TIME_LEFT_S: Final = 0.05  # seconds; a call with less time left is not started

PausedSeconds = Callable[[float], float]  # loop time -> seconds until then that do not count


def deadline(timeout_for: Callable[[Call], float], now: Callable[[], float]) -> Middleware:
    """Return middleware that cancels a call at its deadline and raises `CallTimeout`.

    `timeout_for` returns the timeout of a call in seconds.
    """
    timers = Timers()

    async def middleware(call: Call, next: CallHandler) -> CallResult:
        seconds = min(timeout_for(call), MAX_TIMEOUT_S)
        if seconds < MIN_TIME_LEFT_S:
            raise _timed_out(call, seconds)
        call = replace(call, deadline=now() + seconds)
        try:
            with timers.start(call.deadline, call.state.user_wait_seconds):
                return await next(call)
        except TimeoutError:
            raise _timed_out(call, seconds) from None

    return middleware


def _timed_out(call: Call, seconds: float) -> CallTimeout:
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
        f"{call.server}.{call.name} took longer than {seconds:g} s",
        phase=attempt.current_phase,
        server=call.server,
        tool=call.name,
        certainty=attempt.overall_certainty(),
        attempts=attempt.attempts,
        detail=phase_text,
        hint="raise the timeout with timeout=…, or check the server",
    )


# -- timers ------------------------------------------------------------------------------------------------------------

MAX_CANCELLED: Final = 100  # cancelled timers that may stay in the heap, regardless of their share


class Timer:
    """Context manager that raises `TimeoutError` if the timer expires before its work is done.

    It cancels the work of its task at the deadline, like `asyncio.timeout_at`.
    """

    __slots__ = ("_cancelling", "_granted_seconds", "_paused_seconds", "_timers", "expired", "task")

    def __init__(self, timers: Timers, task: asyncio.Task[object], paused_seconds: PausedSeconds | None) -> None:
        self._timers = timers
        self._cancelling = task.cancelling()
        self.task: asyncio.Task[object] | None = task  # to be cancelled; None when its work is done
        self.expired = False
        self._paused_seconds = paused_seconds
        self._granted_seconds = 0.0

    def extra_time(self, now: float) -> float:
        """Return the paused seconds by which the timer was not extended yet; count them as granted."""
        if self._paused_seconds is None:
            return 0.0
        extra = self._paused_seconds(now) - self._granted_seconds
        self._granted_seconds += extra
        return extra

    def __enter__(self) -> None:
        """Do nothing: the timer is already running."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        task, self.task = self.task, None
        if not self.expired:
            self._timers.count_cancelled()
        # If the task was also cancelled from elsewhere, that cancellation wins.
        elif task is not None and task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error


class Timers:
    """All timers of one event loop, in a heap with one loop timer.

    Nearly every timer is cancelled before it expires, so starting one must cost almost nothing; a loop timer per call
    costs more.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heap: list[tuple[float, int, Timer]] = []  # a heap; cancelled timers stay in it for a while
        self._serial = count()
        self._cancelled = 0  # cancelled timers in the heap
        self._loop_timer: asyncio.TimerHandle | None = None
        self._fires_at = 0.0

    def start(self, when: float, paused_seconds: PausedSeconds | None = None) -> Timer:
        """Start a timer for the loop time `when`; use it in a `with` statement at once.

        It expires later by the seconds that `paused_seconds` returns.
        """
        # Finding the running loop costs a system call, and it is nearly always the same loop.
        task = asyncio.current_task(self._loop) if self._loop is not None else None
        if task is None:
            task = self._switch_loop()
        timer = Timer(self, task, paused_seconds)
        heappush(self._heap, (when, next(self._serial), timer))
        if self._loop_timer is None or when < self._fires_at:
            self._schedule()
        return timer

    def __len__(self) -> int:
        return len(self._heap)

    def _switch_loop(self) -> asyncio.Task[object]:
        """Switch to the event loop of the running task; drop the timers of the previous, ended loop."""
        task = asyncio.current_task()
        assert task is not None, "only a task can be cancelled"
        self._loop, self._heap, self._cancelled, self._loop_timer = task.get_loop(), [], 0, None
        return task

    def count_cancelled(self) -> None:
        """Count a timer that ended before it expired; rebuild the heap if it holds too many of them."""
        self._cancelled += 1
        if self._cancelled > MAX_CANCELLED and 2 * self._cancelled > len(self._heap):
            self._heap = [each for each in self._heap if each[2].task is not None]
            heapify(self._heap)
            self._cancelled = 0

    def _schedule(self) -> None:
        """Schedule the single event-loop timer for the earliest expiry in the heap."""
        if self._loop_timer is not None:
            self._loop_timer.cancel()
            self._loop_timer = None
        if self._heap and self._loop is not None:
            self._fires_at = self._heap[0][0]
            self._loop_timer = self._loop.call_at(self._fires_at, self._fire)

    def _fire(self) -> None:
        assert self._loop is not None
        now = max(self._fires_at, self._loop.time())
        while self._heap and self._heap[0][0] <= now:
            timer = heappop(self._heap)[2]
            if timer.task is None:
                self._cancelled -= 1
            elif (extra := timer.extra_time(now)) > 0:
                heappush(self._heap, (now + extra, next(self._serial), timer))
            else:
                timer.expired = True
                timer.task.cancel()
        self._loop_timer = None
        self._schedule()
