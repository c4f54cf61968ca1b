"""Base of the transports whose messages share one stream in each direction: a pipe or a WebSocket.

Requests of all callers are sent on the stream, and their responses come back in any order, with notifications and
requests of the server between them. This module matches, decodes and answers them. A subclass reads and writes frames:
one frame is one message.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from toolway.config.schema import Server
from toolway.protocol import jsonrpc
from toolway.protocol.cancellation import encode_cancellation
from toolway.types import CallState, Certainty, Era, Json
from toolway.upstream.transport import (
    Disconnect,
    ExchangeListener,
    InboundHandler,
    JSONRPCError,
    Request,
    RequestExchange,
    TransportError,
    require_may_send,
)
from toolway.upstream.transports.pending_requests import PendingRequests, StreamExchange, parse_large
from toolway.upstream.transports.stdio_pipes import Frame

LAST_OUTPUT_TIMEOUT_S: Final = 20.0  # seconds after the stream ended: decoding a large last message takes our time
LAST_READ_GRACE_S: Final = 0.2  # seconds after a large message was decoded, to read what follows it
MAX_BAD_MESSAGE_RATE: Final = (20, 60.0)  # invalid messages and seconds: at this rate the server is restarted
MIN_MESSAGE_RATE: Final = (10 * 1024, 10.0)  # bytes and seconds: a message that grows slower than this has stalled
MAX_SERVER_REQUESTS: Final = 4096  # server requests in progress: the user behind each of them may take long


class MessageStream(ABC):
    """Base class of a transport with one stream of messages in each direction.

    A subclass passes received frames to `_on_frame`, calls `_on_received` after each chunk, and calls `_disconnect`
    once the stream has ended. It implements `_write`, `_cancel_write`, `_pause_reading`, `_resume_reading` and
    `_is_mid_frame`.
    """

    def __init__(self, server: Server, ended_code: str) -> None:
        self._server = server
        self._ended_code = ended_code  # of requests after the end
        self._pending = PendingRequests()
        self._loop = asyncio.get_running_loop()
        self._bad_messages: deque[float] = deque(maxlen=MAX_BAD_MESSAGE_RATE[0])
        self._invalid_messages = 0
        self._messages_sent = 0
        self._messages_received = 0
        self._received = 0  # bytes
        self._tasks: set[asyncio.Task[None]] = set()
        self._decode_task: asyncio.Task[None] | None = None
        self._disconnected: asyncio.Future[Disconnect] = self._loop.create_future()
        self._stall_timer: asyncio.TimerHandle | None = None
        self._is_bare = False
        self._inbound: InboundHandler

    # -- what a subclass implements -----------------------------------------------------------------------------------

    @abstractmethod
    def _write(self, message: bytes, on_sent: Callable[[], None] | None) -> Frame:
        """Queue a message as one frame. Raises `TransportError` (not sent) if that is impossible."""

    @abstractmethod
    def _cancel_write(self, frame: Frame) -> bool:
        """Remove a frame from the write queue. Return False if it was already written, even partly."""

    @abstractmethod
    def _pause_reading(self) -> None:
        """Receive no more frames until `_resume_reading`."""

    @abstractmethod
    def _resume_reading(self) -> None:
        """Receive frames again after `_pause_reading`."""

    @abstractmethod
    def _is_mid_frame(self) -> bool:
        """Return True if a message was received only partly so far."""

    @abstractmethod
    def _close_stream(self) -> None:
        """Stop writing: queued frames must never be written after this."""

    # -- the end ------------------------------------------------------------------------------------------------------

    async def wait_closed(self) -> Disconnect:
        return await asyncio.shield(self._disconnected)

    def set_protocol(self, era: Era, version: str) -> None:
        """Set the protocol era. Responses of a bare server, which has no handshake, are then read leniently.

        Messages are framed alike in all eras.
        """
        self._is_bare = era == "bare"

    def reset_session(self) -> None:  # noqa: B027 (most streams have nothing to reset)
        """Do nothing: the stream is the session."""

    def _disconnect(self, disconnect: Disconnect) -> None:
        """End the transport once: record the reason and fail all pending requests.

        Queued frames must not be written any more: their callers learn that nothing was sent, and may resend
        elsewhere.
        """
        self._close_stream()
        if not self._disconnected.done():
            self._disconnected.set_result(disconnect)
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._pending.fail_all(disconnect.reason, disconnect.code, disconnect.hint)

    def _disconnect_after(self, disconnect: Disconnect, grace: float) -> None:
        """End the transport after `grace` seconds and after all received messages are decoded.

        One of them may be a response. Decoding is awaited for at most `LAST_OUTPUT_TIMEOUT_S` seconds.
        """
        deadline = self._loop.time() + LAST_OUTPUT_TIMEOUT_S
        if grace:
            self._loop.call_later(grace, self._disconnect_when_read, disconnect, deadline)
        else:
            self._disconnect_when_read(disconnect, deadline)

    def _disconnect_when_read(self, disconnect: Disconnect, deadline: float) -> None:
        if self._decode_task is None:
            self._disconnect(disconnect)
            return

        def on_decoded(_: asyncio.Task[None]) -> None:  # then read the rest of the stream
            self._loop.call_later(LAST_READ_GRACE_S, self._disconnect_when_read, disconnect, deadline)

        self._decode_task.add_done_callback(on_decoded)
        self._loop.call_at(deadline, self._disconnect, disconnect)

    # -- sending ------------------------------------------------------------------------------------------------------

    def start(self, request: Request, listener: ExchangeListener | None) -> StreamExchange:
        if self._disconnected.done():
            raise TransportError("the connection to the server has ended", Certainty.NOT_SENT, code=self._ended_code)
        exchange = self._pending.start(request, listener)
        try:
            message = request.encode(exchange.id)
            require_may_send(request.call_state)
            exchange.line = self._write(message, exchange.mark_sent)
            if request.call_state.may_send is not None and not exchange.line.sent:
                exchange.line.may_send = partial(_may_send, exchange, request.call_state)
        except BaseException:
            exchange.listener = None
            self._pending.remove(exchange.id)
            raise
        self._messages_sent += 1
        return exchange

    async def wait(self, exchange: RequestExchange, request: Request) -> Json:
        assert isinstance(exchange, StreamExchange)
        try:
            return await exchange.future  # fails when the transport ends, so a blocked write cannot outlive it
        except asyncio.CancelledError:
            self.abandon(exchange, request)
            raise
        finally:
            self._pending.remove(exchange.id)

    def abandon(self, exchange: RequestExchange, request: Request) -> None:
        assert isinstance(exchange, StreamExchange)
        self._pending.remove(exchange.id)
        if exchange.line is not None and not self._cancel_write(exchange.line):
            exchange.mark_sent()
            if not request.silent_cancel:
                self._try_write(encode_cancellation(exchange.id))

    async def request(self, request: Request) -> Json:
        return await self.wait(self.start(request, None), request)

    async def notify(self, method: str, params: Json) -> None:
        self._write(jsonrpc.encode_notification(method, params), None)
        self._messages_sent += 1

    def _try_write(self, message: bytes) -> None:
        with contextlib.suppress(TransportError):
            self._write(message, None)
            self._messages_sent += 1

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _on_received(self, size: int) -> None:
        """Count received bytes. Start the timer that checks whether a partly received message makes progress."""
        self._received += size
        if self._stall_timer is None and self._is_mid_frame():
            self._stall_timer = self._loop.call_later(MIN_MESSAGE_RATE[1], self._check_stalled, self._received)

    def _check_stalled(self, before: int) -> None:
        """End the transport if a partly received message has stalled while requests wait.

        `before` is the number of bytes received at the previous check.
        """
        self._stall_timer = None
        if not self._is_mid_frame() or not self._pending:
            return
        if self._received - before < MIN_MESSAGE_RATE[0]:
            self._disconnect(Disconnect("the server stopped in the middle of a message", "E-FRAME-HALF"))
        else:
            self._stall_timer = self._loop.call_later(MIN_MESSAGE_RATE[1], self._check_stalled, self._received)

    def _on_frame(self, frame: bytes) -> None:
        self._messages_received += 1
        if len(frame) > jsonrpc.LARGE_BYTES and jsonrpc.is_large(frame):
            self._decode_task = self._start_task(self._on_large_frame(frame))
            return
        try:
            message = jsonrpc.parse_message(frame)
        except jsonrpc.InvalidMessage as bad:
            if self._is_bare and (response := jsonrpc.parse_bare_response(frame)) is not None:
                self._pending.resolve(response)
            else:
                self._on_bad_frame(frame, bad)
            return
        if message.kind == "result":
            self._pending.resolve(message, frame)
        else:
            self._on_message(message)

    async def _on_large_frame(self, frame: bytes) -> None:
        """Decode a large message in a thread, and process it.

        Reading pauses while the thread works, so only one message is decoded at a time.
        """
        self._pause_reading()
        try:
            self._on_message(await parse_large(frame, self._pending.method_for(jsonrpc.extract_id(frame))))
        except jsonrpc.InvalidMessage as bad:
            self._on_bad_frame(frame, bad)
        finally:
            if self._decode_task is asyncio.current_task():
                self._decode_task = None
            self._resume_reading()

    def _on_message(self, message: jsonrpc.Message) -> None:
        if message.kind in ("result", "error"):
            self._pending.resolve(message)
        elif message.kind == "notification":
            self._inbound.on_notification(message.method, message.body)
        else:
            self._start_server_request(message)

    def _on_bad_frame(self, frame: bytes, bad: jsonrpc.InvalidMessage) -> None:
        """Fail the request that an invalid message belongs to, or count the message if there is none.

        Too many of them in a short time end the transport.
        """
        self._invalid_messages += 1
        reason = f"the server's response is invalid: {bad.reason}"
        if self._pending.reject(bad.id, reason, bad.code or "E-ANSWER", bad.hint):
            return
        if frame.lstrip().startswith((b"{", b"\xef\xbb\xbf{")):
            self._count_bad_message()

    def _count_bad_message(self) -> None:
        limit, seconds = MAX_BAD_MESSAGE_RATE
        now = self._loop.time()
        self._bad_messages.append(now)
        if len(self._bad_messages) == limit and now - self._bad_messages[0] < seconds:
            self._disconnect(Disconnect(f"{limit} unreadable messages in {seconds:g} s", "E-FRAME-BAD"))

    # -- server requests ----------------------------------------------------------------------------------------------

    def _start_server_request(self, message: jsonrpc.Message) -> None:
        if len(self._tasks) >= MAX_SERVER_REQUESTS:
            self._try_write(jsonrpc.encode_error(message.id or 0, -32603, "too many requests at once"))
            return
        self._start_task(self._handle_server_request(message))

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `coroutine` in a task, which `_cancel_tasks` cancels when the transport ends."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _cancel_tasks(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()

    async def _handle_server_request(self, message: jsonrpc.Message) -> None:
        assert message.id is not None
        try:
            result = await self._inbound.on_request(message.method, message.body)
            if result is not None:
                self._try_write(jsonrpc.encode_result(message.id, result))
        except JSONRPCError as exc:
            self._try_write(jsonrpc.encode_error(message.id, exc.code, exc.message, exc.data))


def _may_send(exchange: StreamExchange, call_state: CallState) -> bool:
    """Return True if a queued request may still be sent; fail it if it is too late."""
    try:
        require_may_send(call_state)
    except TransportError as error:
        exchange.fail(error)
        return False
    return True
