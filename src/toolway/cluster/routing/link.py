"""A link: one connection between two nodes, shared by many calls. Works on TCP, TLS, and Unix sockets.

The caller sends a hello and gets a welcome, both sealed with the key of the cluster (`LinkIdentity`). From then on
all bytes are sealed records of frames (`link_frames.py`). A `CallerLink` sends calls; a `CalledLink` passes them to
its handler. Neither interprets what a call contains.

Rule 1. A call is NOT_SENT until the record with the end of its request was passed to the socket. After that it is
        UNKNOWN until its reply has arrived. A request of which only a part was sent is never executed.
Rule 2. Nothing is sent before the peer has proved to be the expected node.
Rule 3. Calls end one by one: a cancelled call, or one with a wrong reply, does not affect any other call.
Rule 4. Calls in flight, bytes that wait, and the time for which the peer may read nothing are limited.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from toolway.cluster.routing import link_frames
from toolway.cluster.routing.link_frames import (
    IncompleteMessages,
    LinkError,
    LinkKeys,
    Outbox,
    RecordCipher,
    RecordReader,
)
from toolway.protocol import jsonrpc
from toolway.types import Certainty, Json
from toolway.upstream.transport import (
    ExchangeListener,
    InboundHandler,
    JSONRPCError,
    Request,
    TransportError,
    require_may_send,
)
from toolway.upstream.transports.http_responses import error_for_bad_message
from toolway.upstream.transports.pending_requests import StreamExchange, parse_large

MAX_CALLS: Final = 4096  # in flight on one link
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024  # of requests that wait to be written; more are not accepted
MAX_INCOMPLETE_BYTES: Final = 128 * 1024 * 1024  # of messages of which chunks are missing
MAX_UNREAD_BYTES: Final = 256 * 1024 * 1024  # of replies that wait to be written; a peer that leaves more is dropped
WRITE_BUFFER_BYTES: Final = 256 * 1024  # in the socket's buffer, above which records wait
RECORDS_PER_TURN: Final = 4  # written in one turn of the event loop
STALL_TIMEOUT_S: Final = 30.0  # seconds for which a peer may read nothing
OPEN_TIMEOUT_S: Final = 5.0  # seconds until the peer has proved itself
FRESH_S: Final = 2.0  # seconds without a byte from the peer after which it is asked if it is still there
PING_TIMEOUT_S: Final = 1.0
MAX_HELLO_BYTES: Final = 4096
MAX_HEAD_BYTES: Final = 4096  # of the HTTP response that switches the connection to a link
_LARGE_REPLY: Final = "the reply is too large"

log = logging.getLogger("toolway.cluster")


class LinkIdentity(Protocol):
    """The caller's identity, and the node that it expects at the other end of a link."""

    def hello(self) -> bytes:
        """Return a hello, the first message on a link, sealed for the expected node."""
        ...

    def accept_welcome(self, welcome: bytes) -> LinkKeys | None:
        """Return the link's keys if `welcome` is the expected node's answer to our `hello`, else None."""
        ...


