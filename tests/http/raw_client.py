"""A client that sends exactly the given bytes, and a server that receives them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from typing import NamedTuple

from toolway.http.limits import ServerLimits
from toolway.http.server import HttpServer
from toolway.http.server_connection import AuthenticateHead, RequestHandler

PATIENCE = 20.0  # seconds: for what surely comes, on a slow machine


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    raw_head: bytes


class Raw:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Give bytes to the system; a peer that has gone is not an error."""
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def head(self) -> Answer:
        """The head of the next response."""
        async with asyncio.timeout(PATIENCE):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").rstrip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        return Answer(int(first.split(" ")[1]), headers, b"", raw)

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """The next response, whole."""
        head = await self.head()
        async with asyncio.timeout(PATIENCE):
            if bodiless or head.status in (100, 204):
                body = b""
            elif "content-length" in head.headers:
                body = await self.reader.readexactly(int(head.headers["content-length"]))
            elif "transfer-encoding" in head.headers:
                body = b"".join([part async for part in self.chunks()])
            else:
                body = await self.reader.read()
        return head._replace(body=body)

    async def chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
        assert await self.reader.readexactly(2) == b"\r\n"

    async def ask(self, data: bytes) -> Answer:
        await self.send(data)
        return await self.answer()

    async def closed(self) -> bytes:
        """What still comes until the server closes."""
        rest = b""
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionError):
                while data := await self.reader.read(65536):
                    rest += data
        return rest

    def reset(self) -> None:
        """Leave without a goodbye."""
        with contextlib.suppress(OSError):  # it is closed already
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@contextlib.asynccontextmanager
async def connected(port: int, **how: object) -> AsyncIterator[Raw]:
    """`how` goes to `create_connection`: a source address, TLS, another host."""
    reader, writer = await asyncio.open_connection(**{"host": "127.0.0.1", "port": port, **how})  # type: ignore[arg-type]
    raw = Raw(reader, writer)
    try:
        yield raw
    finally:
        await raw.close()


@contextlib.asynccontextmanager
async def serving(
    handler: RequestHandler,
    limits: ServerLimits | None = None,
    greet: AuthenticateHead | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[HttpServer, int]]:
    """A server on loopback, which must have let go of everything when it is over."""
    server = HttpServer(handler, limits, greet)
    port = await server.listen("127.0.0.1", 0, tls)
    try:
        yield server, port
    finally:
        await server.close()
    await until(lambda: leftovers(server) == {})


def leftovers(server: HttpServer) -> dict[str, object]:
    """What a server without clients should not have."""
    found = {
        name.strip("_"): getattr(server, name)
        for name in (
            "_connections",
            "_unauthenticated",
            "_idle",
            "_reading",
            "_rejected",
            "_blocked",
            "body_budget",
            "active_count",
        )
    }
    return {name: value for name, value in found.items() if value}


async def until(fact: object, seconds: float = PATIENCE) -> None:
    """Until something holds that only polling can show."""
    assert callable(fact)
    async with asyncio.timeout(seconds):
        while not fact():
            await asyncio.sleep(0.01)


def get(path: str = "/", *fields: str, version: str = "1.1", method: str = "GET") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: 127.0.0.1", *fields]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def post(path: str = "/", body: bytes = b"", *fields: str) -> bytes:
    return get(path, f"Content-Length: {len(body)}", *fields, method="POST") + body


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
