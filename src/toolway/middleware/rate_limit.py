"""Rate limit middleware: limits how many calls a server, or one of its tools, gets in a period.

`rateLimit: "100/day"` means at most 100 calls in any 24 hours, counted from each call. Every attempt counts. A call
waits for its turn if that comes before its deadline. Otherwise it is rejected at once, with the time when a call is
possible again. Counts are kept in memory, so restarting the process resets them. In a cluster, the node that runs the
server counts all nodes' calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from toolway.config.schema import Rate
from toolway.errors import Certainty, Overloaded
from toolway.types import Call, CallHandler, CallResult

MAX_ENTRIES: Final = 1000  # times kept per window; with a higher rate, several calls share one
MAX_WINDOWS: Final = 10_000  # windows of servers and tools
RATE_LIMIT_CODE: Final = "E-RATE-LIMIT"
RateLimits: TypeAlias = Sequence[tuple[str, str]]  # (tool or "", rate) for each limit of a call


class RateWindow:
    """Times of recent calls under one rate limit. No I/O: the time is an argument.

    In any period, there are at most `rate.calls` calls. A call that reserved a time and was then cancelled counts
    too.
    """

    __slots__ = ("_batch_ends", "_batch_size", "_in_batch", "_last", "rate")

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._batch_size = -(-rate.calls // MAX_ENTRIES)  # calls that share one time: the time of the last call
        self._batch_ends: deque[float] = deque(maxlen=rate.calls // self._batch_size)
        self._in_batch = 0
        self._last = float("-inf")

    def next_time(self, now: float) -> float:
        """Return the earliest time at which the rate limit allows another call, after all calls reserved so far."""
        at = max(now, self._last)
        if not self._in_batch and len(self._batch_ends) == self._batch_ends.maxlen:
            at = max(at, self._batch_ends[0] + self.rate.period_s)
        return at

    def reserve(self, now: float) -> float:
        """Reserve the next time at which the rate limit allows a call, and return that time."""
        self._last = at = self.next_time(now)
        self._in_batch += 1
        if self._in_batch == self._batch_size:
            self._batch_ends.append(at)
            self._in_batch = 0
        return at


class RateWindows:
    """Rate-limit windows (`RateWindow`) of all servers and tools that have a rate limit."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, str], RateWindow] = {}

    def get(self, server: str, tool: str, limit: str) -> RateWindow:
        """Return the rate-limit window (times of recent calls) of a tool, or of the whole server if `tool` is ""."""
        found = self._windows.get((server, tool))
        if found is None or str(found.rate) != limit:
            if len(self._windows) >= MAX_WINDOWS:
                self._windows.pop(next(iter(self._windows)))
            found = self._windows[server, tool] = RateWindow(Rate.parse(limit))
        return found


def are_free(windows: Sequence[RateWindow], now: float) -> bool:
    """Return True if all these rate limits allow a call now. To make the call, `reserve` a time in each window."""
    return all(window.next_time(now) <= now for window in windows)


def rate_limit(
    limits_for: Callable[[Call], RateLimits],
    now: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
    describe_time: Callable[[float], str],
) -> RateLimitMiddleware:
    """Return middleware that delays or rejects calls to keep the rate limits of servers and tools.

    `limits_for` returns (tool or "", rate) for each limit on a call. `describe_time` returns, as a string, the time
    of day that is a number of seconds ahead.
    """
    return RateLimitMiddleware(limits_for, now, sleep, describe_time)


class RateLimitMiddleware:
    """Middleware that keeps calls within the rate limits of servers and tools; `rate_limit` creates it."""

    def __init__(
        self,
        limits_for: Callable[[Call], RateLimits],
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        describe_time: Callable[[float], str],
    ) -> None:
        self._limits_for = limits_for
        self._now = now
        self._sleep = sleep
        self._describe_time = describe_time
        self._windows = RateWindows()

    def __call__(self, call: Call, next: CallHandler) -> Awaitable[CallResult]:
        limits = self._limits_for(call)
        if not limits:
            return next(call)
        windows, now = self.windows(call.server, limits), self._now()
        if not are_free(windows, now):
            return self._wait(call, next, limits, windows)
        for window in windows:
            window.reserve(now)
        return next(call)

    def windows(self, server: str, limits: RateLimits) -> list[RateWindow]:
        """Return the rate-limit windows (times of recent calls) for these limits of a server.

        Do not store them: an unused window may be replaced by a new one.
        """
        return [self._windows.get(server, tool, limit) for tool, limit in limits]

    async def _wait(self, call: Call, next: CallHandler, limits: RateLimits, windows: list[RateWindow]) -> CallResult:
        """Wait until all rate limits allow the call. Raises `Overloaded` at once if its deadline comes first."""
        now = self._now
        for (tool, _), window in zip(limits, windows, strict=True):
            wait = window.next_time(now()) - now()
            if wait > call.deadline - now():
                raise _rate_error(call, tool, window.rate, wait, self._describe_time(wait))
        for window in windows:
            wait = window.reserve(now()) - now()
            if wait > 0:
                call.state.phase = "pause"
                await self._sleep(wait)
        return await next(call)


def _rate_error(call: Call, tool: str, rate: Rate, wait: float, until: str) -> Overloaded:
    subject, key = (f"{call.server}.{tool}", f"tools.{tool}.rateLimit") if tool else (call.server, "rateLimit")
    error = Overloaded(
        f"the rate limit for {subject} is used up until {until}",
        server=call.server,
        tool=call.name,
        certainty=Certainty.NOT_SENT,
        retry_after=wait,
        detail=f"{key} is {rate}; the next call is possible in {wait:.0f} s",
        hint=f"try again at {until}, or raise {key} in the entry of {call.server}",
        code=RATE_LIMIT_CODE,
    )
    error.retryable = False  # it would be rejected again
    return error