class Link(asyncio.Protocol):
    """One side of a link between two nodes: seals and writes messages, receives and opens them."""

    def __init__(self, max_message_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = RecordReader()
        self._reassembly = IncompleteMessages(max_message_bytes, MAX_INCOMPLETE_BYTES)
        self._outbox = Outbox()
        self._send_cipher: RecordCipher | None = None
        self._receive_cipher: RecordCipher | None = None
        self._is_paused = False
        self._is_flush_scheduled = False
        self._is_busy = False  # messages of this turn are collected into one record
        self._stall_timer: asyncio.TimerHandle | None = None
        self._written = 0
        self.last_received = self._loop.time()

    # -- what a side implements ---------------------------------------------------------------------------------------

    def _on_handshake(self, record: bytes) -> None:
        """Process the peer's hello or welcome, its first record. Raises `LinkError` if invalid.

        It is not sealed with the link's keys, which are derived from it.
        """
        raise NotImplementedError

    def _on_message(self, kind: int, number: int, content: bytes | memoryview) -> None:
        """Process a complete message from the peer. Raises `LinkError` if the peer may not send it."""
        raise NotImplementedError

    def _on_too_large(self, kind: int, number: int) -> None:
        """Fail or reject the call `number`, whose message was too large and was dropped."""
        raise NotImplementedError

    def _on_written(self, numbers: list[int]) -> None:
        """Mark the calls `numbers` as sent: the ends of their messages are passed to the socket now."""

    def _on_lost(self, reason: str) -> None:
        """End all calls of this link, because its connection was lost."""

    # -- the socket ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        self.last_received = self._loop.time()
        try:
            for record in self._reader.feed(data):
                if self._receive_cipher is None:
                    self._on_handshake(bytes(record))
                else:
                    self._on_record(self._receive_cipher.open(record))
        except LinkError as exc:
            self.abort(str(exc))

    def _on_record(self, record: bytes) -> None:
        self._is_busy = True  # replies to one record share a record, if they are there at once
        try:
            for frame in link_frames.split_frames(record):
                try:
                    message = self._reassembly.add(frame)
                except OverflowError:
                    self._on_too_large(frame.kind, frame.number)
                    continue
                if message is not None:
                    self._on_message(frame.kind, frame.number, message)
        finally:
            self._is_busy = False
        if self._outbox:
            self._flush()

    def eof_received(self) -> None:
        return None  # close

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._transport is not None:
            self._transport = None
            self._on_lost("the connection was reset" if exc is not None else "the connection was closed")

    def pause_writing(self) -> None:
        self._is_paused = True
        self._watch_stall()

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        self._flush()

    def _watch_stall(self) -> None:
        self._stall_timer = self._loop.call_later(STALL_TIMEOUT_S, self._check_stall, self._drained_bytes)

    def _check_stall(self, before: int) -> None:
        if self._drained_bytes == before:
            self.abort(f"the other node has read nothing for {STALL_TIMEOUT_S:g} s")
        else:
            self._watch_stall()

    @property
    def _drained_bytes(self) -> int:
        return self._written - (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    # -- sending ------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """True if the peer has proved itself and the connection has not ended."""
        return self._send_cipher is not None and self._transport is not None and not self._transport.is_closing()

    def send(self, kind: int, number: int, content: bytes) -> None:
        """Send a message, or add it to those being collected for this turn of the loop (`collect`)."""
        self._outbox.add(kind, number, content)
        if not self._is_busy and not self._is_flush_scheduled:
            self._flush()

    def collect(self) -> None:
        """Collect this loop turn's messages, so they share one sealed record."""
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        self._is_flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        transport, cipher = self._transport, self._send_cipher
        if transport is None or cipher is None or transport.is_closing():
            return
        for _ in range(RECORDS_PER_TURN):
            if self._is_paused or not self._outbox:
                return
            frames, ended = self._outbox.next_record()
            self._on_written(ended)
            self._write(transport, cipher.seal(frames))
        if self._outbox and not self._is_flush_scheduled:
            self.collect()  # other connections get their turn

    def _write(self, transport: asyncio.Transport, data: bytes) -> None:
        self._written += len(data)
        transport.write(data)

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection once everything written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Abort the connection immediately."""
        transport, self._transport = self._transport, None
        if transport is not None:
            log.debug("link ended: %s", reason)
            transport.abort()
            self._on_lost(reason)


# -- calling node -----------------------------------------------------------------------------------------------------


class LinkExchange(StreamExchange):
    """One call that this node sent on a link (a connection between nodes), and its outcome."""

    __slots__ = ("inbound", "route")

    inbound: InboundHandler
    route: Any  # for the transport that sent it


class CallerLink(Link):
    """The side of a link between two nodes that sends calls.

    `switch` is the HTTP request that upgrades the connection to a link, for an HTTP server.
    """

    def __init__(
        self,
        identity: LinkIdentity,
        switch: bytes = b"",
        max_message_bytes: int = jsonrpc.MAX_MESSAGE_BYTES,
        on_lost: Callable[[CallerLink], None] | None = None,
    ) -> None:
        super().__init__(max_message_bytes)
        self._identity = identity
        self._switch = switch
        self._head: bytes | None = b"" if switch else None  # of the HTTP response, until it is complete
        self._ready: asyncio.Future[bool] = self._loop.create_future()
        self._on_lost_callback = on_lost
        self._waiting: dict[int, LinkExchange] = {}
        self._unsent: dict[int, LinkExchange] = {}  # no part of the request, or only a part, was sent
        self._last_number = 0
        self._pongs: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_going = False  # the called node shuts down

    async def wait_open(self) -> bool:
        """Wait until calls can be sent. Return False if the peer does not support links.

        Raises `LinkError` if it does not prove to be the expected node, or does not answer in time.
        """
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                return await self._ready
        except TimeoutError:
            self.abort("no welcome")
            raise LinkError("the node does not answer") from None
        except asyncio.CancelledError:
            self.abort("cancelled")
            raise

    # -- opening ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self._transport is not None
        if self._switch:
            self._transport.write(self._switch)
        else:
            self._send_hello(self._transport)

    def _send_hello(self, transport: asyncio.Transport) -> None:
        hello = self._identity.hello()
        transport.write(link_frames.LENGTH.pack(len(hello)) + hello)

    def data_received(self, data: bytes) -> None:
        if self._head is None:
            super().data_received(data)
            return
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end and len(head) <= MAX_HEAD_BYTES:
            return
        self._head = None
        if not end or not head.startswith(b"HTTP/1.1 101 "):
            self._set_ready(known=False)
            self.abort("the other node does not know links")
            return
        assert self._transport is not None
        self._send_hello(self._transport)
        if rest:
            super().data_received(rest)

    def _on_handshake(self, record: bytes) -> None:
        keys = self._identity.accept_welcome(record)
        if keys is None:
            raise LinkError("another process answers in place of the node")
        self._send_cipher, self._receive_cipher = RecordCipher(keys.calls), RecordCipher(keys.replies)
        self.send(link_frames.PING, 0, b"")  # proves that we know the keys
        self._set_ready(known=True)

    def _set_ready(self, *, known: bool) -> None:
        if not self._ready.done():
            self._ready.set_result(known)

    # -- calls --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_usable(self) -> bool:
        """Return True if new calls can be sent on this link."""
        return self.is_open and not self.is_going

    @property
    def is_fresh(self) -> bool:
        """Return True if the peer just sent something, so the connection has not failed silently."""
        return self._loop.time() - self.last_received <= FRESH_S

    async def ping(self) -> None:
        """Make sure that the peer is still there. Raises `TransportError` (nothing was sent) if it is not."""
        pong: asyncio.Future[None] = self._loop.create_future()
        self._pongs.append(pong)
        self.send(link_frames.PING, 0, b"")
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                await pong
        except TimeoutError:
            self.abort("no answer to a ping")
            raise TransportError("the connection to the node is dead", Certainty.NOT_SENT) from None
        finally:
            if pong in self._pongs:
                self._pongs.remove(pong)

    def start(
        self, head: bytes, request: Request, inbound: InboundHandler, listener: ExchangeListener | None
    ) -> LinkExchange:
        """Send a call to the peer and return its exchange, which gets the outcome.

        `head` is sent before the JSON-RPC request. Raises `TransportError` (not sent) if the call cannot be sent.
        """
        if not self.is_usable:
            raise TransportError("the connection to the node has ended", Certainty.NOT_SENT)
        if len(self._waiting) >= MAX_CALLS or self._outbox.bytes > MAX_WAITING_BYTES:
            raise TransportError("too many calls to the node are in flight", Certainty.NOT_SENT, retry_after=1.0)
        self._last_number = number = self._last_number + 1
        try:
            content = head + jsonrpc.encode_request(number, request.method, request.params)
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise TransportError(
                f"the request cannot be encoded: {exc}", Certainty.NOT_SENT, code="E-REQUEST"
            ) from None
        require_may_send(request.call_state)
        state = request.call_state if listener is None else None
        exchange = LinkExchange(number, state, listener, request.method, self._loop)
        exchange.inbound = inbound
        self._waiting[number] = self._unsent[number] = exchange
        if request.call_state.may_send is not None:
            self._send_now(exchange, content)
            return exchange
        if len(self._waiting) > 1:
            self.collect()
        self.send(link_frames.CALL, number, content)
        return exchange

    def _send_now(self, exchange: LinkExchange, content: bytes) -> None:
        """Write a call to the socket at once.

        Raises `TransportError` (not sent) if its first byte would have to wait.
        """
        number = exchange.id
        self._outbox.add(link_frames.CALL, number, content)
        self._flush()
        if number in self._unsent and not self._outbox.has_begun(number):
            self._outbox.remove(number)
            del self._waiting[number], self._unsent[number]
            raise TransportError("the connection to the node is busy", Certainty.NOT_SENT)

    async def wait(self, exchange: LinkExchange) -> Json:
        """Wait for the result of a call. Raises `TransportError` or `JSONRPCError`; cancelling it cancels the call."""
        try:
            return await exchange.future
        finally:
            if exchange.id in self._waiting:
                self.abandon(exchange)

    def abandon(self, exchange: LinkExchange) -> None:
        """Stop a call that nobody waits for: remove it if unsent, else cancel it at the other node."""
        number = exchange.id
        if self._waiting.pop(number, None) is None:
            return
        exchange.listener = None
        if self._unsent.pop(number, None) is not None and not self._outbox.remove(number):
            return  # it was never sent
        if self.is_open:
            self.send(link_frames.CANCEL, number, b"")
        self._close_if_going()

    def _on_written(self, numbers: list[int]) -> None:
        unsent = self._unsent
        for number in numbers:
            exchange = unsent.pop(number, None)
            if exchange is not None:
                exchange.mark_sent()

    # -- replies ------------------------------------------------------------------------------------------------------

    def _on_message(self, kind: int, number: int, content: bytes | memoryview) -> None:
        if kind == link_frames.REPLY:
            self._on_reply(number, bytes(content))
        elif kind == link_frames.NOTIFICATION:
            self._on_notification(number, bytes(content))
        elif kind == link_frames.PONG:
            pongs, self._pongs = self._pongs, []
            for pong in pongs:
                if not pong.done():
                    pong.set_result(None)
        elif kind == link_frames.GOING:
            self.is_going = True
            self._close_if_going()
        # A kind that this version does not know is ignored.

    def _on_reply(self, number: int, frame: bytes) -> None:
        exchange = self._waiting.get(number)
        if exchange is None or number in self._unsent:
            return  # cancelled
        if jsonrpc.is_large(frame):
            task = self._loop.create_task(self._parse_large_reply(exchange, frame))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        try:
            message = jsonrpc.parse_message(frame)
        except jsonrpc.InvalidMessage as bad:
            self._fail(exchange, error_for_bad_message(bad))
            return
        self._finish(exchange, message, frame)

    async def _parse_large_reply(self, exchange: LinkExchange, frame: bytes) -> None:
        try:
            message = await parse_large(frame, exchange.method)
        except jsonrpc.InvalidMessage as bad:
            self._fail(exchange, error_for_bad_message(bad))
            return
        self._finish(exchange, message, frame)

    def _finish(self, exchange: LinkExchange, message: jsonrpc.Message, frame: bytes) -> None:
        if message.id != exchange.id or message.kind not in ("result", "error"):
            self._fail(exchange, TransportError("the reply is for another call", Certainty.UNKNOWN, code="E-ANSWER"))
        elif self._waiting.pop(exchange.id, None) is not None:
            if message.kind == "result":
                exchange.succeed(message.body, frame if message.is_bare_result else b"")
            else:
                exchange.fail(JSONRPCError(*jsonrpc.parse_error(message.body)))
            self._close_if_going()

    def _fail(self, exchange: LinkExchange, error: TransportError) -> None:
        if self._waiting.pop(exchange.id, None) is not None:
            exchange.fail(error)
            self._close_if_going()

    def _on_notification(self, number: int, frame: bytes) -> None:
        exchange = self._waiting.get(number)
        if exchange is None or jsonrpc.is_large(frame):
            return
        try:
            message = jsonrpc.parse_message(frame)
        except jsonrpc.InvalidMessage:
            return
        if message.kind == "notification":
            exchange.inbound.on_notification(message.method, message.body, exchange.call_state)

    def _on_too_large(self, kind: int, number: int) -> None:
        exchange = self._waiting.get(number)
        if exchange is not None and kind == link_frames.REPLY:
            self._fail(exchange, TransportError(_LARGE_REPLY, Certainty.UNKNOWN, code="E-FRAME-LIMIT"))

    # -- the end ------------------------------------------------------------------------------------------------------

    def _close_if_going(self) -> None:
        if self.is_going and not self._waiting:
            self.close()

    def go(self) -> None:
        """Stop sending new calls; close the connection when no call is in flight."""
        self.is_going = True
        self._close_if_going()

    def _on_lost(self, reason: str) -> None:
        if not self._ready.done():
            self._ready.set_exception(LinkError(reason))
            self._ready.exception()  # it may be that no task waits for it
        for pong in self._pongs:
            if not pong.done():
                pong.set_exception(TransportError(reason, Certainty.NOT_SENT))
                pong.exception()
        waiting, self._waiting, self._unsent = self._waiting, {}, {}
        if self._on_lost_callback is not None:
            self._on_lost_callback(self)
        for exchange in waiting.values():
            exchange.fail(TransportError(reason, exchange.certainty))


# -- called node ------------------------------------------------------------------------------------------------------


class LinkHandler(Protocol):
    """Executes the calls of a `CalledLink`. All methods return at once and must not raise."""

    def welcome(self, hello: bytes) -> tuple[bytes, LinkKeys, str] | None:
        """Return our welcome (answer to a hello), the link's keys, and the calling node's id.

        Return None if the hello is not valid.
        """
        ...

    def on_call(self, link: CalledLink, number: int, content: memoryview) -> None:
        """Execute a call; `link.reply` must follow, unless `on_cancel` or `on_lost` is called before."""
        ...

    def on_cancel(self, link: CalledLink, number: int) -> None:
        """Stop executing a call, because its caller no longer waits for it."""
        ...

    def on_too_large(self, link: CalledLink, number: int) -> None:
        """Reject a call whose request is too large. It must not run."""
        ...

    def on_lost(self, link: CalledLink) -> None:
        """Stop executing all calls of a link whose connection has ended."""
        ...


class CalledLink(Link):
    """Side of a link between two nodes that receives calls; its handler executes them."""

    def __init__(self, handler: LinkHandler, max_message_bytes: int = jsonrpc.MAX_MESSAGE_BYTES) -> None:
        super().__init__(max_message_bytes)
        self._handler = handler
        self._open_timer: asyncio.TimerHandle | None = None
        self.node = ""  # id of the calling node
        self.calls: dict[int, object] = {}  # in flight, by number; kept by the handler
        self.is_authenticated = False  # the caller has shown that it knows the keys

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._open_timer = self._loop.call_later(OPEN_TIMEOUT_S, self.abort, "no hello")

    def _on_handshake(self, record: bytes) -> None:
        accepted = self._handler.welcome(record) if len(record) <= MAX_HELLO_BYTES else None
        if accepted is None:
            raise LinkError("the hello is not valid")
        welcome, keys, self.node = accepted
        assert self._transport is not None
        self._write(self._transport, link_frames.LENGTH.pack(len(welcome)) + welcome)
        self._send_cipher, self._receive_cipher = RecordCipher(keys.replies), RecordCipher(keys.calls)

    def _on_message(self, kind: int, number: int, content: bytes | memoryview) -> None:
        if not self.is_authenticated:
            self.is_authenticated = True
            if self._open_timer is not None:
                self._open_timer.cancel()
                self._open_timer = None
        if kind == link_frames.CALL:
            if number in self.calls:
                raise LinkError("two calls have one number")
            self._handler.on_call(self, number, memoryview(content))
        elif kind == link_frames.CANCEL:
            self._reassembly.drop(link_frames.CALL, number)
            self._outbox.remove(number)
            self._handler.on_cancel(self, number)
        elif kind == link_frames.PING:
            self.send(link_frames.PONG, 0, b"")

    def _on_too_large(self, kind: int, number: int) -> None:
        if kind == link_frames.CALL:
            self._handler.on_too_large(self, number)

    def reply(self, number: int, message: bytes) -> None:
        """Send the response of a call. A caller that reads too little is disconnected."""
        self._send_unless_full(link_frames.REPLY, number, message)

    def notify(self, number: int, message: bytes) -> None:
        """Send the calling node a notification that belongs to the call `number`."""
        self._send_unless_full(link_frames.NOTIFICATION, number, message)

    def _send_unless_full(self, kind: int, number: int, message: bytes) -> None:
        if self._transport is None:
            return
        if self._outbox.bytes > MAX_UNREAD_BYTES:
            self.abort("the other node reads too slowly")
            return
        if self.calls:
            self.collect()
        self.send(kind, number, message)

    def announce_going(self) -> None:
        """Ask the calling node to send no new calls on this link, because this node shuts down."""
        if self.is_open:
            self.send(link_frames.GOING, 0, b"")

    def _on_lost(self, reason: str) -> None:
        if self._open_timer is not None:
            self._open_timer.cancel()
        self._handler.on_lost(self)
