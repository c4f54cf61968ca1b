"""A peer on loopback that does exactly what a test tells it to, down to the byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple


class Received(NamedTuple):
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Conn:
    """One connection, from the peer's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.reader = reader
        self.writer = writer
        self.number = number  # counted from 1

    async def request(self) -> Received | None:
        """The next request, or None where the client has closed."""
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("ascii")
            first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
            fields = [line.split(": ", 1) for line in lines]
            headers = {name.lower(): value for name, value in fields}
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        method, target, _ = first.split(" ")
        return Received(method, target, headers, body)

    async def send(self, data: bytes | memoryview) -> None:
        self.writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def trickle(self, data: bytes, pause: float) -> None:
        for byte in data:
            await self.send(bytes([byte]))
            await asyncio.sleep(pause)

    async def gone(self) -> None:
        """Until the client has closed its side."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass

    def reset(self) -> None:
        """Close so the client sees a reset, not an end. Does nothing if the connection is closed already."""
        if self.writer.transport.is_closing():
            return
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class Peer:
    def __init__(self) -> None:
        self.port = 0
        self.scheme = "http"
        self.connections = 0
        self.requests: list[Received] = []

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/mcp"


Script = Callable[[Conn], Awaitable[None]]
Reaction = Callable[[Conn, Received], Awaitable[None]]


@contextlib.asynccontextmanager
async def peer(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    """A server that runs `script` on each connection and closes it afterwards."""
    facts = Peer()
    running: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        facts.connections += 1
        conn = Conn(reader, writer, facts.connections)
        try:
            await script(conn)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            running.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls, backlog=200)
    facts.port = server.sockets[0].getsockname()[1]
    facts.scheme = "http" if tls is None else "https"
    try:
        yield facts
    finally:
        server.close()
        tasks = list(running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)


def reacting(react: Reaction) -> Script:
    """A well-behaved connection: one reaction for each request until the client leaves."""

    async def script(conn: Conn) -> None:
        while (request := await conn.request()) is not None:
            await react(conn, request)

    return script


def always(data: bytes) -> Script:
    async def react(conn: Conn, _: Received) -> None:
        await conn.send(data)

    return reacting(react)


def once(data: bytes) -> Script:
    """Answer one request with `data` and close."""

    async def script(conn: Conn) -> None:
        await conn.request()
        await conn.send(data)

    return script


def response(status: int, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def json_response(message: Any, status: int = 200, **headers: str) -> bytes:
    return response(status, json.dumps(message).encode(), Content_Type="application/json", **headers)


EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(message: Any, id_: str = "") -> bytes:
    """One event in one chunk."""
    text = f"id: {id_}\n" if id_ else ""
    return chunk(f"{text}event: message\ndata: {json.dumps(message)}\n\n".encode())


def loops() -> list[Any]:
    """The event loops that tests of sockets run on, as parameters of `anyio_backend`."""
    found: list[Any] = [("asyncio", {"use_uvloop": False})]
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: F401

        found.append(("asyncio", {"use_uvloop": True}))
    return found
