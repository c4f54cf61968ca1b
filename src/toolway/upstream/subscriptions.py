"""Resources of one server that somebody wants to hear of: counted, and told to the server in the way of its era.

The server is told of the whole set again after every new link; what happened in between nobody told, so every resource
then counts as changed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from toolway.upstream.link import Fault, RpcError
from toolway.upstream.session import Session

GATHER: Final = 0.02  # seconds in which wishes that come together are told together
TOLD_WITHIN: Final = 5.0  # seconds a wish waits to hear that the server knows
AGAIN: Final = (0.5, 30.0)  # first and longest wait before a lost subscription is opened again


class Subscriptions:
    def __init__(self, on_update: Callable[[str], None], dice: Callable[[], float]) -> None:
        self._on_update = on_update
        self._dice = dice
        self._wanted: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._told = asyncio.Event()
        self._ever_told = False

    async def add(self, uri: str) -> None:
        """Want to hear of a resource; returns when the server knows, or soon."""
        self._wanted[uri] += 1
        if self._wanted[uri] > 1 and self._told.is_set():
            return
        self._mark()
        with suppress(TimeoutError):
            async with asyncio.timeout(TOLD_WITHIN):
                await self._told.wait()

    def remove(self, uri: str) -> None:
        self._wanted[uri] -= 1
        if self._wanted[uri] <= 0:
            del self._wanted[uri]
            self._mark()

    def _mark(self) -> None:
        self._told.clear()
        self._changed.set()

    async def keep(self, session: Session) -> None:
        """Tell the server of a new link what is wanted, now and whenever that changes, until cancelled."""
        if self._wanted:
            self._mark()
            if self._ever_told:
                for uri in list(self._wanted):
                    self._on_update(uri)
        if session.agreed.era == "modern":
            await self._keep_listening(session)
        else:
            await self._keep_subscribed(session)

    async def _keep_subscribed(self, session: Session) -> None:
        """The handshake era: one request for each."""
        known: set[str] = set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = set(self._wanted)
            for uri in wanted - known:
                await _quietly(session, "resources/subscribe", uri)
            for uri in known - wanted:
                await _quietly(session, "resources/unsubscribe", uri)
            known = wanted
            self._are_told()

    async def _keep_listening(self, session: Session) -> None:
        """The modern era: one stream for all; the next one is open before the last is closed."""
        stream: asyncio.Task[None] | None = None
        try:
            while True:
                await self._changed.wait()
                await asyncio.sleep(GATHER)
                self._changed.clear()
                uris, before = sorted(self._wanted), stream
                stream = asyncio.create_task(self._listen(session, uris)) if uris else None
                if stream is not None:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(TOLD_WITHIN):
                            await self._told.wait()
                if before is not None:
                    before.cancel()
        finally:
            if stream is not None:
                stream.cancel()

    async def _listen(self, session: Session, uris: list[str]) -> None:
        wait, longest = AGAIN
        while True:
            acknowledged = asyncio.Event()
            waiting = asyncio.create_task(self._when(acknowledged))
            try:
                if not await session.listen_to_resources(uris, acknowledged):
                    return
            except Fault:
                pass
            finally:
                waiting.cancel()
            await asyncio.sleep(wait * (0.5 + self._dice() / 2))
            wait = min(longest, wait * 2)
            for uri in uris:
                self._on_update(uri)

    async def _when(self, acknowledged: asyncio.Event) -> None:
        await acknowledged.wait()
        self._are_told()

    def _are_told(self) -> None:
        self._ever_told = True
        self._told.set()


async def _quietly(session: Session, method: str, uri: str) -> None:
    with suppress(Fault, RpcError):
        await session.request(method, {"uri": uri})
