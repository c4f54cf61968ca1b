"""One HTTP/1.1 client connection: one write per request, incremental parsing of responses.

Rule 1. A connection carries one exchange at a time. It is reused only after a clean end of the message, with all data
        written, no surplus data, and keep-alive on both sides. In every other case it is closed.
Rule 2. Facts are recorded when they become known, in event loop callbacks; nothing here waits.
Rule 3. Input is bounded: the head by bytes and fields, the framing in relation to the content, the body by pausing the
        socket while the reader is behind.
Rule 4. `bytes_sent` is an upper bound, and zero only if that is certain. TLS hides what was sent, so there it
        counts all bytes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

import httptools
import msgspec

from toolway.http.exchange import MAX_HEAD_BYTES, HeadCache, KnownHead
from toolway.http.limits import ClientLimits, HttpError, StallDetector
from toolway.http.tls import explain_alert

# Chunk sizes, extensions and trailers may cost this much more than the bytes they carry; more is an attack.
_MIN_FRAMING_BYTES: Final = 64 * 1024
_MAX_FRAMING_RATIO: Final = 16
_OK_LINE: Final = b"HTTP/1.1 200 "
_UNCACHEABLE_HEADERS: Final = frozenset({"transfer-encoding", "trailer", "upgrade"})

ResponseHead = tuple[int, dict[str, str]]  # status and headers; shared, so not to be changed


class ConnectionPool(Protocol):
    """Owner of client connections, notified when one of them becomes idle or is lost.

    Both methods are called from event loop callbacks and must not block.
    """

    head_cache: HeadCache[ResponseHead]

    def on_idle(self, connection: ClientConnection) -> None: ...

    def on_lost(self, connection: ClientConnection) -> None: ...


class ClientConnection(asyncio.Protocol):
    """Client connection: one socket, and the parser of the responses on it."""

    __slots__ = (
        "_complete",
        "_fields",
        "_head",
        "_head_bytes",
        "_head_done",
        "_is_fresh",
        "_keep_alive",
        "_known_head",
        "_limits",
        "_linger_timer",
        "_lost",
        "_missing",
        "_on_sent",
        "_overhead",
        "_parser",
        "_paused",
        "_pool",
        "_problem",
        "_response",
        "_stall_detector",
        "_surplus",
        "_tls",
        "_transport",
        "_write_failed",
        "_written",
        "idle_since",
        "key",
        "loop",
        "name",
    )

    def __init__(self, pool: ConnectionPool, key: Any, name: str, limits: ClientLimits) -> None:
        self.key = key  # the pool's key
        self.name = name  # of the peer, for error messages
        self.idle_since = 0.0
        self._pool = pool
        self._limits = limits
        self.loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._stall_detector = StallDetector(limits)
        self._known_head: KnownHead[ResponseHead] | None = None  # of the last response that was in the head cache
        self._missing = 0  # bytes of a body that the parser does not see: its head is known
        self._lost = False
        self._tls = False
        self._paused = False
        self._response: IncomingResponse | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._reset_exchange()

    def _reset_exchange(self) -> None:
        self._on_sent: Callable[[], None] | None = None
        self._written = 0
        self._write_failed = False  # the write failed at once: nothing was sent
        self._head = b""  # of a response in several parts, if it may be cached
        self._head_done = False
        self._head_bytes = 0
        self._fields: list[tuple[bytes, bytes]] = []
        self._overhead = 0
        self._complete = False
        self._keep_alive = False
        self._surplus = False
        self._problem: tuple[str, str] | None = None  # code and reason, set in the parser's callbacks
        self._stall_detector.reset()
        self._is_fresh = True  # nothing of this was changed: the response was one known head and its body

    # -- socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # a cast, because uvloop's class is not a subclass
        self._tls = transport.get_extra_info("ssl_object") is not None

    @property
    def usable(self) -> bool:
        return not self._lost and not self._transport.is_closing()

    def eof_received(self) -> None:
        response = self._response
        if response is not None and self._head_done and not self._complete and _ends_with_connection(response.headers):
            self._complete = True
            self._finish(response, keep_alive=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._pool.on_lost(self)
        if self._response is not None:
            objection = explain_alert(exc) if exc is not None else None
            if objection is not None:
                self.fail("E-HTTP-TLS", f"{self.name} {objection[0]}", objection[1])
                return
            how = "vanished from" if isinstance(exc, TimeoutError) else "reset" if exc is not None else "closed"
            when = "in the middle of its response" if self._head_done or self._head_bytes else "without a response"
            self.fail("E-HTTP-RESET", f"{self.name} {how} the connection {when}")

    def abort(self) -> None:
        """Close the connection at once, without waking the reader of a response in progress."""
        self._report_sent()
        response, self._response = self._response, None
        if response is not None:
            response.sent = self.bytes_sent
            response.connection = None
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        self._transport.abort()

    def fail(self, code: str, reason: str, hint: str = "") -> None:
        """Fail the request in progress with an `HttpError` for its reader; close the connection."""
        response = self._response
        if response is not None:
            response.error = HttpError(reason, code=code, bytes_sent=self.bytes_sent, hint=hint)
            self.abort()
            response.wake()
        else:
            self.abort()

    # -- one exchange

    def start(self, response: IncomingResponse, data: bytes, on_sent: Callable[[], None] | None) -> None:
        """Send the encoded request `data` and deliver its response to `response`.

        `on_sent` is called when the first byte has been sent, at the latest before the result of the exchange
        is known.
        """
        if not self._is_fresh:
            self._reset_exchange()
        self._response = response
        response.connection = self
        self._on_sent = on_sent
        self._written = len(data)
        transport = self._transport
        transport.write(data)
        if not self._tls and transport.is_closing():
            # The transport writes immediately if it can: so the system rejected the very first byte.
            self._write_failed = True
            self._is_fresh = False
        elif on_sent is not None and (self._tls or transport.get_write_buffer_size() < len(data)):
            self._on_sent = None
            on_sent()

    @property
    def bytes_sent(self) -> int:
        if self._write_failed or not self._written:
            return 0
        if self._lost or self._tls:
            return self._written
        return self._written - min(self._written, self._transport.get_write_buffer_size())

    def _report_sent(self) -> None:
        if self._on_sent is not None and self.bytes_sent:
            on_sent, self._on_sent = self._on_sent, None
            on_sent()

    def linger(self) -> None:
        """Discard the rest of the response; keep the connection if it ends within `linger_timeout`."""
        assert self._response is not None
        self._response.connection = None
        self._response = IncomingResponse()  # discards the rest
        self._linger_timer = self.loop.call_later(self._limits.linger_timeout, self.abort)
        self.on_drained()

    def on_drained(self) -> None:
        """Resume reading from the socket after the reader has emptied the response's buffer."""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def check_progress(self, now: float) -> None:
        """Fail the request in progress if its write, or the response's head or body, is too slow."""
        response = self._response
        if response is None or self._paused:
            return
        self._report_sent()
        self._is_fresh = False
        unsent = self._transport.get_write_buffer_size()
        if self._head_done:
            if (
                response.min_rate_enforced
                and response.received
                and self._stall_detector.is_stalled(now, "body", response.received)
            ):
                rate = f"{self._limits.min_rate} bytes/s over {self._limits.min_rate_window:g} s"
                self.fail("E-HTTP-SLOW", f"{self.name} sent its response more slowly than {rate}")
        elif self._head_bytes:
            if self._stall_detector.is_stalled(now, "head", 0):
                self.fail("E-HTTP-SLOW", f"{self.name} took more than {self._limits.head_timeout:g} s to send a head")
        elif unsent and self._stall_detector.is_stalled(now, "write", unsent):
            self.fail(
                "E-HTTP-TIMEOUT",
                f"{self.name} accepted no byte of the request for {self._limits.write_timeout:g} s",
                "the server has stopped reading; restart it",
            )

    # -- input

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            self.abort()
            return
        if self._on_sent is not None:
            self._report_sent()
        response.any_received = True
        if self._missing:
            self._take_part(response, data)
            return
        first = not (self._head_done or self._head_bytes or self._fields)
        if first:
            known = self._known_head
            body = known.match(data) if known is not None else None
            if body is None and (known := self._pool.head_cache.get(data)) is not None:
                self._known_head, body = known, known.match(data)
            if body is not None and known is not None:
                response.status, response.headers = known.parsed
                response.chunks.append(body)
                response.unread = response.received = len(body)
                self._finish(response, keep_alive=True)
                return
            if self._take_first_part(response, data):
                return
        before = response.received
        self._is_fresh = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            if not self._complete:
                self._problem = self._problem or ("E-HTTP-PROTOCOL", f"sent invalid HTTP ({exc})")
            self._surplus = True
        if self._problem is not None:
            code, reason = self._problem
            self.fail(code, f"{self.name} {reason}")
        elif self._complete:
            if (
                first
                and self._keep_alive
                and not self._surplus
                and not (_UNCACHEABLE_HEADERS & response.headers.keys())
            ):
                self._pool.head_cache.put(data, (response.status, response.headers))
            elif self._head and self._keep_alive and not self._surplus:
                self._pool.head_cache.put_head(self._head, (response.status, response.headers))
            self._finish(response, keep_alive=self._keep_alive and not self._surplus)
        else:
            if (
                first
                and self._head_done
                and data.startswith(_OK_LINE)
                and not (_UNCACHEABLE_HEADERS & response.headers.keys())
            ):
                end = data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
                self._head = data[: end + 4] if end > 0 else b""
            self._check_limits(response, len(data) - (response.received - before))

    def _take_first_part(self, response: IncomingResponse, data: bytes) -> bool:
        """Take the first bytes of a large response without the parser, if its head is known.

        Return False without taking anything if the head was not parsed before; the parser must then read `data`. For
        a large response, the parser would take as long as all other work.
        """
        known = self._known_head
        start = known.match_start(data) if known is not None else None
        if start is None and (known := self._pool.head_cache.get_head(data)) is not None:
            self._known_head, start = known, known.match_start(data)
        if start is None or known is None or not data.startswith(_OK_LINE):
            return False
        self._missing, part = start
        response.status, headers = known.parsed
        response.headers = {**headers, "content-length": str(self._missing)}
        self._head_done, self._is_fresh = True, False
        self._take_part(response, part)
        return True

    def _take_part(self, response: IncomingResponse, data: bytes) -> None:
        """Append received bytes to a response body of known length, and finish the response at its end."""
        size = min(len(data), self._missing)
        self._missing -= size
        if size:  # an empty chunk would be the end of the body for its reader
            response.chunks.append(data[:size])
        response.unread += size
        response.received += size
        if self._missing:
            self._check_limits(response, 0)
        else:
            self._complete = True
            self._finish(response, keep_alive=size == len(data))

    def _check_limits(self, response: IncomingResponse, overhead: int) -> None:
        """Fail the request if the response's head or framing is too long.

        Pause the socket if the reader is behind. `overhead` is the number of bytes just received that are not
        body.
        """
        if not self._head_done:
            self._head_bytes += overhead
            if self._head_bytes > self._limits.max_head_bytes:
                self.fail("E-HTTP-LIMIT", f"{self.name} {_head_too_long(self._limits)}")
            return
        self._overhead += overhead
        if self._overhead > _MIN_FRAMING_BYTES + self._limits.max_head_bytes + _MAX_FRAMING_RATIO * response.received:
            self.fail("E-HTTP-LIMIT", f"{self.name} sent more framing than content")
        elif self._linger_timer is not None and response.received > self._limits.max_linger_bytes:
            self.abort()
        elif response.unread > self._limits.max_unread_bytes and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        response.wake()

    def _finish(self, response: IncomingResponse, *, keep_alive: bool) -> None:
        transport = self._transport
        response.sent = self._written
        response.complete = True
        response.connection = None
        self._response = None
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        if keep_alive and not self._lost and not transport.is_closing() and not transport.get_write_buffer_size():
            if self._paused:
                self.on_drained()
            self.idle_since = self.loop.time()
            self._pool.on_idle(self)
        else:
            transport.abort()
        if response.on_change is not None:
            response.on_change()
        else:
            response.wake()

    # -- the parser's callbacks

    def on_message_begin(self) -> None:
        if self._complete:
            self._surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_done:
            return  # a trailer
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        response = self._response
        if self._complete or response is None:
            return
        fields, self._fields = self._fields, []
        if len(fields) > self._limits.max_headers:
            self._problem = ("E-HTTP-LIMIT", f"sent more than {self._limits.max_headers} header fields")
            return
        status = self._parser.get_status_code()
        if status < 200:
            return  # an interim response; its bytes still count towards the limit of the head
        headers: dict[str, str] = {}
        size = 0
        for raw_name, raw_value in fields:
            size += len(raw_name) + len(raw_value)
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        if size > self._limits.max_head_bytes:
            self._problem = ("E-HTTP-LIMIT", _head_too_long(self._limits))
            return
        if headers.get("transfer-encoding", "chunked").lower() != "chunked":
            self._problem = ("E-HTTP-PROTOCOL", "sent a transfer coding other than chunked")
            return
        self._head_done = True
        response.status = status
        response.headers = headers

    def on_body(self, body: bytes) -> None:
        response = self._response
        if response is None or self._complete:
            return
        size = len(body)
        response.chunks.append(body)
        response.unread += size
        response.received += size

    def on_message_complete(self) -> None:
        if self._head_done and not self._complete:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()


