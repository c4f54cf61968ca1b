"""Clients of both eras that are nothing but the wire: cheap enough for thousands, and they hide nothing.

An answer is the result, or a `Failed` that says what the gateway says; where the connection ended without one, `Lost`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Json = dict[str, Any]
MODERN: Final = "2026-07-28"
OLD: Final = "2025-11-25"
_META: Final = "io.modelcontextprotocol/"
_INFO: Final = {"name": "rider", "version": "1"}


class Lost(Exception):
    """The connection ended, and the answer had not come. `sent` says whether all of the request had been written."""

    executed = "unknown"

    def __init__(self, why: str, sent: bool = True) -> None:
        super().__init__(why)
        self.sent = sent


class Failed(Exception):
    """An answer that says that it did not work."""

    def __init__(self, status: int, error: Json, closes: bool = False) -> None:
        super().__init__(f"HTTP {status}: {error.get('code')} {error.get('message')}")
        self.status = status
        self.code = error.get("code")
        data = error.get("data")
        self.data: Json = data if isinstance(data, dict) else {}
        self.facts: Json = self.data.get("toolway", self.data)
        self.executed = self.facts.get("executed")
        self.attempts = self.facts.get("attempts", 1)
        self.closes = closes


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def closes(self) -> bool:
        return self.headers.get("connection", "").lower() == "close"


@dataclass
class Result:
    """What a call brought, as the history wants to see it."""

    raw: Json
    closes: bool = False
    attempts: int = 1
    notices: list[Json] = field(default_factory=list)

    @property
    def is_error(self) -> bool:
        return self.raw.get("isError") is True

    @property
    def data(self) -> Any:
        return self.raw.get("structuredContent")


class Connection:
    """One connection; requests on it come one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.over = False
        _open.add(self)

    @classmethod
    async def to(cls, port: int, host: str = "127.0.0.1") -> Connection:
        """`host` may be the path of a Unix socket. Raises `OSError`."""
        if host.startswith("/"):
            return cls(*await asyncio.open_unix_connection(host, limit=2**22))
        return cls(*await asyncio.open_connection(host, port, limit=2**22))

    async def request(self, method: str, path: str, fields: Mapping[str, str], body: bytes = b"") -> Answer:
        """One request and its whole answer. Raises `Lost`."""
        await self.send(method, path, fields, body)
        status, headers = await self.head()
        return Answer(status, headers, b"".join([part async for part in self.parts(status, headers)]))

    async def send(self, method: str, path: str, fields: Mapping[str, str], body: bytes = b"") -> None:
        lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        try:
            self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
            await self._writer.drain()
        except OSError as exc:
            self.over = True
            raise Lost(repr(exc), sent=False) from None

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self._until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:-2])}
        self.over = headers.get("connection", "").lower() == "close"
        return int(lines[0].split()[1]), headers

    async def parts(self, status: int, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The body, as it comes."""
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await self._until(b"\r\n"), 16):
                yield (await self._exactly(size + 2))[:-2]
            await self._until(b"\r\n")
        elif status not in (202, 204):
            yield await self._exactly(int(headers.get("content-length", "0")))

    async def _until(self, end: bytes) -> bytes:
        try:
            return await self._reader.readuntil(end)
        except (asyncio.IncompleteReadError, OSError) as exc:
            self.over = True
            raise Lost(repr(exc)) from None

    async def _exactly(self, size: int) -> bytes:
        try:
            return await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError) as exc:
            self.over = True
            raise Lost(repr(exc)) from None

    def close(self) -> None:
        self.over = True
        self._writer.close()
        _open.discard(self)

    def abort(self) -> None:
        """End it at once, whatever it was doing."""
        self._writer.transport.abort()
        self.close()


_open: set[Connection] = set()


async def close_all() -> None:
    """Close whatever connection a test has left open."""
    for connection in list(_open):
        connection.abort()
    await asyncio.sleep(0.01)


class LoadClient:
    """A client with one connection, which it opens again when it ended."""

    era = ""
    host = "127.0.0.1"

    def __init__(self, port: int, token: str, path: str = "/mcp") -> None:
        self.port = port
        self.path = path
        self.fields = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        self.fields["accept"] = "application/json, text/event-stream"
        self.connection: Connection | None = None
        self._ids = itertools.count(1)
        self.last_id = 0  # of the last request

    async def call(
        self, tool: str, arguments: Json, *, meta: Json | None = None, headers: Mapping[str, str] | None = None
    ) -> Result:
        """Call a tool by its listed name. Raises `Failed`, `Lost`, and `OSError` where no server listens."""
        params: Json = {"name": tool, "arguments": arguments}
        if meta:
            params["_meta"] = meta
        return await self.request("tools/call", params, headers)

    async def request(self, method: str, params: Json, headers: Mapping[str, str] | None = None) -> Result:
        id_ = self.last_id = next(self._ids)
        connection = await self.begin(id_, method, params, headers)
        try:
            status, fields = await connection.head()
            return await self._answer(connection, id_, status, fields)
        except asyncio.CancelledError:
            connection.abort()
            raise

    async def begin(self, id_: int, method: str, params: Json, headers: Mapping[str, str] | None = None) -> Connection:
        """Send a request; the connection on which its answer comes."""
        connection = await self._connect()
        fields, params = self._dressed(method, params)
        body = json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params}).encode()
        await connection.send("POST", self.path, {**self.fields, **fields, **(headers or {})}, body)
        return connection

    async def _connect(self) -> Connection:
        if self.connection is None or self.connection.over:
            self.close()
            self.connection = await Connection.to(self.port, self.host)
        return self.connection

    async def _answer(self, connection: Connection, id_: int, status: int, fields: dict[str, str]) -> Result:
        closes = fields.get("connection", "").lower() == "close"
        notices: list[Json] = []
        answers = []
        async for message in messages(connection, status, fields):
            if message.get("id") == id_ or (message.get("id") is None and "error" in message):
                answers.append(message)
            else:
                notices.append(message)
        if not answers:
            raise Failed(status, {"message": f"no answer among {notices}"}, closes)
        assert len(answers) == 1, f"answered twice: {answers}"
        if "error" in answers[0]:
            raise Failed(status, answers[0]["error"], closes)
        return Result(answers[0]["result"], closes, notices=notices)

    def _dressed(self, method: str, params: Json) -> tuple[Json, Json]:
        """The headers and params as the era wants them."""
        raise NotImplementedError

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()

    def leave(self) -> None:
        """Cut the connection, in the middle of whatever it carries."""
        if self.connection is not None:
            self.connection.abort()


async def messages(connection: Connection, status: int, fields: Mapping[str, str]) -> AsyncIterator[Json]:
    """The JSON-RPC messages of a response, as they come."""
    if not fields.get("content-type", "").startswith("text/event-stream"):
        body = b"".join([part async for part in connection.parts(status, fields)])
        if body:
            yield json.loads(body)
        return
    buffer = b""
    async for part in connection.parts(status, fields):
        *events, buffer = (buffer + part).split(b"\n\n")
        for event in events:
            data = b"".join(line[5:] for line in event.split(b"\n") if line.startswith(b"data:"))
            if data.strip().startswith(b"{"):
                yield json.loads(data)


class ModernLoadClient(LoadClient):
    era = "modern"

    def _dressed(self, method: str, params: Json) -> tuple[Json, Json]:
        meta = {
            f"{_META}protocolVersion": MODERN,
            f"{_META}clientInfo": _INFO,
            f"{_META}clientCapabilities": {},
            **params.get("_meta", {}),
        }
        fields = {"mcp-protocol-version": MODERN, "mcp-method": method}
        if "name" in params:
            fields["mcp-name"] = params["name"]
        return fields, {**params, "_meta": meta}

    async def listen(self) -> tuple[Connection, AsyncIterator[Json]]:
        """A stream of changes of the tools: its connection, and what comes on it."""
        wanted = {"notifications": {"toolsListChanged": True}}
        connection = await self.begin(next(self._ids), "subscriptions/listen", wanted)
        status, fields = await connection.head()
        assert status == 200, status
        return connection, messages(connection, status, fields)


class LegacyLoadClient(LoadClient):
    era = "legacy"

    def __init__(self, port: int, token: str, path: str = "/mcp") -> None:
        super().__init__(port, token, path)
        self.session = ""

    async def open(self) -> None:
        """Shake hands, if that has not been done. Raises `Failed`."""
        if self.session:
            return
        connection = await self._connect()
        params = {"protocolVersion": OLD, "capabilities": {}, "clientInfo": _INFO}
        body = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).encode()
        answer = await connection.request("POST", self.path, self.fields, body)
        if answer.status != 200:
            raise Failed(answer.status, json.loads(answer.body).get("error", {}), answer.closes)
        self.session = answer.headers["mcp-session-id"]

    async def begin(self, id_: int, method: str, params: Json, headers: Mapping[str, str] | None = None) -> Connection:
        await self.open()
        return await super().begin(id_, method, params, headers)

    def _dressed(self, method: str, params: Json) -> tuple[Json, Json]:
        return {"mcp-protocol-version": OLD, "mcp-session-id": self.session}, params

    async def notify(self, method: str, params: Json) -> None:
        """On its own connection, as the one of a running call is in use."""
        connection = await Connection.to(self.port)
        fields, params = self._dressed(method, params)
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()
        answer = await connection.request("POST", self.path, {**self.fields, **fields}, body)
        assert answer.status == 202, answer
        connection.close()

    async def stream(self) -> tuple[Connection, AsyncIterator[Json]]:
        """The stream of what belongs to no request."""
        await self.open()
        connection = await Connection.to(self.port)
        fields, _ = self._dressed("", {})
        await connection.send("GET", self.path, {**self.fields, **fields})
        status, found = await connection.head()
        assert status == 200, status
        return connection, messages(connection, status, found)


def load_client(era: str, port: int, token: str, path: str = "/mcp") -> LoadClient:
    return (ModernLoadClient if era == "modern" else LegacyLoadClient)(port, token, path)
