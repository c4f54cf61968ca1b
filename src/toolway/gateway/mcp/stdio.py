"""`toolway serve --stdio`: one client of either era, over stdin and stdout.

Each request shows its own era. Lines are framed and limited like those of stdio servers. The gateway ends when the
client closes our input.
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

from toolway.gateway.mcp.context import RequestContext
from toolway.gateway.mcp.dispatcher import RequestDispatcher
from toolway.gateway.mcp.errors import RpcFailure
from toolway.gateway.mcp.legacy_session import LegacySession
from toolway.gateway.mcp.legacy_sessions import LegacySessions
from toolway.gateway.mcp.modern import MODERN_META_KEY, Discovery
from toolway.gateway.mcp.responses import RpcResult, encode_error
from toolway.gateway.mcp.subscriptions import SubscriptionService
from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.principals import LOCAL_ADMIN
from toolway.protocol import jsonrpc
from toolway.protocol.cancellation import CANCELLED
from toolway.protocol.jsonrpc import Message
from toolway.protocol.versions import LOG_LEVELS
from toolway.types import Json

MAX_LINE_BYTES: Final = 4 * 1024 * 1024
MAX_ACTIVE_REQUESTS: Final = 1024  # concurrent requests
MAX_UNREAD_BYTES: Final = 64 * 1024 * 1024  # bytes written but not yet read by the client
_log = logging.getLogger(__name__)


class StdioClient:
    """Serves the one MCP client that is connected to stdin and stdout of the gateway process."""

    def __init__(
        self,
        dispatcher: RequestDispatcher,
        discovery: Discovery,
        subscriptions: SubscriptionService,
        sessions: LegacySessions,
        view: EndpointView,
    ) -> None:
        self._dispatcher = dispatcher
        self._discovery = discovery
        self._subscriptions = subscriptions
        self._sessions = sessions
        self._view = view
        self._session: LegacySession | None = None
        self._active_requests: dict[jsonrpc.MessageId, asyncio.Task[None]] = {}
        self._write: Callable[[bytes], None] = lambda line: None
        self._subscribing: asyncio.Task[None] | None = None

    async def serve(self, source: BinaryIO, sink: BinaryIO) -> None:
        """Read and answer messages until the client closes `source`; write to `sink`."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
        transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sink)

        def write(line: bytes) -> None:
            if transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
                transport.abort()  # the client does not read
            elif not transport.is_closing():
                transport.write(line + b"\n")

        self._write = write
        try:
            while not transport.is_closing() and (line := await _read_line(reader)):
                self._handle_line(line)
        finally:
            if self._subscribing is not None:
                self._subscribing.cancel()
            for task in self._active_requests.values():
                task.cancel()
            await asyncio.gather(*self._active_requests.values(), return_exceptions=True)
            transport.close()

    def _handle_line(self, line: bytes) -> None:
        try:
            message = jsonrpc.parse_message(line)
        except jsonrpc.InvalidMessage as bad:
            self._write(encode_error(bad.id, PARSE_ERROR, bad.reason))
            return
        if message.kind != "request":
            self._handle_non_request(message)
            return
        id_ = message.id
        assert id_ is not None
        if id_ in self._active_requests or len(self._active_requests) >= MAX_ACTIVE_REQUESTS:
            self._write(
                encode_error(id_, INVALID_REQUEST, "request id already in use, or too many concurrent requests")
            )
            return
        task = asyncio.get_running_loop().create_task(self._handle_request(message))
        self._active_requests[id_] = task
        task.add_done_callback(lambda _: self._active_requests.pop(id_, None))

    def _handle_non_request(self, message: Message) -> None:
        if message.kind == "notification" and message.method == CANCELLED:
            task = self._active_requests.get(message.body.get("requestId"))
            if task is not None:
                task.cancel()
        elif self._session is not None:
            self._sessions.handle_message(self._session, message)

    async def _handle_request(self, message: Message) -> None:
        assert message.id is not None
        try:
            result = await self._compute_result(message)
        except RpcFailure as failure:
            self._write(encode_error(message.id, failure.code, failure.message, failure.data))
        except Exception:
            _log.exception("client request failed: %s", message.method)
            self._write(encode_error(message.id, INTERNAL_ERROR, "internal error in the gateway"))
        else:
            self._write(result if isinstance(result, bytes) else jsonrpc.encode_result(message.id, result))

    async def _compute_result(self, message: Message) -> RpcResult | bytes:
        meta = message.body.get("_meta")
        if (isinstance(meta, dict) and MODERN_META_KEY in meta) or message.method == "server/discover":
            return await self._handle_modern(message)
        if message.method == "initialize":
            return self._initialize(message.body)
        if self._session is None:
            raise RpcFailure(INVALID_REQUEST, "no session: send initialize first")
        response = await self._sessions.handle_request(self._session, message, self._send)
        if response is None:
            raise asyncio.CancelledError
        return response

    def _send(self, data: bytes) -> bool:
        self._write(data)
        return True

    def _notify(self, method: str, params: Json) -> None:
        self._write(jsonrpc.encode_notification(method, params))

    def _initialize(self, params: Json) -> Json:
        _, result = self._sessions.initialize(LOCAL_ADMIN, self._view, "", params)
        capabilities: Any = params.get("capabilities")
        facts: Json = {
            "capabilities": capabilities if isinstance(capabilities, dict) else {},
            "version": result["protocolVersion"],
            "endpoint": "",
        }
        if self._session is not None:
            self._sessions.close_session(self._session)  # the client starts a new session
        self._session = StdioSession(facts, self._view, self._notify)
        self._subscribing = asyncio.get_running_loop().create_task(self._subscribe(self._session))
        return result

    async def _subscribe(self, session: LegacySession) -> None:
        await self._sessions.ensure_subscriber(session)

    async def _handle_modern(self, message: Message) -> RpcResult:
        found = classify_inbound_request({"method": message.method, "params": message.body})
        if isinstance(found, InboundLadderRejection):
            raise RpcFailure(found.code, found.message, found.data)
        level = message.body["_meta"].get(LOG_LEVEL_META_KEY)
        context = RequestContext(
            LOCAL_ADMIN,
            self._view,
            "",
            "modern",
            found.client_capabilities if isinstance(found.client_capabilities, dict) else {},
            self._notify,
            log_level=level if level in LOG_LEVELS else None,
            request_id=message.id,
            version=found.protocol_version,
            transport="pipe",
        )
        if message.method == "server/discover":
            return self._discovery.discover(self._view)
        if message.method == "subscriptions/listen":
            assert message.id is not None
            await self._subscriptions.run_subscription(context, message.id, message.body, self._notify)
            return {"resultType": "complete", "_meta": {SUBSCRIPTION_ID_META_KEY: message.id}}
        return await self._dispatcher.dispatch(context, message.method, message.body)


class StdioSession(LegacySession):
    """Legacy session over stdio: all messages to the client use the same stream."""

    def __init__(self, facts: Json, view: EndpointView, notify: Callable[[str, Json], None]) -> None:
        super().__init__(facts, LOCAL_ADMIN, view)
        self.transport = "pipe"
        self._notify = notify

    def notify(self, method: str, params: Json) -> None:
        self._notify(method, params)


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    """Return the next non-empty line from the client.

    Empty bytes at end of input, after a lost connection or if a line is too long.
    """
    while True:
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as exc:
            return exc.partial.strip()
        except (asyncio.LimitOverrunError, ConnectionError):
            return b""
        if line.strip():
            return line


def take_stdio() -> tuple[BinaryIO, BinaryIO]:
    """Return stdin and stdout for the protocol only; stray prints now go to stderr."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return source, sink
