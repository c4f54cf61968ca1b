"""The limit stage: so many calls at once per server, so many waiting, and no more.

A slot is held only while an attempt is really under way. Waiting is first come, first served for one caller, and in
turns between callers; while others wait, one caller holds at most half of the slots.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from toolway.config.spec import Limits
from toolway.errors import CallError, Certainty, Overloaded
from toolway.model import Call, Next, Reply, Stage

LONGEST_PAUSE: Final = 60.0  # however long a server asks for; then it is asked again


class _Displaced(Exception):
    """The line was full, and a caller with fewer calls in it needed the place."""


class Slots:
    """A bounded number of slots with a bounded line before them."""

    def __init__(self, limits: Limits) -> None:
        self.all = limits.concurrent
        self._free = limits.concurrent
        self._share = max(1, limits.concurrent // 2)
        self._longest = limits.waiting
        self._held: dict[str, int] = {}
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}  # by caller; the first one is next
        self.waiting = 0
        self.paused_until = 0.0  # the server asked us to stay away

    @property
    def taken(self) -> int:
        return self.all - self._free

    @property
    def longest(self) -> int:
        """Calls that may wait."""
        return self._longest

    def take_nowait(self, caller: str = "") -> bool:
        """Take a slot if one is free and nobody waits."""
        if self._free <= 0 or self.waiting:
            return False
        self._free -= 1
        self._held[caller] = self._held.get(caller, 0) + 1
        return True

    async def take(self, caller: str = "") -> bool:
        """Take a slot, waiting in line for it. False when the line is full."""
        if self.take_nowait(caller):
            return True
        if self.waiting >= self._longest and not self._make_room(caller):
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(caller, deque()).append(turn)
        self.waiting += 1
        self._hand_out()
        try:
            await turn
        except _Displaced:
            return False
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                if turn.exception() is None:
                    self.give_back(caller)  # it was our turn just as we left
            else:
                self._leave(caller, turn)
            raise
        return True

    def _make_room(self, caller: str) -> bool:
        """Give the last place of whoever has most of the line to a caller who has fewer in it."""
        most = max(self._lines, key=lambda each: len(self._lines[each]), default=caller)
        if len(self._lines.get(most, ())) <= len(self._lines.get(caller, ())) + 1:
            return False
        last = self._lines[most][-1]
        self._leave(most, last)
        if not last.done():
            last.set_exception(_Displaced())
        return True

    def give_back(self, caller: str = "") -> None:
        if self._held[caller] > 1:
            self._held[caller] -= 1
        else:
            del self._held[caller]
        self._free += 1
        if self.waiting:
            self._hand_out()

    def _hand_out(self) -> None:
        while self._free > 0 and self.waiting:
            caller = self._next_caller()
            line = self._lines.pop(caller)
            turn = line.popleft()
            if line:
                self._lines[caller] = line  # to the end of the turns
            self.waiting -= 1
            if turn.done():
                continue  # he has left, and has not been able to say so yet
            self._free -= 1
            self._held[caller] = self._held.get(caller, 0) + 1
            turn.set_result(None)

    def _next_caller(self) -> str:
        for caller in self._lines:
            if self._held.get(caller, 0) < self._share:
                return caller
        return next(iter(self._lines))

    def _leave(self, caller: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(caller, deque())
        if turn not in line:
            return
        line.remove(turn)
        if not line:
            del self._lines[caller]
        self.waiting -= 1


def limit(slots_of: Callable[[str], Slots], queue_of: Callable[[str], float], now: Callable[[], float]) -> Stage:
    async def stage(call: Call, next: Next) -> Reply:
        slots = slots_of(call.server)
        if slots.paused_until and slots.paused_until > now():
            await _wait_out_pause(call, slots, queue_of(call.server), now)
        if not slots.take_nowait(call.caller):
            await _wait_in_line(call, slots, queue_of(call.server))
        attempt = call.attempt
        attempt.give_back_slot = partial(slots.give_back, call.caller)
        try:
            return await next(call)
        except CallError as exc:
            if exc.retry_after is not None and isinstance(exc, Overloaded):
                slots.paused_until = max(slots.paused_until, now() + min(exc.retry_after, LONGEST_PAUSE))
            raise
        finally:
            attempt.leave_slot()  # unless it was left while the caller was asked something

    return stage


async def _wait_in_line(call: Call, slots: Slots, queue: float) -> None:
    try:
        async with asyncio.timeout(queue):
            if not await slots.take(call.caller):
                raise _overloaded(call, "the line of waiting calls is full")
    except TimeoutError:
        raise _overloaded(call, f"no slot became free in {queue:g} s") from None


async def _wait_out_pause(call: Call, slots: Slots, queue: float, now: Callable[[], float]) -> None:
    """New calls stay away as long as the server asked for, or are told to come back then."""
    left = slots.paused_until - now()
    if left > min(queue, call.deadline - now()):
        raise _overloaded(call, f"the server asked us to wait another {left:.1f} s", retry_after=left)
    call.attempt.phase = "pause"
    try:
        async with asyncio.timeout(left):
            await asyncio.Event().wait()
    except TimeoutError:
        return


def _overloaded(call: Call, evidence: str, retry_after: float | None = None) -> Overloaded:
    error = Overloaded(
        f"too many calls to {call.server} at once",
        server=call.server,
        tool=call.name,
        certainty=Certainty.C0,
        retry_after=retry_after,
        evidence=evidence,
        fix='make fewer calls at once, or raise "limits": {"concurrent": …} of this server',
    )
    error.retryable = False  # whoever calls knows better whether to come back
    return error