def _head_too_long(limits: ClientLimits) -> str:
    return f"sent a head of more than {limits.max_head_bytes} bytes"


def _ends_with_connection(headers: dict[str, str]) -> bool:
    """Return True if a response with these headers ends only when the connection is closed.

    It then has neither Content-Length nor Transfer-Encoding.
    """
    return "content-length" not in headers and "transfer-encoding" not in headers


# -- the response, filled by a connection and read by a caller --------------------------------------------------------


class ResponseSource(Protocol):
    """How a reader controls a response's connection: resume, discard or abort reading."""

    def abort(self) -> None: ...

    def linger(self) -> None: ...

    def on_drained(self) -> None: ...


class IncomingResponse(msgspec.Struct, eq=False, kw_only=True):
    """State of one response: a connection fills it, and at most one reader waits for it."""

    any_received: bool = False  # True after the first byte was received
    status: int = 0  # zero until the head is complete
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    chunks: deque[bytes] = msgspec.field(default_factory=deque)
    unread: int = 0  # bytes in `chunks`
    received: int = 0  # body bytes in all
    min_rate_enforced: bool = False  # True if the minimum rate of the body is enforced
    complete: bool = False
    error: HttpError | None = None
    sent: int = 0
    connection: ResponseSource | None = None  # while the exchange is in progress
    on_change: Callable[[], None] | None = None  # called in place of a reader that waits
    _waiter: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return object.__repr__(self)  # without the fields: a request has credentials

    def wake(self) -> None:
        """Report a change of the response: call `on_change` if it is set, or else wake the waiting reader."""
        if self.on_change is not None:
            self.on_change()
            return
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until the connection has added data to this response, completed it or failed it."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
