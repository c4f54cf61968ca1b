"""The link of a server that this node owns: the server's own, for as long as the node owns it.

Rule 1. Before anything is sent, the lease is looked at; what is not ours any more is not sent to.
Rule 2. What is handed over takes nothing new, and has the time to finish what it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from toolway.cluster.record.places import Held
from toolway.gateway.replica.links.before import Before
from toolway.model import Certainty, Json
from toolway.upstream.link import MOVED, Fault, Link, Request

FINISH: Final = 30.0  # seconds that calls under way have when a server is handed over
_NO_CALLS: Final = frozenset({"subscriptions/listen"})  # open for as long as the link


class LocalLink(Before):
    """`ours` says whether we hold the place under this fence, at this moment."""

    def __init__(self, held: Held, real: Link, ours: Callable[[], bool]) -> None:
        super().__init__(real)
        self.held = held
        self._ours = ours
        self._busy = 0
        self._quiet = asyncio.Event()
        self._leaving = False
        self._gone = asyncio.Event()

    async def request(self, request: Request) -> Json:
        if self._leaving:
            await self._gone.wait()  # whoever is next takes it
        if self._gone.is_set() or not self._ours():
            raise moved(self.held.place.server)
        if request.method in _NO_CALLS:
            return await self._real.request(request)
        self._busy += 1
        try:
            return await self._real.request(request)
        finally:
            self._busy -= 1
            if not self._busy:
                self._quiet.set()

    async def notify(self, method: str, params: Json) -> None:
        if not self._ours():
            raise moved(self.held.place.server)
        await super().notify(method, params)

    async def finish(self) -> None:
        """Take nothing new; return when nothing is under way any more, or the time is over."""
        self._leaving = True
        try:
            async with asyncio.timeout(FINISH):
                while self._busy:
                    self._quiet.clear()
                    await self._quiet.wait()
        except TimeoutError:
            pass

    def end(self) -> None:
        self._leaving = False
        self._gone.set()

    async def close(self) -> None:
        self.end()
        await super().close()


def moved(server: str) -> Fault:
    return Fault(f"{server} has another owner now", Certainty.C0, code=MOVED)
