"""The link of a server in a cluster: its own where this node owns it, and else the way to wherever it is.

Which it is is decided when the link opens. When that changes the link ends, and the next one is opened at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from toolway.gateway.replica.links.local import LocalLink
from toolway.gateway.replica.links.remote import RemoteLink
from toolway.model import Era, Json
from toolway.upstream.link import Inbound, Link, LinkFacts, Loss, Request


class Switch(Protocol):
    """Knows where servers are."""

    def choose(self, server: str, caller: str, make: Callable[[], Link]) -> Link: ...

    def opened(self, link: ReplicaLink) -> None: ...

    def closed(self, link: ReplicaLink) -> None: ...


class ReplicaLink:
    """`make` makes the server's own link. `caller` is whose it is, where it is one caller's alone."""

    def __init__(self, server: str, caller: str, make: Callable[[], Link], switch: Switch) -> None:
        self.server = server
        self._caller = caller
        self._make = make
        self._switch = switch
        self._chosen: Link | None = None
        self._moved = asyncio.Event()

    @property
    def chosen(self) -> Link:
        assert self._chosen is not None, "the link is not open"
        return self._chosen

    @property
    def local(self) -> LocalLink | None:
        return self._chosen if isinstance(self._chosen, LocalLink) else None

    async def open(self, inbound: Inbound) -> None:
        self._chosen = chosen = self._switch.choose(self.server, self._caller, self._make)
        self.request = chosen.request  # type: ignore[method-assign]  # a call does not pay for what has been decided
        self._switch.opened(self)
        await chosen.open(inbound)

    def move(self) -> None:
        """The server is elsewhere now."""
        if isinstance(self._chosen, LocalLink | RemoteLink):
            self._chosen.end()
        self._moved.set()

    async def request(self, request: Request) -> Json:
        return await self.chosen.request(request)

    async def notify(self, method: str, params: Json) -> None:
        await self.chosen.notify(method, params)

    def adopt(self, era: Era, version: str) -> None:
        self.chosen.adopt(era, version)

    def forget_session(self) -> None:
        self.chosen.forget_session()

    async def wait_lost(self) -> Loss:
        moved = asyncio.create_task(self._moved.wait())
        lost = asyncio.create_task(self.chosen.wait_lost())
        try:
            await asyncio.wait({moved, lost}, return_when=asyncio.FIRST_COMPLETED)
            if moved.done():
                return Loss("another node owns the server now", "E-MOVED", moved=True)
            return lost.result()
        finally:
            for task in (moved, lost):
                task.cancel()
            await asyncio.gather(moved, lost, return_exceptions=True)

    def facts(self) -> LinkFacts:
        return self._chosen.facts() if self._chosen is not None else LinkFacts()

    async def close(self) -> None:
        self._switch.closed(self)
        if self._chosen is not None:
            await self._chosen.close()
