"""Clients of both eras before a gateway in virtual time: real HTTP bytes, over connections that are only in memory."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from tests.sim.faults import TICK, ticks
from toolway.errors import Executed
from toolway.types import Era, Json

MODERN: Final = "2026-07-28"
LEGACY: Final = "2025-11-25"
_META: Final = "io.modelcontextprotocol/"
_INFO: Final = {"name": "sim", "version": "1"}
_WAY: Final = 2  # ticks at most from one side of a connection to the other
WAY: Final = _WAY * TICK
_NOTHING_DONE: Final = frozenset({-32700, -32600, -32601, -32602})  # codes that say so without saying it

Heard = Callable[[Json], None]  # a call's notifications


class Refused(ConnectionError):
    """Nobody listens any more."""


class Lost(ConnectionError):
    """The connection ended before the answer."""


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What was reported to the client of a call."""

    outcome: str
    executed: Executed
    attempts: int = 0
    nonce: str | None = None
    again: bool = False
    detail: str = ""


class FakeNetwork:
    """In place of a listening socket."""

    sockets: Final[Any] = (type("Socket", (), {"getsockname": staticmethod(lambda: ("127.0.0.1", 80))}),)

    def __init__(self) -> None:
        self.make: Callable[[], asyncio.Protocol] | None = None

    async def create_server(self, make: Callable[[], asyncio.Protocol], *_: Any, **__: Any) -> FakeNetwork:
        self.make = make
        return self

    def close(self) -> None:
        self.make = None


