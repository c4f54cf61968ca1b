"""A link without a server: a function answers what is asked, at once, later or never."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from toolway.types import Era, Json
from toolway.upstream.transport import Disconnect, InboundHandler, Request, TransportInfo

Answer = Callable[[Request], Awaitable[Json]]

MODERN: Json = {"supportedVersions": [LATEST_MODERN_VERSION], "capabilities": {}}
HANDSHAKE: Json = {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": {}, "serverInfo": {"name": "old"}}


class ScriptedLink:
    """Keeps a record of all that is done with it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._lost: asyncio.Future[Disconnect] = asyncio.get_running_loop().create_future()
        self.asked: list[Request] = []
        self.record: list[str] = []  # what was done, in order
        self.cancelled: list[str] = []  # methods whose asker left
        self.opened = self.closed = self.forgotten = 0

    @property
    def methods(self) -> list[str]:
        return [request.method for request in self.asked]

    async def open(self, inbound: InboundHandler) -> None:
        self.opened += 1
        self.inbound = inbound

    async def request(self, request: Request) -> Json:
        self.asked.append(request)
        self.record.append(request.method)
        try:
            return await self._answer(request)
        except asyncio.CancelledError:
            self.cancelled.append(request.method)
            raise

    async def notify(self, method: str, params: Json) -> None:
        self.record.append(method)

    def set_protocol(self, era: Era, version: str) -> None:
        self.record.append(f"adopt {era}")

    def reset_session(self) -> None:
        self.forgotten += 1
        self.record.append("forget")

    def lose(self, loss: Disconnect) -> None:
        if not self._lost.done():
            self._lost.set_result(loss)

    async def wait_closed(self) -> Disconnect:
        return await asyncio.shield(self._lost)

    def info(self) -> TransportInfo:
        return TransportInfo()

    async def close(self) -> None:
        self.closed += 1
