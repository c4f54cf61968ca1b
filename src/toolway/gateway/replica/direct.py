"""The link of a server that everybody may call, at a node that does not own it: calls go to the server itself, and
what there is to know about it comes from its owner."""

from __future__ import annotations

from toolway.gateway.replica.known import Knowledge, answer
from toolway.model import Era, Json
from toolway.upstream.link import Inbound, Link, LinkFacts, Loss, Request


class DirectLink:
    def __init__(self, server: str, real: Link, knowledge: Knowledge) -> None:
        self._server = server
        self._real = real
        self._knowledge = knowledge

    async def open(self, inbound: Inbound) -> None:
        await self._real.open(inbound)

    async def request(self, request: Request) -> Json:
        known = answer(self._knowledge, self._server, request)
        return known if known is not None else await self._real.request(request)

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