class Wire(asyncio.Transport):
    """A connection. Bytes take a while in both directions, and stay in order."""

    def __init__(self, dice: random.Random, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._dice = dice
        self._protocol = protocol
        self._to_gateway: deque[bytes] = deque()
        self._to_client: deque[bytes] = deque()
        self._left = False  # the gateway has closed its side
        self._over = False  # nothing is read any more
        self._buffer = b""
        self._answer: asyncio.Future[tuple[int, dict[str, str], list[Json]]] | None = None
        self._heard: Heard = _ignore
        self._read_events = 0
        self._stale = False  # an abandoned answer is still to come
        protocol.connection_made(self)

    # -- the side of the client ---------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        return not self._over and not self._stale and self._answer is None

    def reserve(self) -> None:
        """Let no other request use the connection until `exchange` is called."""
        self._answer = self._loop.create_future()

    async def exchange(self, data: bytes, heard: Heard) -> tuple[int, dict[str, str], list[Json]]:
        """Send a request. Return the status, the headers and the messages of the answer. Raises `Lost`."""
        if self._over:
            raise Lost
        self._answer = self._loop.create_future()
        self._heard = heard
        self._queue(self._to_gateway, data, self._arrive)
        try:
            return await self._answer
        except asyncio.CancelledError:
            self._stale = True
            raise
        finally:
            self._answer = None

    def hang_up(self) -> None:
        if not self._over:
            self._over = True
            self._queue(self._to_gateway, b"", self._arrive)

    def _queue(self, queue: deque[bytes], data: bytes, arrive: Callable[[], None]) -> None:
        queue.append(data)
        self._loop.call_later(ticks(self._dice, 0, _WAY), arrive)

    def _arrive(self) -> None:
        data = self._to_gateway.popleft()
        if self._left:
            return
        if data:
            self._protocol.data_received(data)
        else:
            self._left = True
            self._protocol.eof_received()
            self._protocol.connection_lost(None)

    def _returned(self) -> None:
        data = self._to_client.popleft()
        if not data:
            self._over = True
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(Lost())
            return
        self._buffer += data
        if self._answer is not None and not self._answer.done():
            self._read()

    def _read(self) -> None:
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.decode().split("\r\n")
        status = int(lines[0].split()[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        chunked = headers.get("transfer-encoding") == "chunked"
        if chunked:
            content, rest = _unchunk(body)
        else:
            size = int(headers.get("content-length", "0"))
            content, rest = body[:size], (body[size:] if len(body) >= size else None)
        messages = _messages(headers, content)
        for message in messages[self._read_events :]:
            if "method" in message:
                self._heard(message)
        self._read_events = len(messages)
        if rest is not None and self._answer is not None:
            self._buffer, self._read_events = rest, 0
            self._answer.set_result((status, headers, messages))

    # -- the side of the gateway --------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if not self._left and data:
            self._queue(self._to_client, bytes(data), self._returned)

    def writelines(self, data: Any) -> None:
        self.write(b"".join(data))

    def close(self) -> None:
        if not self._left:
            self._left = True
            self._queue(self._to_client, b"", self._returned)
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def is_closing(self) -> bool:
        return self._left

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever full."""

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """Nothing to do: requests are small."""

    def resume_reading(self) -> None:
        """Nothing to do, as nothing was paused."""


def _unchunk(data: bytes) -> tuple[bytes, bytes | None]:
    """The content so far, and what follows it if that was all of it."""
    content = b""
    while True:
        size, found, data = data.partition(b"\r\n")
        if not found or len(data) < int(size, 16) + 2:
            return content, None
        content, data = content + data[: int(size, 16)], data[int(size, 16) + 2 :]
        if int(size, 16) == 0:
            return content, data


def _messages(headers: dict[str, str], content: bytes) -> list[Json]:
    if not headers.get("content-type", "").startswith("text/event-stream"):
        try:
            found = json.loads(content)
        except ValueError:
            return []
        return [found] if isinstance(found, dict) else []
    events = content.split(b"\n\n")[:-1]
    data = [b"".join(line[5:] for line in event.split(b"\n") if line.startswith(b"data:")) for event in events]
    return [json.loads(each) for each in data if each.strip().startswith(b"{")]


def _ignore(_: Json) -> None:
    return None


class Client:
    """A client of one era, with as many connections as it has calls running."""

    def __init__(self, era: Era, dice: random.Random, door: FakeNetwork) -> None:
        self.era = era
        self._dice = dice
        self._door = door
        self._ids = itertools.count(1)
        self._wires: list[Wire] = []
        self._session: asyncio.Future[str] | None = None

    async def call(self, tool: str, arguments: Json, meta: Json, heard: Heard) -> CallOutcome:
        """Call a tool. If the task is cancelled, the client takes the call back, in the way of its era."""
        try:
            session = await self._open() if self.era == "legacy" else ""
            wire = self._connect()
        except Refused:
            return CallOutcome("refused", "no")
        except Lost:
            return CallOutcome("refused", "no", detail="no session")
        id_ = next(self._ids)
        params: Json = {"name": tool, "arguments": arguments, "_meta": meta}
        try:
            status, headers, messages = await wire.exchange(self._request(id_, "tools/call", params, session), heard)
        except Lost:
            return CallOutcome("lost", "unknown")
        except asyncio.CancelledError:
            self._take_back(wire, id_, session)
            raise
        if headers.get("connection") == "close":
            wire.hang_up()
        return _outcome_of(id_, status, messages)

    def _take_back(self, wire: Wire, id_: int, session: str) -> None:
        """A modern client hangs up. A legacy one says that it gives up, or hangs up and means nothing by it."""
        if self.era == "modern" or self._dice.random() < 0.3:
            wire.hang_up()
            return
        try:
            other = self._connect()
        except Refused:
            return
        other.reserve()  # the task begins later
        gone = self._request(None, "notifications/cancelled", {"requestId": id_}, session)
        asyncio.get_running_loop().create_task(_send_alone(other, gone))
        if self._dice.random() < 0.5:
            wire.hang_up()

    async def _open(self) -> str:
        if self._session is None or (self._session.done() and self._session.exception() is not None):
            self._session = asyncio.ensure_future(self._initialize())
        return await asyncio.shield(self._session)

    async def _initialize(self) -> str:
        params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": _INFO}
        status, headers, _ = await self._connect().exchange(self._request(0, "initialize", params, ""), _ignore)
        if status != 200:
            raise Refused
        return headers["mcp-session-id"]

    def _connect(self) -> Wire:
        self._wires = [wire for wire in self._wires if not wire._over]
        for wire in self._wires:
            if wire.usable:
                return wire
        if self._door.make is None:
            raise Refused
        wire = Wire(self._dice, self._door.make())
        self._wires.append(wire)
        return wire

    def _request(self, id_: int | None, method: str, params: Json, session: str) -> bytes:
        fields = {"host": "127.0.0.1", "content-type": "application/json"}
        fields["accept"] = "application/json, text/event-stream"
        if self.era == "modern":
            own = {"protocolVersion": MODERN, "clientInfo": _INFO, "clientCapabilities": {}}
            params = {**params, "_meta": {**{_META + name: value for name, value in own.items()}, **params["_meta"]}}
            fields |= {"mcp-protocol-version": MODERN, "mcp-method": method, "mcp-name": params["name"]}
        elif session:
            fields |= {"mcp-protocol-version": LEGACY, "mcp-session-id": session}
        message: Json = {"jsonrpc": "2.0", "method": method, "params": params}
        body = json.dumps(message if id_ is None else {**message, "id": id_}).encode()
        lines = [f"{name}: {value}" for name, value in (*fields.items(), ("content-length", str(len(body))))]
        return "\r\n".join(["POST /mcp HTTP/1.1", *lines, "", ""]).encode() + body


async def _send_alone(wire: Wire, data: bytes) -> None:
    try:
        await wire.exchange(data, _ignore)
    except Lost:
        return


def _outcome_of(id_: int, status: int, messages: list[Json]) -> CallOutcome:
    answers = [message for message in messages if "method" not in message and message.get("id") in (id_, None)]
    if len(answers) != 1:
        said: Literal["no", "unknown"] = "no" if status == 503 else "unknown"  # a 503 invites to send it again
        outcome = f"http-{status}" if not answers else "broken"
        return CallOutcome(outcome, said, detail=f"HTTP {status} with {len(answers)} answers")
    (answer,) = answers
    if "error" in answer:
        return _failed(answer["error"])
    result = answer["result"]
    nonce = result["content"][0]["text"]
    return CallOutcome("tool_error" if result.get("isError") else "ok", "yes", nonce=nonce)


def _failed(error: Json) -> CallOutcome:
    data: Json = error["data"] if isinstance(error.get("data"), dict) else {}
    facts = data.get("toolway", data)
    executed = facts.get("executed", "no" if error["code"] in _NOTHING_DONE else None)
    if executed not in ("no", "unknown", "yes"):
        return CallOutcome("broken", "unknown", detail=f"{error} does not say whether it ran")
    return CallOutcome(
        str(facts.get("code", error["code"])), executed, facts.get("attempts", 0), detail=error["message"]
    )
