"""Lower bound of our gateway's cost: a pass-through gateway without any guarantee.

    python bare.py PORT NAME=URL… | NAME=COMMAND…

It shows the cost of the gateway's guarantees. httptools serves HTTP. msgspec decodes the envelope and leaves params and
result raw. One splice removes the server prefix of the tool name. The HTTP client is minimal. It has no API keys,
limits, deadlines or checks, and sends no response if something fails. Use it for measurements only.
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

OnResult = Callable[[bytes], None]

_PREFIX = "io.modelcontextprotocol/"
_META = {f"{_PREFIX}protocolVersion": "2026-07-28", f"{_PREFIX}clientCapabilities": {}}
LIST = msgspec.json.encode({"jsonrpc": "2.0", "id": 0, "method": "tools/list", "params": {"_meta": _META}})


class Request(msgspec.Struct):
    method: str
    id: msgspec.Raw = msgspec.Raw()
    params: msgspec.Raw = msgspec.Raw()


class Response(msgspec.Struct, omit_defaults=True):
    id: int
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


decode_request = msgspec.json.Decoder(Request).decode
decode_response = msgspec.json.Decoder(Response).decode


class Http(asyncio.Protocol):
    """Connection to an HTTP server. Idle connections wait in the pool of their server."""

    def __init__(self, pool: deque[Http]) -> None:
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self.on_result: OnResult
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
        self.on_result(body)


class HttpServer:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._head = (
            f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n"
            "Content-Length: %d\r\n\r\n"
        ).encode()
        self._free: deque[Http] = deque()
        self._connecting: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        pass

    def send(self, request: Request, message: bytes, on_result: OnResult) -> None:
        if self._free:
            self._write(self._free.pop(), message, on_result)
        else:
            task = asyncio.ensure_future(self._connect(message, on_result))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, message: bytes, on_result: OnResult) -> None:
        _, connection = await asyncio.get_running_loop().create_connection(lambda: Http(self._free), *self._address)
        self._write(connection, message, on_result)

    def _write(self, connection: Http, message: bytes, on_result: OnResult) -> None:
        connection.on_result = on_result
        connection.transport.write(self._head % len(message) + message)


class Pipes(asyncio.SubprocessProtocol):
    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self.waiting: dict[int, tuple[bytes, OnResult]] = {}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._on_line(b"".join([*self._rest, line]))
            self._rest.clear()
        if rest:
            self._rest.append(rest)

    def _on_line(self, line: bytes) -> None:
        response = decode_response(line)
        request_id, on_result = self.waiting.pop(response.id)
        field, value = (b"result", response.result) if response.result else (b"error", response.error)
        on_result(b'{"jsonrpc":"2.0","id":%b,"%b":%b}' % (request_id, field, bytes(value)))


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

    def send(self, request: Request, message: bytes, on_result: OnResult) -> None:
        self._next += 1
        self._pipes.waiting[self._next] = (bytes(request.id), on_result)
        params = bytes(request.params) or b"{}"
        self._stdin.write(
            b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":%b}\n' % (self._next, request.method.encode(), params)
        )


Server = HttpServer | PipeServer


class Client(asyncio.Protocol):
    """Connection of one client, which sends one request at a time."""

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
        request = decode_request(body)
        if not request.id:
            self._transport.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
        elif request.method == "tools/list":
            self._respond(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (bytes(request.id), self._tools[0]))
        elif request.method == "tools/call":
            self._call(request, body)
        else:
            self._first.send(request, body, self._respond)

    def _call(self, request: Request, body: bytes) -> None:
        """Replace `"name":"server__tool"` by `"name":"tool"` and send the call to that server."""
        begin = body.index(b'"name":"', body.index(b'"params":')) + 8
        end = body.index(b"__", begin)
        server = self._servers[body[begin:end].decode()]
        request.params = msgspec.Raw(bytes(request.params).replace(body[begin : end + 2], b"", 1))
        server.send(request, body[:begin] + body[end + 2 :], self._respond)

    def _respond(self, body: bytes) -> None:
        if self._transport.is_closing():
            return
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)


async def _list_tools(servers: dict[str, Server]) -> bytes:
    """Return the tools of all servers under their prefixed names, encoded once."""
    tools = []
    for name, server in servers.items():
        received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        server.send(decode_request(LIST), LIST, received.set_result)
        listed = msgspec.json.decode(await received)["result"]["tools"]
        tools += [{**tool, "name": f"{name}__{tool['name']}"} for tool in listed]
    return msgspec.json.encode({"resultType": "complete", "cacheScope": "public", "ttlMs": 60000, "tools": tools})


async def main(port: int, targets: list[str]) -> None:
    servers: dict[str, Server] = {}
    for target in targets:
        name, _, address = target.partition("=")
        servers[name] = HttpServer(address) if address.startswith("http:") else PipeServer(address)
        await servers[name].start()
    tools = [await _list_tools(servers)]
    listening = await asyncio.get_running_loop().create_server(lambda: Client(servers, tools), "127.0.0.1", port)
    await listening.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2:]))
