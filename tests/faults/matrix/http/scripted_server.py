"""An MCP server over HTTP that is good at everything, except that a test writes the bytes of its answers to calls.

    async def react(turn: Turn) -> None:
        await turn.conn.send(turn.good[:10])

    async with scripted("modern", react) as server, lab({"bad": server.url}) as bench:
        ...

Its tools: `act`, which may not be run twice, and `look`, which reads.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.upstream.raw_http import EVENTS, Conn, Peer, Received, chunk, json_response, peer, reacting, response

Json = dict[str, Any]

TOOLS: list[Json] = [
    {"name": "act", "inputSchema": {"type": "object"}},
    {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
]


@dataclass
class Turn:
    """One call of a tool, to be answered."""

    server: Scripted
    conn: Conn
    request: Received
    number: int  # of this call, from 0
    at: float  # when it came

    @property
    def message(self) -> Json:
        """The answer of a good server."""
        nonce = self.request.json["params"]["arguments"].get("nonce", "")
        result = {"content": [{"type": "text", "text": "done"}], "structuredContent": {"nonce": nonce}}
        return self.server.answer(self.request.json["id"], result)

    @property
    def good(self) -> bytes:
        return json_response(self.message)

    async def answer_well(self) -> None:
        self.take_effect()
        await self.conn.send(self.good)

    def take_effect(self) -> None:
        """Do what must not be done twice, as the fakes do."""
        arguments = self.request.json["params"]["arguments"]
        if arguments.get("effect") and self.server.effects:
            # Not forced to the disk: that would hold up the whole process, and this one is not killed.
            with open(self.server.effects, "a") as file:
                file.write(f"{self.number}\t{arguments.get('nonce', '')}\n")


React = Callable[[Turn], Awaitable[None]]


@dataclass
class Scripted:
    era: str
    react: React
    tools: list[Json] = field(default_factory=lambda: TOOLS)
    effects: str = ""
    peer: Peer = field(default_factory=Peer)
    requests: list[Received] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    opening: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.peer.url

    def answer(self, id_: Any, result: Json) -> Json:
        modern = {"resultType": "complete"} if self.era == "modern" else {}
        return {"jsonrpc": "2.0", "id": id_, "result": {**modern, **result}}

    async def serve(self, conn: Conn, request: Received) -> None:
        self.requests.append(request)
        if request.method == "GET":
            await conn.send(response(405))
        elif request.method == "DELETE" or "id" not in request.json:
            await conn.send(response(202))
        elif request.json["method"] == "tools/call":
            turn = Turn(self, conn, request, len(self.turns), time.monotonic())
            self.turns.append(turn)
            await self.react(turn)
        else:
            await conn.send(self._protocol(request.json))

    def _protocol(self, message: Json) -> bytes:
        id_, method = message["id"], message["method"]
        about: Json = {"capabilities": {"tools": {}}}
        if method == "server/discover" and self.era == "modern":
            return json_response(self.answer(id_, {"supportedVersions": ["2026-07-28"], **about}))
        if method == "initialize" and self.era == "legacy":
            version = message["params"]["protocolVersion"]
            hello = {"protocolVersion": version, "serverInfo": {"name": "scripted", "version": "1"}, **about}
            return json_response(self.answer(id_, hello), 200, **self.opening)
        if method == "tools/list":
            return json_response(self.answer(id_, {"tools": self.tools}))
        if method == "ping":
            return json_response(self.answer(id_, {}))
        unknown = {"code": -32601, "message": f"Method not found: {method}"}
        return json_response({"jsonrpc": "2.0", "id": id_, "error": unknown}, status=404)


class SseTurn(Turn):
    """The same where the answer comes on the stream."""

    async def answer_well(self) -> None:
        self.take_effect()
        await self.conn.send(response(202))
        await self.send(event(self.message))

    async def send(self, events: bytes) -> None:
        assert isinstance(self.server, ScriptedSse)
        await self.server.streams[-1].send(chunk(events))


@dataclass
class ScriptedSse(Scripted):
    """A server of 2024-11-05."""

    streams: list[Conn] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.peer.url.replace("/mcp", "/sse")

    async def serve(self, conn: Conn, request: Received) -> None:
        self.requests.append(request)
        if request.method == "GET":
            self.streams.append(conn)
            await conn.send(EVENTS + chunk(b"event: endpoint\ndata: /messages?session=%d\n\n" % len(self.streams)))
            await conn.gone()
        elif request.target == "/sse":
            await conn.send(response(405))
        elif "id" not in request.json:
            await conn.send(response(202))
        elif request.json["method"] == "tools/call":
            turn = SseTurn(self, conn, request, len(self.turns), time.monotonic())
            self.turns.append(turn)
            await self.react(turn)
        else:
            await conn.send(response(202))
            answer = self._protocol(request.json).partition(b"\r\n\r\n")[2]
            await self.streams[-1].send(chunk(b"event: message\ndata: " + answer + b"\n\n"))


async def well(turn: Turn) -> None:
    await turn.answer_well()


@asynccontextmanager
async def scripted(
    era: str,
    react: React = well,
    tools: list[Json] | None = None,
    kind: type[Scripted] = Scripted,
    **opening: str,
) -> AsyncIterator[Scripted]:
    """`opening` are headers of the answer to `initialize`."""
    if era == "sse":
        era, kind = "legacy", ScriptedSse
    server = kind(era, react, tools or TOOLS, opening=opening)
    async with peer(reacting(server.serve)) as facts:
        server.peer = facts
        yield server


async def hold() -> None:
    """Until the client or the test has had enough."""
    await asyncio.sleep(60)


def event(message: Json) -> bytes:
    return f"event: message\ndata: {json.dumps(message)}\n\n".encode()
