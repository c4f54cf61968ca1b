"""Our own limit: a pass-through without a single promise, to see what the promises of the gateway cost.

    python bare.py PORT NAME=URL… | NAME=COMMAND…

An HTTP server on httptools, the envelope by msgspec with params and result left raw, one splice of the tool's name,
a lean client. No keys, no limits, no deadlines, no checks, no answer when something fails. It is for measuring alone.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections import deque
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

import httptools
import msgspec
import uvloop

Done = Callable[[bytes], None]

_PREFIX = "io.modelcontextprotocol/"
_META = {f"{_PREFIX}protocolVersion": "2026-07-28", f"{_PREFIX}clientCapabilities": {}}
LIST = msgspec.json.encode({"jsonrpc": "2.0", "id": 0, "method": "tools/list", "params": {"_meta": _META}})


class Asked(msgspec.Struct):
    method: str
    id: msgspec.Raw = msgspec.Raw()
    params: msgspec.Raw = msgspec.Raw()


class Answered(msgspec.Struct, omit_defaults=True):
    id: int
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


read_asked = msgspec.json.Decoder(Asked).decode
read_answered = msgspec.json.Decoder(Answered).decode


class Http(asyncio.Protocol):
    """One connection to an HTTP server; free ones wait in the pool of their server."""

    def __init__(self, pool: deque[Http]) -> None:
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self.done: Done
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self._body) if len(self._body) != 1 else self._body[0]
        self._body.clear()
        self._pool.append(self)
        self.done(body)


class HttpServer:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._at = (parts.hostname or "", parts.port or 80)
        self._head = (
            f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n"
            "Content-Length: %d\r\n\r\n"
        ).encode()
        self._free: deque[Http] = deque()
        self._dialling: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        pass

    def send(self, asked: Asked, message: bytes, done: Done) -> None:
        if self._free:
            self._write(self._free.pop(), message, done)
        else:
            task = asyncio.ensure_future(self._dial(message, done))
            self._dialling.add(task)
            task.add_done_callback(self._dialling.discard)

    async def _dial(self, message: bytes, done: Done) -> None:
        _, link = await asyncio.get_running_loop().create_connection(lambda: Http(self._free), *self._at)
        self._write(link, message, done)

    def _write(self, link: Http, message: bytes, done: Done) -> None:
        link.done = done
        link.transport.write(self._head % len(message) + message)


class Pipes(asyncio.SubprocessProtocol):
    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self.waiting: dict[int, tuple[bytes, Done]] = {}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._take(b"".join([*self._rest, line]))
            self._rest.clear()
        if rest:
            self._rest.append(rest)

    def _take(self, line: bytes) -> None:
        answered = read_answered(line)
        own, done = self.waiting.pop(answered.id)
        what, value = (b"result", answered.result) if answered.result else (b"error", answered.error)
        done(b'{"jsonrpc":"2.0","id":%b,"%b":%b}' % (own, what, bytes(value)))


class PipeServer:
    def __init__(self, command: str) -> None:
        self._command = shlex.split(command)
        self._next = 0
        self._pipes: Pipes
        self._stdin: asyncio.WriteTransport

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        transport, self._pipes = await loop.subprocess_exec(Pipes, *self._command, stderr=None)
        self._stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))

    def send(self, asked: Asked, message: bytes, done: Done) -> None:
        self._next += 1
        self._pipes.waiting[self._next] = (bytes(asked.id), done)
        params = bytes(asked.params) or b"{}"
        self._stdin.write(
            b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":%b}\n' % (self._next, asked.method.encode(), params)
        )


Server = HttpServer | PipeServer


class Client(asyncio.Protocol):
    """One connection of a client; it asks one thing at a time."""

    def __init__(self, servers: dict[str, Server], tools: list[bytes]) -> None:
        self._servers = servers
        self._first = next(iter(servers.values()))
        self._tools = tools
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        self._body.clear()
        asked = read_asked(body)
        if not asked.id:
            self._transport.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
        elif asked.method == "tools/list":
            self._answer(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (bytes(asked.id), self._tools[0]))
        elif asked.method == "tools/call":
            self._call(asked, body)
        else:
            self._first.send(asked, body, self._answer)

    def _call(self, asked: Asked, body: bytes) -> None:
        """`"name":"server__tool"` becomes `"name":"tool"`, and goes to that server."""
        begin = body.index(b'"name":"', body.index(b'"params":')) + 8
        end = body.index(b"__", begin)
        server = self._servers[body[begin:end].decode()]
        asked.params = msgspec.Raw(bytes(asked.params).replace(body[begin : end + 2], b"", 1))
        server.send(asked, body[:begin] + body[end + 2 :], self._answer)

    def _answer(self, body: bytes) -> None:
        if self._transport.is_closing():
            return
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)


async def _list(servers: dict[str, Server]) -> bytes:
    """The tools of all servers under their prefixed names, encoded once."""
    tools = []
    for name, server in servers.items():
        got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        server.send(read_asked(LIST), LIST, got.set_result)
        listed = msgspec.json.decode(await got)["result"]["tools"]
        tools += [{**tool, "name": f"{name}__{tool['name']}"} for tool in listed]
    return msgspec.json.encode({"resultType": "complete", "cacheScope": "public", "ttlMs": 60000, "tools": tools})


async def main(port: int, places: list[str]) -> None:
    servers: dict[str, Server] = {}
    for place in places:
        name, _, where = place.partition("=")
        servers[name] = HttpServer(where) if where.startswith("http:") else PipeServer(where)
        await servers[name].start()
    tools = [await _list(servers)]
    listening = await asyncio.get_running_loop().create_server(lambda: Client(servers, tools), "127.0.0.1", port)
    await listening.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2:]))
