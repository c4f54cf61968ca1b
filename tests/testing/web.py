"""Just enough of an HTTP client to test the fake server with, on raw streams."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from toolway.testing import FakeHttp

Json = dict[str, Any]
ERAS = ("modern", "legacy")
PREFIX = "io.modelcontextprotocol/"
CAPABILITIES: Json = {"elicitation": {}, "sampling": {}, "roots": {}}
META = {PREFIX + "protocolVersion": "2026-07-28", PREFIX + "clientCapabilities": CAPABILITIES}
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


def story(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test, in bounded time."""

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**arguments), 30))

    return run


class Response:
    """An answer as it came: head, and a body that may still be coming."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.reader = reader
        self.writer = writer

    async def read_head(self) -> None:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        line, *fields = head.strip().split("\r\n")
        self.status = int(line.split()[1])
        self.headers = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}

    async def body(self) -> bytes:
        """All of the body; raises `IncompleteReadError` where it is cut short."""
        if "transfer-encoding" in self.headers:
            return b"".join([chunk async for chunk in self.chunks()])
        return await self.reader.readexactly(int(self.headers.get("content-length", "0")))

    async def chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)

    async def events(self) -> AsyncIterator[Json]:
        """The messages of a stream; the server sends one chunk for each."""
        async for chunk in self.chunks():
            data = chunk.split(b"data: ", 1)[1].strip()
            if data:
                yield json.loads(data)

    async def message(self) -> Json:
        """The JSON-RPC answer, as JSON or as the last event."""
        if self.headers.get("content-type") == "text/event-stream":
            return [event async for event in self.events()][-1]
        message: Json = json.loads(await self.body())
        return message

    def close(self) -> None:
        self.writer.close()


class Client:
    """Posts messages, each on its own connection unless one is given."""

    def __init__(self, server: FakeHttp, modern: bool) -> None:
        self.server = server
        self.modern = modern
        self.session = ""
        self._last = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> Response:
        reader, writer = await asyncio.open_connection(self.server.host, self.server.port)
        self._writers.append(writer)
        return Response(reader, writer)

    async def request(
        self, method: str, headers: dict[str, str], body: bytes = b"", on: Response | None = None, path: str = "/mcp"
    ) -> Response:
        response = await self.connect() if on is None else Response(on.reader, on.writer)
        fields = {"Host": "fake", "Content-Length": str(len(body)), **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        response.writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        await response.read_head()
        return response

    def headers(self, message: Json) -> dict[str, str]:
        if not self.modern:
            return {**ACCEPT, **({"Mcp-Session-Id": self.session} if self.session else {})}
        params = message.get("params", {})
        name = params.get("name", params.get("uri"))
        mirrored = {"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": message["method"]}
        return {**ACCEPT, **mirrored, **({"Mcp-Name": name} if name else {})}

    async def post(self, message: Json, on: Response | None = None, **headers: str) -> Response:
        changed = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.request("POST", {**self.headers(message), **changed}, json.dumps(message).encode(), on)

    async def send(self, method: str, params: Json | None = None, on: Response | None = None) -> Response:
        """Post a request, dressed for its era."""
        self._last += 1
        params = dict(params or {})
        if self.modern:
            params["_meta"] = {**META, **params.get("_meta", {})}
        return await self.post({"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}, on)

    async def send_call(self, tool: str, _meta: Json | None = None, **arguments: Any) -> Response:
        params: Json = {"name": tool, "arguments": arguments}
        return await self.send("tools/call", {**params, "_meta": _meta} if _meta else params)

    async def ask(self, method: str, params: Json | None = None) -> Json:
        return await (await self.send(method, params)).message()

    async def call(self, tool: str, **arguments: Any) -> Json:
        result: Json = (await (await self.send_call(tool, **arguments)).message())["result"]
        return result

    async def shake_hands(self) -> None:
        response = await self.send("initialize", {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES})
        self.session = response.headers["mcp-session-id"]

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def fake(*modes: str, era: str = "modern", **options: Any) -> AsyncIterator[Client]:
    """A client of a fake server, and `client.server`; in the handshake era, after the handshake."""
    async with FakeHttp(era=era, modes=modes, **options) as server:
        client = Client(server, era != "legacy")
        try:
            if era == "legacy":
                await client.shake_hands()
            yield client
        finally:
            client.close()


def text(result: Json) -> str:
    said: str = result["content"][0]["text"]
    return said
