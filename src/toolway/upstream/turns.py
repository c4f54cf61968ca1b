"""Whose question it is, on a pipe, where a server does not say so.

Of the calls that may ask, one works at a time, so a question that comes is that one's. A call that waits for its
client's answer does not work: others have their turn meanwhile, and it goes on when it has its own again. What has
ended once without a question is taken for silent and works beside all others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from toolway.model import Call

PATIENCE: Final = 5.0  # seconds that one turn is respected; then a question that comes may be taken for another call's
SETTLE: Final = 0.02  # seconds in which questions that a call asks together come together
TRIAL: Final = 0.3  # seconds that calls of a tool nobody knows yet give the first one to show whether it asks
MOST: Final = 10_000  # names of which it is known


class Turns:
    def __init__(self) -> None:
        self.at_work: Call | None = None  # whose turn it is
        self._since = 0.0
        self._line: deque[tuple[Call, asyncio.Future[None]]] = deque()
        self._taking_part: set[int] = set()  # attempts
        self._asks: dict[str, bool] = {}  # by name: whether it has asked, when it was called last
        self._trials: dict[str, asyncio.Event] = {}  # by name: while its first call is about to show that
        self._unasked: dict[int, Call] = {}  # by attempt: begun without a turn, and has no answer yet

    async def begin(self, call: Call) -> None:
        """Wait for the first turn of a call that asks. A library has one caller, who knows what is his."""
        if call.asks is None:
            return
        call.attempt.phase = "turn"
        if call.name not in self._asks:
            await self._try(call.name)
        if self._asks.get(call.name):
            self._taking_part.add(id(call.attempt))
            await self._take(call)
        else:
            self._unasked[id(call.attempt)] = call

    async def _try(self, name: str) -> None:
        trial = self._trials.get(name)
        if trial is None:
            self._trials[name] = asyncio.Event()
            return
        try:
            async with asyncio.timeout(TRIAL):
                await trial.wait()
        except TimeoutError:
            self._learn(name, asks=False)

    def _learn(self, name: str, *, asks: bool) -> None:
        if len(self._asks) >= MOST:
            self._asks.clear()
        self._asks[name] = asks
        trial = self._trials.pop(name, None)
        if trial is not None:
            trial.set()

    async def go_on(self, call: Call) -> None:
        """The call has its answer: wait until it may work again."""
        if id(call.attempt) in self._taking_part and self.at_work is not call:
            await self._take(call)

    async def _take(self, call: Call) -> None:
        loop = asyncio.get_running_loop()
        if not self._taken():
            self.at_work, self._since = call, loop.time()
            return
        if self.at_work is None and not self._line:
            self._since = loop.time()  # of those who began before it was known that they ask
        place = (call, loop.create_future())
        self._line.append(place)
        try:
            while not place[1].done() and (left := self._since + PATIENCE - loop.time()) > 0:
                await asyncio.wait({place[1]}, timeout=left)
        except asyncio.CancelledError:
            self._give_up(call)  # it may have been given the turn just now
            raise
        finally:
            if not place[1].done():
                self._line.remove(place)

    def _taken(self) -> bool:
        """Whether a question that comes may be somebody's already."""
        return self.at_work is not None or any(self._asks.get(call.name) for call in self._unasked.values())

    def asked(self, call: Call) -> None:
        """The call waits for an answer: after a moment, others have their turn."""
        if call.asks is not None:
            self._learn(call.name, asks=True)
            self._taking_part.add(id(call.attempt))
        self._unasked.pop(id(call.attempt), None)
        asyncio.get_running_loop().call_later(SETTLE, self._rest, call)

    def _rest(self, call: Call) -> None:
        if call.attempt.is_asked:
            self._give_up(call)

    def _give_up(self, call: Call) -> None:
        if self.at_work is call:
            self.at_work = None
        if self._line and not self._taken():
            self.at_work, turn = self._line.popleft()
            self._since = asyncio.get_running_loop().time()
            turn.set_result(None)

    def answered(self, call: Call) -> None:
        """The call has come to its end, and the server with it."""
        if call.asks is not None and not call.attempt.was_asked:
            self._learn(call.name, asks=False)

    def leave(self, call: Call) -> None:
        self._taking_part.discard(id(call.attempt))
        self._unasked.pop(id(call.attempt), None)
        self._give_up(call)
