"""Resources and tasks of one server that somebody wants to hear of: counted, and told to the server in the way of its
era.

The server is told of the whole set again after every new link or handshake; what happened in between nobody told, so
every resource then counts as changed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal

from toolway.upstream.flag import Flag
from toolway.upstream.link import Fault, RpcError
from toolway.upstream.session import Session

GATHER: Final = 0.02  # seconds in which wishes that come together are told together
TOLD_WITHIN: Final = 5.0  # seconds a wish waits to hear that the server knows
AGAIN: Final = (0.5, 30.0)  # first and longest wait before a lost subscription is opened again

#: What can be wanted, by its name in the filter of `subscriptions/listen`.
Wanted = Literal["resourceSubscriptions", "taskIds"]
RESOURCE: Final = "resourceSubscriptions"
TASK: Final = "taskIds"


class Subscriptions:
    def __init__(self, on_update: Callable[[str], None], dice: Callable[[], float]) -> None:
        self._on_update = on_update
        self._dice = dice
        self._wanted: Counter[tuple[Wanted, str]] = Counter()
        self._changed = Flag()
        self._told = Flag()
        self._ever_told = False

    def __len__(self) -> int:
        return len(self._wanted)

    async def add(self, kind: Wanted, name: str) -> None:
        """Want to hear of a resource or a task; returns when the server knows, or soon."""
        self._wanted[kind, name] += 1
        if self._wanted[kind, name] > 1 and self._told.is_set():
            return
        self._mark()
        with suppress(TimeoutError):
            async with asyncio.timeout(TOLD_WITHIN):
                await self._told.wait()

    def remove(self, kind: Wanted, name: str) -> None:
        self._wanted[kind, name] -= 1
        if self._wanted[kind, name] <= 0:
            del self._wanted[kind, name]
            self._mark()

    def _mark(self) -> None:
        self._told.clear()
        self._changed.set()

    def _names(self, kind: Wanted) -> list[str]:
        return sorted(name for of, name in self._wanted if of == kind)

    async def keep(self, session: Session) -> None:
        """Tell the server of a new link what is wanted, now and whenever that changes, until cancelled."""
        if self._wanted:
            self._mark()
            if self._ever_told:
                self._all_changed()
        if session.agreed.era == "modern":
            await self._keep_listening(session)
        else:
            await self._keep_subscribed(session)

    def _all_changed(self) -> None:
        for uri in self._names(RESOURCE):
            self._on_update(uri)

    async def _keep_subscribed(self, session: Session) -> None:
        """The handshake era: one request for each resource."""
        known: set[str] = set()

        def renewed() -> None:
            known.clear()  # a new handshake begins with nothing
            self._mark()
            self._all_changed()

        session.on_renewed = renewed
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = set(self._names(RESOURCE))
            for uri in sorted(wanted - known):
                known.add(uri)
                await _quietly(session, "resources/subscribe", uri)
            for uri in sorted(known - wanted):
                known.discard(uri)
                await _quietly(session, "resources/unsubscribe", uri)
            if not self._changed.is_set():
                self._are_told()

    async def _keep_listening(self, session: Session) -> None:
        """The modern era: one stream for all; the next one is open before the last is closed."""
        stream: asyncio.Task[None] | None = None
        try:
            while True:
                await self._changed.wait()
                await asyncio.sleep(GATHER)
                self._changed.clear()
                before, stream = stream, None
                if self._wanted:
                    stream = asyncio.create_task(self._listen(session))
                    with suppress(TimeoutError):
                        async with asyncio.timeout(TOLD_WITHIN):
                            await self._told.wait()
                if before is not None:
                    before.cancel()
        finally:
            if stream is not None:
                stream.cancel()

    async def _listen(self, session: Session) -> None:
        wait, longest = AGAIN
        wanted = {kind: names for kind in (RESOURCE, TASK) if (names := self._names(kind))}
        while True:
            acknowledged = asyncio.Event()
            waiting = asyncio.create_task(self._when(acknowledged))
            try:
                if not await session.listen_for(wanted, acknowledged):
                    self._are_told()  # more than asking cannot be done
                    return
            except Fault:
                pass
            finally:
                waiting.cancel()
            await asyncio.sleep(wait * (0.5 + self._dice() / 2))
            wait = min(longest, wait * 2)
            for uri in wanted.get(RESOURCE, ()):
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
