"""`toolway serve --stdio`: one client, at the other end of our own pipes, of either era.

Each request says by itself which era it is of. Lines are framed and bounded as those of servers are; whoever closes
our input ends us.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import LOG_LEVEL_META_KEY
from mcp_types.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR

from toolway.gateway.answers import error
from toolway.gateway.client_session import ClientSession
from toolway.gateway.discovery import Discovery
from toolway.gateway.failures import Failure
from toolway.gateway.handshake import Handshake
from toolway.gateway.listen import Listening
from toolway.gateway.modern import MODERN_META
from toolway.gateway.principals import OWNER
from toolway.gateway.relay import Relay, Result
from toolway.gateway.view import View
from toolway.gateway.visit import Visit
from toolway.model import Json
from toolway.protocol import wire
from toolway.protocol.eras import LOG_LEVELS
from toolway.protocol.wire import Message

MAX_LINE: Final = 4 * 1024 * 1024
MAX_REQUESTS: Final = 1024  # under way at once
MAX_UNREAD: Final = 64 * 1024 * 1024  # bytes that the client has not read yet
_log = logging.getLogger(__name__)


class StdioClient:
    def __init__(
        self, relay: Relay, discovery: Discovery, listening: Listening, sessions: Handshake, view: View
    ) -> None:
        self._relay = relay
        self._discovery = discovery
        self._listening = listening
        self._sessions = sessions
        self._view = view
        self._session: ClientSession | None = None
        self._running: dict[wire.Id, asyncio.Task[None]] = {}
        self._write: Callable[[bytes], None] = lambda line: None
        self._subscribing: asyncio.Task[None] | None = None

    async def serve(self, source: BinaryIO, sink: BinaryIO) -> None:
        """Until the client closes its end."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_LINE)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
        transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sink)

        def write(line: bytes) -> None:
            if transport.get_write_buffer_size() > MAX_UNREAD:
                transport.abort()  # a client that reads nothing is none
            elif not transport.is_closing():
                transport.write(line + b"\n")

        self._write = write
        try:
            while not transport.is_closing() and (line := await _line(reader)):
                self._take(line)
        finally:
            if self._subscribing is not None:
                self._subscribing.cancel()
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)
            transport.close()

    def _take(self, line: bytes) -> None:
        try:
            message = wire.parse(line)
        except wire.BadMessage as bad:
            self._write(error(bad.id, PARSE_ERROR, bad.reason))
            return
        if message.kind != "request":
            self._take_notice(message)
            return
        id_ = message.id
        assert id_ is not None
        if id_ in self._running or len(self._running) >= MAX_REQUESTS:
            self._write(error(id_, INVALID_REQUEST, "a request with this id is under way, or too many are"))
            return
        task = asyncio.get_running_loop().create_task(self._answer(message))
        self._running[id_] = task
        task.add_done_callback(lambda _: self._running.pop(id_, None))

    def _take_notice(self, message: Message) -> None:
        if message.kind == "notification" and message.method == "notifications/cancelled":
            task = self._running.get(message.body.get("requestId"))
            if task is not None:
                task.cancel()
        elif self._session is not None:
            self._sessions.take(self._session, message)

    async def _answer(self, message: Message) -> None:
        assert message.id is not None
        try:
            result = await self._result(message)
        except Failure as failure:
            self._write(error(message.id, failure.code, failure.message, failure.data))
        except Exception:
            _log.exception("a request of the client failed: %s", message.method)
            self._write(error(message.id, INTERNAL_ERROR, "the gateway failed"))
        else:
            self._write(result if isinstance(result, bytes) else wire.result(message.id, result))

    async def _result(self, message: Message) -> Result | bytes:
        meta = message.body.get("_meta")
        if (isinstance(meta, dict) and MODERN_META in meta) or message.method == "server/discover":
            return await self._modern(message)
        if message.method == "initialize":
            return self._initialize(message.body)
        if self._session is None:
            raise Failure(INVALID_REQUEST, "a session begins with initialize")
        answer = await self._sessions.answer(self._session, message, self._send)
        if answer is None:
            raise asyncio.CancelledError
        return answer

    def _send(self, data: bytes) -> bool:
        self._write(data)
        return True

    def _tell(self, method: str, params: Json) -> None:
        self._write(wire.notification(method, params))

    def _initialize(self, params: Json) -> Json:
        _, result = self._sessions.initialize(OWNER, self._view, "", params)
        capabilities: Any = params.get("capabilities")
        facts: Json = {
            "capabilities": capabilities if isinstance(capabilities, dict) else {},
            "version": result["protocolVersion"],
            "endpoint": "",
        }
        if self._session is not None:
            self._sessions.leave(self._session)  # the client begins again
        self._session = PipeSession(facts, self._view, self._tell)
        self._subscribing = asyncio.get_running_loop().create_task(self._subscribe(self._session))
        return result

    async def _subscribe(self, session: ClientSession) -> None:
        await self._sessions.subscriber(session)

    async def _modern(self, message: Message) -> Result:
        found = classify_inbound_request({"method": message.method, "params": message.body})
        if isinstance(found, InboundLadderRejection):
            raise Failure(found.code, found.message, found.data)
        level = message.body["_meta"].get(LOG_LEVEL_META_KEY)
        visit = Visit(
            OWNER,
            self._view,
            "",
            "modern",
            found.client_capabilities if isinstance(found.client_capabilities, dict) else {},
            self._tell,
            log_level=level if level in LOG_LEVELS else None,
            request_id=message.id,
            version=found.protocol_version,
            transport="pipe",
        )
        if message.method == "server/discover":
            return self._discovery.discover(self._view)
        if message.method == "subscriptions/listen":
            assert message.id is not None
            await self._listening.stream(visit, message.id, message.body, self._tell)
            return {"resultType": "complete", "_meta": {SUBSCRIPTION_ID_META_KEY: message.id}}
        return await self._relay.answer(visit, message.method, message.body)


class PipeSession(ClientSession):
    """The one session of a pipe: what belongs to no request goes where everything goes."""

    def __init__(self, facts: Json, view: View, tell: Callable[[str, Json], None]) -> None:
        super().__init__(facts, OWNER, view)
        self.transport = "pipe"
        self._tell = tell

    def tell(self, method: str, params: Json) -> None:
        self._tell(method, params)


async def _line(reader: asyncio.StreamReader) -> bytes:
    """The next line that is not empty; nothing at the end, or after a line that is too long."""
    while True:
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as exc:
            return exc.partial.strip()
        except (asyncio.LimitOverrunError, ConnectionError):
            return b""
        if line.strip():
            return line


def own_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Our standard input and output for the protocol alone; whoever prints by mistake writes to stderr."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return source, sink
