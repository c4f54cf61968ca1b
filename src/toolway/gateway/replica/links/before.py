"""A link that stands before the server's own one, and is it in all that it does not do otherwise."""

from __future__ import annotations

from toolway.model import Era, Json
from toolway.upstream.link import Inbound, Link, LinkFacts, Loss


class Before:
    def __init__(self, real: Link) -> None:
        self._real = real

    async def open(self, inbound: Inbound) -> None:
        await self._real.open(inbound)

    async def notify(self, method: str, params: Json) -> None:
        await self._real.notify(method, params)

    def adopt(self, era: Era, version: str) -> None:
        self._real.adopt(era, version)

    def forget_session(self) -> None:
        self._real.forget_session()

    async def wait_lost(self) -> Loss:
        return await self._real.wait_lost()

    def facts(self) -> LinkFacts:
        return self._real.facts()

    async def close(self) -> None:
        await self._real.close()
