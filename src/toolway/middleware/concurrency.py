"""Concurrency middleware: limits the concurrent calls to each server, with a bounded, fair queue.

A slot is held only while an attempt is running. The queue is FIFO per caller. A slot that becomes free goes to the
queued caller that holds the fewest slots; callers that hold equally many take turns.

A call in flight cannot be stopped, so slots must be left for callers that come later. A caller may hold four times as
many slots as are free. A single caller thus gets at most four fifths of all slots, the next caller four fifths of the
rest, and so on, which means that a newcomer gets a slot at once or the next one. The caller "", which is the hub's
owner, may hold all slots while no other caller is waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from toolway.config.schema import Limits
from toolway.errors import CallError, Certainty, Overloaded
from toolway.middleware.rate_limit import RATE_LIMIT_CODE
from toolway.types import Call, CallHandler, CallResult

MAX_HELD_PER_FREE: Final = 4  # slots that one caller may hold for each slot that is free
MIN_HELD: Final = 3  # slots of a small limit that one caller may hold, even if none is left
MAX_PAUSE_S: Final = 86_400.0  # seconds; a longer pause requested by a server is cut to this
MIN_PAUSE_CHANGE_S: Final = 1.0  # seconds by which a pause must grow to be reported again
PAUSE_CODE: Final = "E-RETRY-AFTER"


class _Evicted(Exception):
    """Raised in a queued call that lost its place to a caller with fewer queued calls."""


class ConcurrencyLimiter:
    """Concurrency slots of one server, with a bounded queue that is fair between callers."""

    def __init__(self, limits: Limits) -> None:
        self.capacity = limits.max_concurrent
        self._free = limits.max_concurrent
        self._max_queue = limits.max_queued
        self._in_use_by: dict[str, int] = {}
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}  # by caller; of equal callers, the first is next
        self.queued = 0
        self.paused_until = 0.0  # the server requested a pause

    @property
    def in_use(self) -> int:
        return self.capacity - self._free

    @property
    def max_queue(self) -> int:
        """Return how many calls may wait in the queue for a slot of the server."""
        return self._max_queue

    def is_paused(self, now: Callable[[], float]) -> bool:
        """Return True if the server asked for a pause that has not ended."""
        return self.paused_until > 0 and self.paused_until > now()

    def acquire_nowait(self, caller: str = "") -> bool:
        """Acquire a concurrency slot without waiting. Return False if none is free for this caller.

        Also return False if the caller has queued calls, because one of them would get the slot first.
        """
        held = self._in_use_by.get(caller, 0)
        if not self._may_take(caller, held) or (self.queued and caller in self._queues):
            return False
        self._free -= 1
        self._in_use_by[caller] = held + 1
        return True

    def _may_take(self, caller: str, held: int) -> bool:
        """Return True if a slot is free for a caller that holds `held` slots."""
        free = self._free
        if free <= 0:
            return False
        if not caller and self.queued == len(self._queues.get("", ())):
            return True  # the owner of the hub, and no other caller waits
        if free == 1 and held >= max(MIN_HELD, self.capacity // 2):
            return False  # the last slot is for a caller that holds few
        return held < MAX_HELD_PER_FREE * free

    async def acquire(self, caller: str = "") -> bool:
        """Acquire a concurrency slot (the right to run one call); wait in the queue if necessary.

        Return False if the queue is full, or if a caller with fewer queued calls evicts this call from it.
        """
        if self.acquire_nowait(caller):
            return True
        if self.queued >= self._max_queue and not self._evict_from_longest(caller):
            return False
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(caller, deque()).append(waiter)
        self.queued += 1
        self._grant()
        try:
            await waiter
        except _Evicted:
            return False
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                if waiter.exception() is None:
                    self.release(caller)  # the slot was granted just as the caller was cancelled
            else:
                self._remove_waiter(caller, waiter)
            raise
        return True

    def _evict_from_longest(self, caller: str) -> bool:
        """Evict the last call of the caller with the longest queue, to make room for `caller`.

        Return False, and evict nothing, unless `caller` has at least two queued calls fewer than that caller.
        """
        longest = max(self._queues, key=lambda each: len(self._queues[each]), default=caller)
        if len(self._queues.get(longest, ())) <= len(self._queues.get(caller, ())) + 1:
            return False
        last = self._queues[longest][-1]
        self._remove_waiter(longest, last)
        if not last.done():
            last.set_exception(_Evicted())
        return True

    def release(self, caller: str = "") -> None:
        if self._in_use_by[caller] > 1:
            self._in_use_by[caller] -= 1
        else:
            del self._in_use_by[caller]
        self._free += 1
        if self.queued:
            self._grant()

    def _grant(self) -> None:
        while self.queued and (caller := self._next_caller()) is not None:
            queue = self._queues.pop(caller)
            waiter = queue.popleft()
            if queue:
                self._queues[caller] = queue  # to the end of the round-robin order
            self.queued -= 1
            if waiter.done():
                continue  # the waiter was cancelled and is not removed yet
            self._free -= 1
            self._in_use_by[caller] = self._in_use_by.get(caller, 0) + 1
            waiter.set_result(None)

    def _next_caller(self) -> str | None:
        """Return the queued caller that gets the next slot (the one holding fewest), or None."""
        if self._free <= 0:
            return None
        held = self._in_use_by
        allowed = [caller for caller in self._queues if self._may_take(caller, held.get(caller, 0))]
        return min(allowed, key=lambda caller: held.get(caller, 0), default=None)

    def _remove_waiter(self, caller: str, waiter: asyncio.Future[None]) -> None:
        queue = self._queues.get(caller, deque())
        if waiter not in queue:
            return
        queue.remove(waiter)
        if not queue:
            del self._queues[caller]
        self.queued -= 1
        if self.queued:
            self._grant()  # the owner of the hub may have waited for this caller


def concurrency(
    limiter_for: Callable[[str], ConcurrencyLimiter],
    queue_timeout_for: Callable[[str], float],
    now: Callable[[], float],
    describe_time: Callable[[float], str] = lambda seconds: f"in {seconds:.0f} s",
    on_pause: Callable[[str, float], None] = lambda *_: None,
) -> ConcurrencyMiddleware:
    """Return middleware that limits the concurrent calls to each server.

    `queue_timeout_for` returns how many seconds a call may wait for a slot; after that it fails with `Overloaded`. If
    a server requests a pause (`Retry-After`), it gets no calls until the pause is over, and `on_pause` is called with
    its name and the seconds. `describe_time` returns, as text, the time of day that is a number of seconds ahead.
    """

    return ConcurrencyMiddleware(limiter_for, queue_timeout_for, now, describe_time, on_pause)


class ConcurrencyMiddleware:
    """Middleware that limits the concurrent calls to each server; `concurrency` creates it."""

    def __init__(
        self,
        limiter_for: Callable[[str], ConcurrencyLimiter],
        queue_timeout_for: Callable[[str], float],
        now: Callable[[], float],
        describe_time: Callable[[float], str],
        on_pause: Callable[[str, float], None],
    ) -> None:
        self._limiter_for = limiter_for
        self._queue_timeout_for = queue_timeout_for
        self._now = now
        self._describe_time = describe_time
        self._on_pause = on_pause

    async def __call__(self, call: Call, next: CallHandler) -> CallResult:
        limiter, queue_timeout_for = self._limiter_for(call.server), self._queue_timeout_for
        if limiter.is_paused(self._now):
            await _wait_out_pause(call, limiter, queue_timeout_for(call.server), self._now, self._describe_time)
        if not limiter.acquire_nowait(call.caller):
            await _wait_for_slot(call, limiter, queue_timeout_for(call.server))
        return await self.resume(call, next, limiter)

    async def resume(self, call: Call, next: CallHandler, limiter: ConcurrencyLimiter) -> CallResult:
        """Await a call attempt that was sent before its call entered the middleware chain.

        The attempt holds one of the slots of `limiter`, which is released when the attempt ends.
        """
        now, attempt = self._now, call.state
        attempt.on_release_slot = partial(limiter.release, call.caller)
        try:
            return await next(call)
        except CallError as exc:
            if exc.retry_after is not None and isinstance(exc, Overloaded) and exc.code != RATE_LIMIT_CODE:
                pause, left = min(exc.retry_after, MAX_PAUSE_S), limiter.paused_until - now()
                if pause > left:
                    limiter.paused_until = now() + pause
                if pause > left + MIN_PAUSE_CHANGE_S:
                    self._on_pause(call.server, pause)
            raise
        finally:
            attempt.release_slot()  # unless it was already released while the caller answered a server request


async def _wait_for_slot(call: Call, limiter: ConcurrencyLimiter, queue_timeout: float) -> None:
    try:
        async with asyncio.timeout(queue_timeout):
            if not await limiter.acquire(call.caller):
                raise _overloaded(call, "the queue is full")
    except TimeoutError:
        raise _overloaded(call, f"no slot became free in {queue_timeout:g} s") from None


async def _wait_out_pause(
    call: Call,
    limiter: ConcurrencyLimiter,
    queue_timeout: float,
    now: Callable[[], float],
    describe_time: Callable[[float], str],
) -> None:
    """Wait until the pause that the server requested is over.

    Raises `Overloaded` at once if the pause is longer than the queue timeout or the time left until the deadline.
    """
    left = limiter.paused_until - now()
    if left > min(queue_timeout, call.deadline - now()):
        raise _paused_error(call, left, describe_time(left))
    call.state.phase = "pause"
    try:
        async with asyncio.timeout(left):
            await asyncio.Event().wait()
    except TimeoutError:
        return


def _paused_error(call: Call, left: float, until: str) -> Overloaded:
    error = Overloaded(
        f"{call.server} asked us to pause until {until}",
        server=call.server,
        tool=call.name,
        certainty=Certainty.NOT_SENT,
        retry_after=left,
        detail=f"its Retry-After ends in {left:.0f} s; Toolway sends nothing before then",
        hint=f'try again at {until}; to stay below its limit, set "rateLimit" in the entry of {call.server}',
        code=PAUSE_CODE,
    )
    error.retryable = False  # the caller decides better if and when to retry
    return error


def _overloaded(call: Call, evidence: str) -> Overloaded:
    error = Overloaded(
        f"too many concurrent calls to {call.server}",
        server=call.server,
        tool=call.name,
        certainty=Certainty.NOT_SENT,
        detail=evidence,
        hint='make fewer concurrent calls, or raise "limits": {"maxConcurrent": …} in its entry',
    )
    error.retryable = False  # the caller decides better if and when to retry
    return error
