"""A server of 2024-11-05 whose every byte a test decides: one stream for all answers, and a response for each POST.

async with serve_legacy_sse(react) as server:       # react(server, conn, request) is called for each POST
    link = SseLink(Server(url=server.url))
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.upstream.raw_http import EVENTS, Conn, Peer, Received, chunk, event, peer, reacting, response

ENDPOINT = "/messages?session=s-1"
ACCEPTED = response(202, b"Accepted", Content_Type="text/plain")

Json = dict[str, Any]
React = Callable[["LegacySseServer", Conn, Received], Awaitable[None]]


async def answer_normally(server: LegacySseServer, conn: Conn, request: Received) -> None:
    """Take it, and answer on the stream."""
    if request.target == "/sse":
        await conn.send(response(405))
        return
    await conn.send(ACCEPTED)
    if "id" in request.json and "method" in request.json:
        await server.send_message(server.answer(request))


@dataclass
class LegacySseServer:
    react: React = answer_normally
    endpoint: str | None = ENDPOINT  # what the stream says first; None: nothing
    opening: bytes = EVENTS  # the answer to a GET
    peer: Peer = field(default_factory=Peer)
    gets: list[Received] = field(default_factory=list)
    posts: list[Received] = field(default_factory=list)
    streams: list[Conn] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.peer.port}/sse"

    def answer(self, request: Received) -> Json:
        return {"jsonrpc": "2.0", "id": request.json["id"], "result": result_of(request)}

    async def send_message(self, message: Any, id_: str = "") -> None:
        """One event on the newest stream."""
        await self.streams[-1].send(event(message, id_))

    async def raw(self, data: bytes) -> None:
        await self.streams[-1].send(chunk(data))

    async def serve(self, conn: Conn, request: Received) -> None:
        if request.method == "GET":
            self.gets.append(request)
            self.streams.append(conn)
            await conn.send(self.opening)
            if self.opening != EVENTS:
                return
            if self.endpoint is not None:
                await conn.send(chunk(f"event: endpoint\ndata: {self.endpoint}\n\n".encode()))
            await conn.gone()
        else:
            self.posts.append(request)
            await self.react(self, conn, request)


def result_of(request: Received) -> Json:
    """What is right for a request of the protocol; for a call, its own nonce."""
    message = request.json
    if message["method"] == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "old", "version": "1"}}
        return {"protocolVersion": "2024-11-05", **about}
    if message["method"] == "tools/list":
        schema = {"type": "object"}
        look = {"name": "look", "inputSchema": schema, "annotations": {"readOnlyHint": True}}
        return {"tools": [{"name": "act", "inputSchema": schema}, look]}
    nonce = message["params"].get("arguments", {}).get("nonce", "")
    return {"content": [{"type": "text", "text": "done"}], "structuredContent": {"nonce": nonce}}


@contextlib.asynccontextmanager
async def serve_legacy_sse(react: React = answer_normally, **settings: Any) -> AsyncIterator[LegacySseServer]:
    server = LegacySseServer(react, **settings)
    async with peer(reacting(server.serve)) as facts:
        server.peer = facts
        yield server


def is_call(request: Received) -> bool:
    return bool(json.loads(request.body).get("method") == "tools/call")


async def hold() -> None:
    await asyncio.sleep(60)
