"""The link of a server that everybody may call, at a node that does not own it: calls go to the server itself, and
what there is to know about it comes from its owner."""

from __future__ import annotations

from toolway.gateway.replica.links.before import Before
from toolway.gateway.replica.links.known import Knowledge, answer
from toolway.model import Json
from toolway.upstream.link import Link, Request


class DirectLink(Before):
    def __init__(self, server: str, real: Link, knowledge: Knowledge) -> None:
        super().__init__(real)
        self._server = server
        self._knowledge = knowledge

    async def request(self, request: Request) -> Json:
        known = answer(self._knowledge, self._server, request)
        return known if known is not None else await self._real.request(request)
