"""Server side of one HTTP/1.1 connection: reads requests, writes responses in order.

Rule 1. A request reaches the handler complete, or not at all. Rule 2. Requests on one connection are answered in
order; pipelined requests wait in a bounded queue. Rule 3. If the client closes its side, the connection ends: the
running handler is notified or cancelled at once. Rule 4. Nothing here waits; the server's sweep ends what takes too
long. Rule 5. An ambiguous request is rejected, and the connection is closed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, cast

import httptools

from toolway.http.exchange import (
    MAX_HEAD_BYTES,
    THIS_MACHINE,
    Exchange,
    HeadCache,
    Headers,
    HeadNotes,
    HttpRequest,
    KnownHead,
    encode_head,
)
from toolway.http.limits import BodyBudget, ServerLimits
from toolway.http.request_lines import RequestLines

RequestHandler = Callable[[Exchange], Coroutine[Any, Any, None]]
Reserved = tuple[int, str | None]  # bytes of the body budget, and the principal id whose share they use

Rejection = tuple[int, bytes, Headers]
#: Authenticates by the request head: returns a rejection, or the principal's id.
AuthenticateHead = Callable[[HttpRequest], Rejection | str]

_MAX_FRAMING_BYTES: Final = 64 * 1024  # bytes that chunk sizes and trailers may add to the body
#: A body up to this size that arrives with its head is not counted: each connection has one, and they are limited.
_UNCOUNTED_BODY_BYTES: Final = 4096
_HTTP_VERSIONS: Final = ("1.0", "1.1")
_UPGRADE_HEADERS: Final = frozenset({"connection", "upgrade", "http2-settings"})  # headers that offer another protocol
#: A head with one of these is not cached. A request id is different each time, so its head would not be found again.
_UNCACHED_HEADERS: Final = frozenset({"transfer-encoding", "expect", "upgrade", "x-request-id"})
_log = logging.getLogger(__name__)


class ConnectionHandler(Protocol):
    """What a connection needs from the HTTP server: settings, and methods to call for requests and errors.

    All methods are called synchronously, from event loop callbacks.
    """

    limits: ServerLimits
    request_handler: RequestHandler
    begin_flight: Callable[[Exchange], bool] | None
    accept_upgrade: Callable[[HttpRequest], asyncio.Protocol | None] | None
    authenticate_head: AuthenticateHead | None
    body_budget: BodyBudget
    head_cache: HeadCache[HttpRequest]
    draining: bool
    loop: asyncio.AbstractEventLoop  # stored: `get_running_loop()` costs a system call

    def on_opened(self, connection: ServerConnection) -> None: ...

    def on_message_begun(self, connection: ServerConnection) -> None: ...

    def on_message_read(self, connection: ServerConnection) -> None: ...

    def on_exchange_started(self, connection: ServerConnection) -> None: ...

    def on_exchange_ended(self, connection: ServerConnection) -> None: ...

    def on_waiting(self, connection: ServerConnection) -> None: ...

    def on_blocked(self, connection: ServerConnection) -> None: ...

    def on_drained(self, connection: ServerConnection) -> None: ...

    def on_rejected(self, connection: ServerConnection) -> None: ...

    def on_closed(self, connection: ServerConnection) -> None: ...


class ServerConnection(asyncio.Protocol):
    """One client connection: parses requests, runs the handler, writes responses."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_denied",
        "_earlier_body_bytes",
        "_exchange",
        "_fields",
        "_handling",
        "_head",
        "_head_bytes",
        "_input_ignored",
        "_known_head",
        "_lines",
        "_notes",
        "_parser",
        "_path",
        "_peer",
        "_pipelined",
        "_principal_id",
        "_reading_bytes",
        "_rejection",
        "_rejection_sent",
        "_repeated",
        "_sent_bytes",
        "_server",
        "_task",
        "_transport",
        "authenticated",
        "drain_mark",
        "head_done",
        "read_mark",
        "reading_since",
        "received",
    )

    def __init__(self, server: ConnectionHandler) -> None:
        self._server = server
        self._parser: Any = httptools.HttpRequestParser(self)  # None after the connection is lost
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._pipelined: deque[tuple[HttpRequest, bool, bool, Reserved]] = deque()
        self._peer = ""
        self._rejection: Rejection | None = None
        self._denied = False  # the rejection is for a client that isn't authenticated
        self._known_head: KnownHead[HttpRequest] | None = None  # of the last request that was in the head cache
        self._input_ignored = False  # input is ignored: the client announced that this was its last request
        self._rejection_sent = False  # the rejection was sent
        self.authenticated = False  # the client is authenticated
        self.reading_since = 0.0  # when the message being read began; 0 while none is
        self.read_mark = (0.0, 0)  # time of the last speed check of a body, and the bytes received by then
        self.received = 0  # bytes of the message being read, framing included
        self._sent_bytes = 0  # bytes passed to the transport
        self.drain_mark = (0.0, 0)  # time of the last check of bytes that the client read, and their number
        self._principal_id: str | None = None  # of the request being read; None: the server doesn't authenticate
        self._reading_bytes = 0  # budgeted body bytes of the request being read
        self._handling: Reserved = (0, None)  # budgeted body bytes of the request being handled
        self._lines = RequestLines()
        self._earlier_body_bytes = 0  # bytes of the body being read that earlier packets had
        self._clear()

    def _clear(self) -> None:
        self.head_done = False
        self._path = b""
        self._fields: dict[str, str] = {}
        self._repeated: set[str] = set()
        self._head = b""  # of the message being read, if it arrived at once
        self._notes = HeadNotes()  # of the message being read; those of another one only if the bytes are identical
        self._body: list[bytes] = []
        self._head_bytes = 0
        self._body_bytes = 0
        self.received = 0

    @property
    def draining(self) -> bool:
        return self._server.draining

    @property
    def busy(self) -> bool:
        """True while a request on this connection is being handled."""
        return self._exchange is not None

    # -- the socket ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=64 * 1024)
        self._peer = _read_peer(transport)
        self._server.on_opened(self)

    def data_received(self, data: bytes) -> None:
        if self._rejection is not None or self._input_ignored:
            return
        between = not self.reading_since and not self.received and self._exchange is None
        if between:
            known = self._known_head
            body = known.match(data) if known is not None else None
            if body is None and (known := self._server.head_cache.get(data)) is not None:
                self._known_head, body = known, known.match(data)
            if body is not None and known is not None and self._take_cached_head(known.parsed, body):
                return
            self._find_notes(data)
        self.received += len(data)
        self._read(data)

    def _find_notes(self, data: bytes) -> None:
        """Find the notes of a head by its bytes, for a request whose body arrives later than its head."""
        end = data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
        if end > 0:
            self._head = data[: end + 4]
            known = self._server.head_cache.get_head(self._head)
            if known is not None:
                self._notes = known.parsed.notes

    def _take_cached_head(self, request: HttpRequest, body: bytes) -> bool:
        """Begin to handle a complete request without parsing it, because its head was found in the head cache.

        Return False if the request must be rejected; the caller then parses it, which sends the rejection.
        """
        server, size = self._server, len(body)
        if size > server.limits.max_body_bytes:
            return False
        request = request.with_body(body, self._peer)  # the head may be of another client
        if server.authenticate_head is not None:
            principal_id = server.authenticate_head(request)
            if type(principal_id) is not str:
                return False
            self._principal_id = principal_id
        if size <= _UNCOUNTED_BODY_BYTES:
            size = 0
        elif not server.body_budget.reserve(size, self._principal_id):
            return False
        self._start_exchange(request, False, False, (size, self._principal_id))
        return True

    def _read(self, data: bytes) -> None:
        self._lines.start_packet(data)
        self._earlier_body_bytes = self._body_bytes
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            rest = data[offer.args[0] :]
            if self._accept_upgrade(rest):
                return
            self._decline_upgrade(rest)
        except httptools.HttpParserError:
            if not self._input_ignored:
                self._set_rejection(400, "invalid HTTP/1.1 request")
        self._lines.end_packet(in_head=self.reading_since > 0 and not self.head_done)
        if self._rejection is None:
            self._check_size()
        if self._rejection is not None:
            self._send_rejection(self._rejection)

    def _accept_upgrade(self, rest: bytes) -> bool:
        """Switch the connection to another protocol if the request offers one that the server accepts.

        Return False if there is none, or if the request cannot be upgraded.
        """
        accept, transport = self._server.accept_upgrade, self._transport
        if accept is None or transport is None or self._rejection is not None or self.busy or self._repeated or rest:
            return False
        protocol = accept(self._request(b""))
        if protocol is None:
            return False
        name = self._fields["upgrade"].encode("latin-1")
        transport.write(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: %b\r\n\r\n" % name)
        self.connection_lost(None)  # this object has no connection any more
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        return True

    def _decline_upgrade(self, rest: bytes) -> None:
        """Ignore an offered protocol upgrade and parse the request as HTTP/1.1; reject CONNECT.

        Some clients offer HTTP/2 with their first request.
        """
        method = self._parser.get_method()
        if self._rejection is not None or method == b"CONNECT":
            self._set_rejection(405, "CONNECT not supported")
            return
        headers = [
            f"{name}: {value}\r\n".encode("latin-1")
            for name, value in self._fields.items()
            if name not in _UPGRADE_HEADERS
        ]
        head = b"%b %b HTTP/1.1\r\n%b\r\n" % (method, self._path, b"".join(headers))
        repeated = self._repeated
        self._clear()
        self._repeated = repeated
        self._parser = httptools.HttpRequestParser(self)
        self._lines = RequestLines()
        self.data_received(head + rest)

    def _check_size(self) -> None:
        limits = self._server.limits
        if not self.head_done and self.received > limits.max_head_bytes:
            self._set_rejection(431, "request head too large")
        elif self.received > limits.max_head_bytes + self._body_bytes + _MAX_FRAMING_BYTES + self._body_bytes // 4:
            self._set_rejection(400, "too much chunk framing")

    def _set_rejection(self, status: int, reason: str) -> None:
        """Record the status and reason for rejecting the request being read. Only the first ones are kept."""
        if self._rejection is None:
            self._rejection = (status, reason.encode(), (("content-type", "text/plain"),))

    def eof_received(self) -> None:
        return None  # close: a client that closes its side cannot expect a response

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.on_closed(self)
        self._discard_reading()
        for *_, reserved in self._pipelined:
            self._server.body_budget.release(*reserved)
        self._pipelined.clear()
        # The parser refers to this connection. Without it, all memory is free now, not at the next garbage collection.
        self._parser = None
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        self._server.on_exchange_ended(self)
        exchange.disconnected = True
        if exchange.on_disconnect is not None:
            exchange.on_disconnect()
        elif self._task is not None:
            self._task.cancel()
        if self._task is not None:
            self._task.add_done_callback(lambda _: self._release_handled())  # the handler has the body until then
        else:
            self._release_handled()

    def pause_writing(self) -> None:
        self.drain_mark = (self._server.loop.time(), self.drained_bytes)
        self._server.on_blocked(self)

    def resume_writing(self) -> None:
        self._server.on_drained(self)

    @property
    def drained_bytes(self) -> int:
        """Number of response bytes that the client's socket has accepted."""
        return self._sent_bytes - self.unread_bytes

    @property
    def unread_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    # -- the parser ---------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.reading_since = self._server.loop.time()
        self.read_mark = (self.reading_since, 0)
        self._server.on_message_begun(self)

    def on_url(self, url: bytes) -> None:
        self._path += url
        self._count_head_bytes(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head_done:
            return  # a trailer: headers after the body are ignored
        key = name.decode("latin-1").lower()
        if key in self._fields:
            self._repeated.add(key)
        elif len(self._fields) >= self._server.limits.max_headers:
            self._set_rejection(431, "too many request headers")
            return
        self._count_head_bytes(len(name) + len(value) + 4)
        self._fields[key] = value.strip(b" \t").decode("latin-1")

    def _count_head_bytes(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._server.limits.max_head_bytes:
            self._set_rejection(431, "request head too large")

    def on_headers_complete(self) -> None:
        self.head_done = True
        self._check_head(self._fields)
        if self._rejection is None and not self._parser.should_upgrade():
            self._expect_body(self._fields)

    def _check_head(self, fields: dict[str, str]) -> None:
        version = self._parser.get_http_version()
        line = b"%b %b HTTP/%b\r\n" % (self._parser.get_method(), self._path, version.encode())
        if version not in _HTTP_VERSIONS:
            self._set_rejection(505, "HTTP version not supported: use HTTP/1.1")
        elif not self._lines.is_valid(line):
            self._set_rejection(400, "invalid request line: put one space between method, target and version")
        elif "transfer-encoding" not in fields:
            return
        elif fields["transfer-encoding"].lower() != "chunked" or "transfer-encoding" in self._repeated:
            self._set_rejection(501, "transfer encoding not supported: use chunked")
        elif version == "1.0":
            self._set_rejection(400, "chunked body in HTTP/1.0")

    def _expect_body(self, fields: dict[str, str]) -> None:
        """Check the announced body and authenticate the client, before any byte of the body is read.

        If there is a problem, it is recorded as a rejection.
        """
        size = int(fields.get("content-length", "0"))
        expected = fields.get("expect", "").lower()
        if not size and "transfer-encoding" not in fields:
            return
        if size > self._server.limits.max_body_bytes:
            self._set_rejection(413, "request body too large")
        elif expected not in ("", "100-continue"):
            self._set_rejection(417, "expectation not supported: use 100-continue")
        else:
            self._authenticate()
            if self._rejection is None and not self._server.body_budget.can_reserve(size, self._principal_id):
                self._set_rejection(503, "too many request bodies in progress")
            elif self._rejection is None and expected and not self.busy and self._parser.get_http_version() != "1.0":
                self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _authenticate(self) -> None:
        """Authenticate the client by the request head (request line and headers).

        This sets the principal id, or a rejection. A pipelined request is authenticated too, before its body is read.
        No body bytes of the request have been budgeted yet, so the principal may still change.
        """
        if self._server.authenticate_head is None:
            return
        found = self._server.authenticate_head(self._request(b""))
        if isinstance(found, str):
            self._principal_id = found
        else:
            self._rejection, self._denied = found, True

    def on_body(self, data: bytes) -> None:
        if self._rejection is not None:
            return
        self._body_bytes += len(data)
        if self._body_bytes > self._server.limits.max_body_bytes:
            self._set_rejection(413, "request body too large")
        elif not self._server.body_budget.reserve(len(data), self._principal_id):
            self._set_rejection(503, "too many request bodies in progress")
        else:
            self._reading_bytes += len(data)
            self._body.append(data)

    def on_message_complete(self) -> None:
        if self._rejection is not None or self._parser.should_upgrade():
            return
        request = self._request(self._body[0] if len(self._body) == 1 else b"".join(self._body))
        is_http10 = self._parser.get_http_version() == "1.0"
        close = self._input_ignored = is_http10 or not self._parser.should_keep_alive()
        reserved, self._reading_bytes = (self._reading_bytes, self._principal_id), 0
        self._lines.end_request(
            self._body_bytes - self._earlier_body_bytes, is_chunked="transfer-encoding" in self._fields
        )
        self._earlier_body_bytes = 0
        self.reading_since = 0.0
        cacheable = not close and request.method == "POST" and not (_UNCACHED_HEADERS & self._fields.keys())
        if cacheable and self._head and not request.repeated_headers:
            # Without the body: the cache must not keep it.
            self._server.head_cache.put_head(self._head, request.with_body(b"", ""))
        self._clear()
        self._server.on_message_read(self)
        if self._exchange is None:
            self._start_exchange(request, close, is_http10, reserved)
        elif len(self._pipelined) < self._server.limits.max_pipelined:
            self._pipelined.append((request, close, is_http10, reserved))
        else:
            self._server.body_budget.release(*reserved)
            self._set_rejection(400, "too many pipelined requests")

    def _request(self, body: bytes) -> HttpRequest:
        path, _, query = self._path.decode("latin-1").partition("?")
        method = self._parser.get_method().decode("latin-1")
        repeated = frozenset(self._repeated)
        return HttpRequest(method, path, query, self._fields, repeated, body, self._peer, self._notes)

    # -- handling -----------------------------------------------------------------------------------------------------

    def _start_exchange(self, request: HttpRequest, close: bool, is_http10: bool, reserved: Reserved) -> None:
        self._handling = reserved
        self._exchange = exchange = Exchange(self, request, close, is_http10)
        self._server.on_exchange_started(self)
        self._task = None
        begin_flight = self._server.begin_flight
        if begin_flight is None or close or is_http10 or not begin_flight(exchange):
            self.run(exchange, self._server.request_handler)

    def run(self, exchange: Exchange, handler: RequestHandler) -> asyncio.Task[None]:
        """Create a task that handles the request in progress, and return the task."""
        self._task = self._server.loop.create_task(self._run_handler(exchange, handler))
        return self._task

    async def _run_handler(self, exchange: Exchange, handler: RequestHandler) -> None:
        try:
            await handler(exchange)
        except asyncio.CancelledError:
            if not exchange.disconnected and not exchange.opened:
                exchange.reply(503)
        except Exception:
            _log.exception("request to %s failed", exchange.request.path)
            if not exchange.opened:
                exchange.reply(500)
        if not exchange.completed and not exchange.disconnected:
            exchange.abort()

    def tick(self, now: float) -> None:
        """Call `on_tick` of the exchange in progress, if set. The server calls this periodically."""
        exchange = self._exchange
        if exchange is not None and exchange.on_tick is not None:
            exchange.on_tick(now)

    def finish_exchange(self, close: bool) -> None:
        """End an exchange after its response.

        Then close the connection, handle the next pipelined request, or wait for one.
        """
        server = self._server
        if self._exchange is not None and not self._exchange.disconnected:
            server.on_exchange_ended(self)
        self._exchange = None
        if self._handling[0]:
            self._release_handled()
        if self._transport is None:
            return
        if close:
            self._transport.close()
        elif self._pipelined:
            self._start_exchange(*self._pipelined.popleft())
        elif self._rejection is not None:
            self._send_rejection(self._rejection)
        else:
            server.on_waiting(self)

    def send(self, data: bytes) -> None:
        """Write to the client. Abort the connection if the client leaves too many bytes unread."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._rejection_sent:
            return
        if transport.get_write_buffer_size() > self._server.limits.max_unread_bytes:
            self.abort()
            return
        self._sent_bytes += len(data)
        transport.write(data)

    def _send_rejection(self, rejection: Rejection) -> None:
        """Send the rejection of a request; the server closes the connection a little later.

        Input is discarded until then, because a reset could destroy the response. If an earlier request is still being
        handled, a denied request waits for its answer; anything else closes the connection without the rejection.
        """
        transport = self._transport
        if transport is None or self._rejection_sent:
            return
        self._discard_reading()
        if self._exchange is not None and not self._denied:
            transport.close()
            return
        if self._exchange is not None:  # `finish_exchange` sends it
            self.reading_since = 0.0
            self._server.on_message_read(self)
            return
        status, body, fields = rejection
        self.send(encode_head(status, fields, length=len(body), close=True) + body)
        self._rejection_sent = True
        if transport.can_write_eof() and not transport.is_closing():
            transport.write_eof()
        self._server.on_rejected(self)

    def cancel(self) -> asyncio.Task[None] | None:
        """Cancel the running request handler. Return its task, or None if no handler is running."""
        if self._exchange is None:
            return None
        if self._exchange.on_cancel is not None:
            self._exchange.on_cancel()
        elif self._task is not None:
            self._task.cancel()
        return self._task

    def close(self) -> None:
        """Close the connection after its buffered output is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def reject_timed_out(self) -> None:
        """Reject a request that the client sends too slowly, with status 408."""
        self._set_rejection(408, "request timeout")
        assert self._rejection is not None
        self._send_rejection(self._rejection)

    def _release_handled(self) -> None:
        """Release the body budget (reserved memory) of the request that was handled."""
        self._server.body_budget.release(*self._handling)
        self._handling = (0, None)

    def _discard_reading(self) -> None:
        """Discard the body of a partly read request and release its body budget (reserved memory)."""
        self._server.body_budget.release(self._reading_bytes, self._principal_id)
        self._reading_bytes = 0
        self._body = []


def _read_peer(transport: asyncio.BaseTransport) -> str:
    """Return the address of a connection's client, for `HttpRequest.peer`."""
    peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    if not isinstance(peer, tuple):
        sock = transport.get_extra_info("socket")
        return THIS_MACHINE if sock is not None and sock.family == getattr(socket, "AF_UNIX", None) else ""
    # A program on this machine that connects to an address of this machine has that address itself.
    return THIS_MACHINE if isinstance(own, tuple) and own[0] == peer[0] else str(peer[0])
