"""Single-flight middleware: a caller's identical concurrent reads run only once.

This only applies to a tool that the administrator declared READ, or to a trusted server. A server's own hint is not
enough to share one call's result with another call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

from msgspec.structs import replace

from toolway.errors import Certainty
from toolway.types import Call, CallHandler, CallResult, CallState, Middleware

MAX_WAITERS: Final = 100  # callers of one shared call; any more make their own

CANCEL_GRACE_S: Final = 0.5  # seconds to wait for a cancelled call to end


def single_flight(key_for: Callable[[Call], Hashable | None]) -> Middleware:
    """Return middleware that executes identical concurrent calls once and shares the result.

    `key_for` returns the same key for identical calls, and None for a call that is never shared.
    """
    in_flight = InFlightCalls()

    def middleware(call: Call, next: CallHandler) -> Awaitable[CallResult]:
        key = key_for(call)
        return next(call) if key is None else run_shared(key, call, next)

    async def run_shared(key: Hashable, call: Call, next: CallHandler) -> CallResult:
        running = in_flight.get(key)
        if running is None or running.is_cancelling:
            # The leader has its own state, which survives if the first caller is cancelled.
            leader_call = replace(call, state=call.state.spawn())
            running = in_flight.start(key, lambda _: next(leader_call), leader_call.state)
        elif running.waiters > MAX_WAITERS:
            return await next(call)
        return await in_flight.join(running, call.state)

    return middleware


# -- calls shared by several callers -----------------------------------------------------------------------------------


class InFlightCall:
    """One running call whose result several callers may share, and the number of callers waiting for it."""

    work: asyncio.Future[CallResult]

    def __init__(self, attempt: CallState, label: str) -> None:
        self.attempt = attempt  # state of the running call
        self.label = label  # fingerprint of the call, for callers that want to join
        self.waiters = 0
        self.is_cancelling = False  # no caller waits any more: it is being cancelled and cannot be joined
        self._in_critical = False

    def cancel(self) -> None:
        """Cancel the shared call: at once, or at `end_critical` if it is in a section that must not be cancelled."""
        self.is_cancelling = True
        if not self._in_critical:
            self.work.cancel()

    def begin_critical(self) -> None:
        """Enter a section that must not be cancelled; a cancellation takes effect at `end_critical`."""
        self._in_critical = True

    def end_critical(self) -> None:
        """Leave the critical section. Raises `CancelledError` if the call was cancelled while waiting."""
        self._in_critical = False
        if self.is_cancelling:
            raise asyncio.CancelledError


class InFlightCalls:
    """Running calls that callers may share, by key. A call is cancelled if its last waiting caller is cancelled."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, InFlightCall] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def get(self, key: Hashable) -> InFlightCall | None:
        return self._calls.get(key)

    def start(
        self, key: Hashable, work: Callable[[InFlightCall], Awaitable[CallResult]], attempt: CallState, label: str = ""
    ) -> InFlightCall:
        call = self._calls[key] = InFlightCall(attempt, label)
        call.work = asyncio.ensure_future(work(call))
        call.work.add_done_callback(lambda _: self._on_done(key, call))
        return call

    async def join(self, call: InFlightCall, attempt: CallState) -> CallResult:
        """Wait for the result of a running call that several callers share.

        If this caller is cancelled, the call continues for the other waiting callers; without any, it is cancelled too.
        """
        if attempt is not call.attempt:
            attempt.shared_with = call.attempt
        call.waiters += 1
        try:
            return await asyncio.shield(call.work)
        finally:
            call.waiters -= 1
            if call.waiters and not call.work.done():
                attempt.certainty = Certainty.UNKNOWN  # this caller stops waiting; the call continues
            elif not call.work.done():
                call.cancel()
                # Only its end shows how far the call got, which the error of this caller must include.
                await asyncio.wait({call.work}, timeout=CANCEL_GRACE_S)

    def _on_done(self, key: Hashable, call: InFlightCall) -> None:
        if not call.work.cancelled():
            call.work.exception()  # mark it as retrieved, even if no caller waits
        if self._calls.get(key) is call:
            del self._calls[key]
