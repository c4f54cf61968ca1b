"""The limit stage: so many calls at once per server, so many waiting, and no more.

A slot is held only while a call is really under way. Waiting is first come, first served.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from toolway.config.spec import Limits
from toolway.errors import Overloaded
from toolway.model import Call, Certainty, Next, Reply, Stage


class Slots:
    """A bounded number of slots with a bounded line before them."""

    def __init__(self, limits: Limits) -> None:
        self._free = limits.concurrent
        self._longest = limits.waiting
        self._line: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._line)

    async def take(self) -> bool:
        """Take a slot, waiting in line for it. False when the line is full."""
        if self._free > 0:
            self._free -= 1
            return True
        if len(self._line) >= self._longest:
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()  # it was our turn just as we left
            else:
                self._line.remove(turn)
            raise
        return True

    def give_back(self) -> None:
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


def limit(slots_of: Callable[[str], Slots], queue_of: Callable[[str], float]) -> Stage:
    async def stage(call: Call, next: Next) -> Reply:
        slots = slots_of(call.server)
        try:
            async with asyncio.timeout(queue_of(call.server)):
                if not await slots.take():
                    raise _overloaded(call, "the line of waiting calls is full")
        except TimeoutError:
            raise _overloaded(call, f"no slot became free in {queue_of(call.server):g} s") from None
        try:
            return await next(call)
        finally:
            slots.give_back()

    return stage


def _overloaded(call: Call, evidence: str) -> Overloaded:
    return Overloaded(
        f"too many calls to {call.server} at once",
        server=call.server,
        tool=call.name,
        certainty=Certainty.C0,
        evidence=evidence,
        fix='make fewer calls at once, or raise "limits": {"concurrent": …} of this server',
    )
