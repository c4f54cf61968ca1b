"""`toolway serve --stdio`: one client of either era, over stdin and stdout.

Each request shows its own era, and a request without `initialize` is served on its own. Lines are framed and limited
like those of stdio servers. When the client closes the gateway's input, the gateway finishes the requests in flight,
then exits. Input and output may be files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, BinaryIO, Final

from toolway._async import run_in_daemon_thread
from toolway._os import can_poll
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
from toolway.protocol.constants import (
    CLIENT_CAPABILITIES_META_KEY,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    LOG_LEVEL_META_KEY,
    PARSE_ERROR,
    PROTOCOL_VERSION_META_KEY,
    SUBSCRIPTION_ID_META_KEY,
)
from toolway.protocol.headers import check_request
from toolway.protocol.jsonrpc import Message
from toolway.protocol.versions import LOG_LEVELS
from toolway.types import Json

MAX_LINE_BYTES: Final = 4 * 1024 * 1024
MAX_ACTIVE_REQUESTS: Final = 1024  # concurrent requests
MAX_UNREAD_BYTES: Final = 64 * 1024 * 1024  # bytes written but not yet read by the client
FLUSH_TIMEOUT_S: Final = 5.0  # seconds at the end, for the client to read what was written
_log = logging.getLogger(__name__)


class StdioClient:
    """Server of the one MCP client that is connected to stdin and stdout of the gateway process."""

    def __init__(
        self,
        dispatcher: RequestDispatcher,
        discovery: Discovery,
        subscriptions: SubscriptionService,
        sessions: LegacySessions,
        find_view: Callable[[], EndpointView],
    ) -> None:
        self._dispatcher = dispatcher
        self._discovery = discovery
        self._subscriptions = subscriptions
        self._sessions = sessions
        self._find_view = find_view  # another one after a change of the policy
        self._session: LegacySession | None = None
        self._active_requests: dict[jsonrpc.MessageId, asyncio.Task[None]] = {}
        self._write: Callable[[bytes], None] = lambda line: None
        self._subscribing: asyncio.Task[None] | None = None
        self._listening: set[asyncio.Task[None]] = set()  # requests that are subscriptions

    @property
    def _view(self) -> EndpointView:
        return self._find_view()

    async def serve(self, source: BinaryIO, sink: BinaryIO) -> None:
        """Read messages from `source` and write the answers to `sink` until the client closes `source`.

        Running requests then finish within their deadlines, unless the client closes `sink` too.
        """
        read_line, output = await _open_input(source), LineWriter(sink)
        await output.open()
        self._write = output.write
        try:
            while not output.closed.is_set() and (line := await read_line()):
                self._handle_line(line)
            await self._finish_requests(output.closed)
        finally:
            if self._subscribing is not None:
                self._subscribing.cancel()
            for task in self._active_requests.values():
                task.cancel()
            await asyncio.gather(*self._active_requests.values(), return_exceptions=True)
            await output.close()

    async def _finish_requests(self, output_closed: asyncio.Event) -> None:
        """Wait for running requests after the end of the input, until the client stops reading."""
        for task in self._listening:
            task.cancel()  # a subscription does not end by itself
        if self._session is not None:
            self._session.end_client_requests()
        closed = asyncio.create_task(output_closed.wait())
        try:
            while self._active_requests and not closed.done():
                await asyncio.wait({closed, *self._active_requests.values()}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()

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
        if message.method == "subscriptions/listen":
            self._listening.add(task)
            task.add_done_callback(self._listening.discard)

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
            context = RequestContext(LOCAL_ADMIN, self._view, "", "legacy", request_id=message.id, transport="pipe")
            return await self._sessions.handle_stateless(context, message)
        self._session.set_view(self._view)
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
        error = check_request(message.method, message.body)
        if error is not None:
            raise RpcFailure(*error)
        meta = message.body["_meta"]
        level, capabilities = meta.get(LOG_LEVEL_META_KEY), meta[CLIENT_CAPABILITIES_META_KEY]
        context = RequestContext(
            LOCAL_ADMIN,
            self._view,
            "",
            "modern",
            capabilities if isinstance(capabilities, dict) else {},
            self._notify,
            log_level=level if level in LOG_LEVELS else None,
            request_id=message.id,
            version=meta[PROTOCOL_VERSION_META_KEY],
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


# -- stdin and stdout, which may be pipes, terminals or files ----------------------------------------------------------


async def _open_input(source: BinaryIO) -> Callable[[], Awaitable[bytes]]:
    """Return a function that reads the next non-empty line from the client.

    It returns empty bytes at the end of the input, after a lost connection, or if a line is too long.
    """
    if not can_poll(source):
        return partial(run_in_daemon_thread, _read_file_line, source)
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
    return partial(_read_line, reader)


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    while True:
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as exc:
            return exc.partial.strip()
        except (asyncio.LimitOverrunError, ConnectionError):
            return b""
        if line.strip():
            return line


def _read_file_line(source: BinaryIO) -> bytes:
    while line := source.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            return b""
        if line.strip():
            return line
    return b""


class LineWriter(asyncio.BaseProtocol):
    """Writes lines to stdout, which may be a pipe, a socket, or a file.

    `closed` is set when nothing can be written any more.
    """

    def __init__(self, sink: BinaryIO) -> None:
        self.closed = asyncio.Event()
        self._sink = sink
        self._transport: asyncio.WriteTransport | None = None  # None: a file

    async def open(self) -> None:
        if can_poll(self._sink):
            self._transport, _ = await asyncio.get_running_loop().connect_write_pipe(lambda: self, self._sink)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    def write(self, line: bytes) -> None:
        if self.closed.is_set():
            return
        if self._transport is None:
            self._write_file(line + b"\n")
        elif self._transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._transport.abort()  # the client does not read
        elif not self._transport.is_closing():
            self._transport.write(line + b"\n")

    def _write_file(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._sink.fileno(), rest) :]
        except OSError as exc:
            _log.error("cannot write to stdout: %s", exc.strerror)
            self.closed.set()

    async def close(self) -> None:
        """Write the queued messages within `FLUSH_TIMEOUT_S` seconds, then close stdout."""
        if self._transport is None:
            self._sink.close()
            return
        self._transport.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await self.closed.wait()


def take_stdio() -> tuple[BinaryIO, BinaryIO]:
    """Reserve stdin and stdout for the protocol. All other stdout output now goes to stderr."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return source, sink
