"""HTTP servers for the table: each answers as a function says."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.doctor.small_server import reply
from tests.upstream.legacy_sse_server import LegacySseServer, serve_legacy_sse
from tests.upstream.raw_http import Conn, Received, response

TOOLS = [{"name": "hello", "description": "Say hello.", "inputSchema": {"type": "object"}}]


@dataclass
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    open: bool = False  # the stream continues


Site = Callable[[Request], Answer | Awaitable[Answer]]


def mcp(request: Request) -> Answer:
    """A server that works."""
    if request.method != "POST":
        return Answer(405)
    said: Any = reply(json.loads(request.body), TOOLS)
    if said is None:
        return Answer(202)
    return Answer(200, json.dumps(said).encode(), {"Content-Type": "application/json"})


def page(title: str, status: int = 200) -> Answer:
    body = f"<!doctype html><html><head><title>{title}</title></head><body>Hello</body></html>"
    return Answer(status, body.encode(), {"Content-Type": "text/html; charset=utf-8"})


@asynccontextmanager
async def serving_old(at_mcp: Site | None = None) -> AsyncIterator[int]:
    """Serve HTTP+SSE at /sse, and the given site at /mcp. Yields the port."""

    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        if request.target == "/mcp" and at_mcp is not None:
            said = at_mcp(Request(request.method, request.target, request.headers, request.body))
            assert isinstance(said, Answer)
            fields = {name.replace("-", "_"): value for name, value in said.headers.items()}
            await conn.send(response(said.status, said.body, **fields))
        elif not request.target.startswith("/messages"):
            await conn.send(response(405))
        else:
            await conn.send(response(202))
            answer = reply(request.json, TOOLS)
            if answer is not None:
                await server.send_message(answer)

    async with serve_legacy_sse(react) as server:
        yield server.peer.port


@asynccontextmanager
async def serving(site: Site, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[int]:
    """The port at which `site` answers."""
    tasks: set[asyncio.Task[Any]] = set()

    async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await _exchange(site, reader, writer):
                pass
        tasks.discard(task)
        writer.close()

    server = await asyncio.start_server(serve_connection, "127.0.0.1", port, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _exchange(site: Site, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    begin = await reader.readexactly(1)
    if not begin.isalpha():  # no HTTP: someone begins a TLS handshake
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        return False
    head = (begin + await reader.readuntil(b"\r\n\r\n")).decode()
    first, *rest = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    method, path, _ = first.split(" ")
    said = site(Request(method, path, headers, body))
    answer = said if isinstance(said, Answer) else await said
    told = dict(answer.headers)
    if not answer.open:
        told["Content-Length"] = str(len(answer.body))
    lines = [f"HTTP/1.1 {answer.status} X", *(f"{name}: {value}" for name, value in told.items()), "", ""]
    writer.write("\r\n".join(lines).encode() + answer.body)
    await writer.drain()
    if answer.open:
        await asyncio.sleep(60)
    return True
