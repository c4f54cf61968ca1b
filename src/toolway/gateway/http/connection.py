"""One connection of a client: requests in, one after the other, and their responses out.

Rule 1. A request reaches the handler whole, or not at all.
Rule 2. Requests of one connection are answered in their order; the next one waits, in a bounded line.
Rule 3. The end of the client's side ends the connection: whoever is answering hears of it at once.
Rule 4. Nothing here waits; the server's sweep ends what takes too long.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, cast

import httptools

from toolway.gateway.http.limits import HttpLimits
from toolway.gateway.http.messages import LAST_CHUNK, Fields, Request, chunk, head

Handler = Callable[["Exchange"], Coroutine[Any, Any, None]]

_FRAMING: Final = 64 * 1024  # what chunk sizes and trailers may cost beyond the body itself
_BAD_REQUEST: Final = (400, "the request is not valid HTTP/1.1")
_log = logging.getLogger(__name__)


class Owner(Protocol):
    """The server, as its connections see it. All are called at once, from the loop's callbacks."""

    limits: HttpLimits
    handler: Handler
    draining: bool

    def on_opened(self, connection: Connection) -> None: ...

    def on_reading(self, connection: Connection) -> None: ...

    def on_request(self, connection: Connection) -> None: ...

    def on_begun(self) -> None: ...

    def on_ended(self) -> None: ...

    def on_answered(self, connection: Connection) -> None: ...

    def on_closed(self, connection: Connection) -> None: ...

    def reserve(self, size: int) -> bool: ...

    def release(self, size: int) -> None: ...


class Exchange:
    """One request and the way to answer it: `reply` once, or `open`, `write` … and `end`."""

    __slots__ = ("_chunked", "_close", "_connection", "answered", "gone", "on_gone", "opened", "request")

    def __init__(self, connection: Connection, request: Request, close: bool) -> None:
        self.request = request
        self.opened = False  # a response has begun
        self.answered = False  # and is complete
        self.gone = False  # the client has left
        self.on_gone: Callable[[], None] | None = None  # instead of cancelling the handler
        self._connection = connection
        self._close = close
        self._chunked = False

    def reply(self, status: int, body: bytes = b"", fields: Fields = ()) -> None:
        """The whole response."""
        assert not self.opened, "a response has begun already"
        close = self._begin()
        self._connection.send(head(status, fields, length=len(body), close=close) + body)
        self._end()

    def open(self, status: int, fields: Fields) -> None:
        """Begin a response whose end is not known yet."""
        assert not self.opened, "a response has begun already"
        close = self._begin()
        self._chunked = True
        self._connection.send(head(status, fields, length=None, close=close))

    def write(self, data: bytes) -> None:
        """Send a part of the body. A client that takes nothing is left, once too much waits for it."""
        if data and not self.answered:
            self._connection.send(chunk(data))

    def end(self) -> None:
        if not self.answered:
            self._connection.send(LAST_CHUNK)
            self._end()

    def abort(self) -> None:
        """Cut a response off in the middle, so that nobody takes it for whole."""
        self.answered = True
        self._connection.abort()

    def _begin(self) -> bool:
        self.opened = True
        self._close = self._close or self._connection.draining
        return self._close

    def _end(self) -> None:
        self.answered = True
        self._connection.finished(self._close)


class Connection(asyncio.Protocol):
    __slots__ = (
        "_body",
        "_exchange",
        "_fields",
        "_owner",
        "_parser",
        "_path",
        "_peer",
        "_raw",
        "_refusal",
        "_repeated",
        "_reserved",
        "_size",
        "_task",
        "_transport",
        "_waiting",
        "head_done",
        "last_write",
        "mark",
        "received",
        "since",
        "unread_since",
    )

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting: deque[tuple[Request, bool, int]] = deque()
        self._peer = ""
        self._refusal: tuple[int, str] | None = None
        self.since = 0.0  # when the message being read began; 0 while none is
        self.mark = (0.0, 0)  # when the speed of a body was last looked at, and what had come by then
        self.received = 0  # bytes of the message being read, framing included
        self.unread_since = 0.0  # since when the client takes nothing; 0 while it does
        self._reserved = 0
        self._clear()

    def _clear(self) -> None:
        self.head_done = False
        self._path = b""
        self._fields: dict[str, str] = {}
        self._repeated: set[str] = set()
        self._body: list[bytes] = []
        self._size = 0
        self.received = 0

    @property
    def draining(self) -> bool:
        return self._owner.draining

    @property
    def busy(self) -> bool:
        """Whether somebody is being answered."""
        return self._exchange is not None

    # -- the socket ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=64 * 1024)
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if isinstance(peer, tuple) else ""
        self._owner.on_opened(self)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        if not self.since:
            self.since = asyncio.get_running_loop().time()
            self.mark = (self.since, 0)
            self._owner.on_reading(self)
        self.received += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refusal = self._refusal or _BAD_REQUEST
        if self._refusal is None:
            self._check_size()
        if self._refusal is not None:
            self._refuse(*self._refusal)

    def _check_size(self) -> None:
        limits = self._owner.limits
        if not self.head_done and self.received > limits.head:
            self._refusal = (431, "the head of the request is too large")
        elif self.received > limits.head + self._size + _FRAMING + self._size // 4:
            self._refusal = _BAD_REQUEST  # framing, and nothing framed

    def eof_received(self) -> None:
        return None  # close: a client that ends its side takes no answer

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._owner.on_closed(self)
        self._release()
        for _, _, reserved in self._waiting:
            self._owner.release(reserved)
        self._waiting.clear()
        exchange = self._exchange
        if exchange is None:
            return
        self._owner.on_ended()
        exchange.gone = True
        if exchange.on_gone is not None:
            exchange.on_gone()
        elif self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self.unread_since = asyncio.get_running_loop().time()

    def resume_writing(self) -> None:
        self.unread_since = 0.0

    # -- the parser ---------------------------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.decode("latin-1").lower()
        if key in self._fields:
            self._repeated.add(key)
        elif len(self._fields) >= self._owner.limits.fields:
            self._refusal = self._refusal or (431, "the request has too many headers")
        self._fields[key] = value.strip(b" \t").decode("latin-1")

    def on_headers_complete(self) -> None:
        self.head_done = True
        fields = self._fields
        if "content-length" in fields and int(fields["content-length"]) > self._owner.limits.body:
            self._refusal = self._refusal or (413, "the body of the request is too large")
        elif "transfer-encoding" in fields and fields["transfer-encoding"].lower() != "chunked":
            self._refusal = self._refusal or (501, "only chunked bodies are understood")
        elif fields.get("expect", "").lower() == "100-continue" and not self.busy:
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._owner.limits.body:
            self._refusal = self._refusal or (413, "the body of the request is too large")
        elif not self._owner.reserve(len(data)):
            self._refusal = self._refusal or (503, "too many requests are being read")
        else:
            self._reserved += len(data)
            self._body.append(data)

    def on_message_complete(self) -> None:
        if self._refusal is not None:
            return
        path, _, query = self._path.decode("latin-1").partition("?")
        request = Request(
            self._parser.get_method().decode("latin-1"),
            path,
            query,
            self._fields,
            frozenset(self._repeated),
            self._body[0] if len(self._body) == 1 else b"".join(self._body),
            self._peer,
        )
        close = not self._parser.should_keep_alive()
        reserved, self._reserved = self._reserved, 0
        self.since = 0.0
        self._clear()
        self._owner.on_request(self)
        if self._exchange is None:
            self._begin(request, close, reserved)
        elif len(self._waiting) < self._owner.limits.pipelined:
            self._waiting.append((request, close, reserved))
        else:
            self._owner.release(reserved)
            self._refusal = (400, "too many requests at once on one connection")

    # -- answering ----------------------------------------------------------------------------------------------------

    def _begin(self, request: Request, close: bool, reserved: int) -> None:
        self._reserved += reserved
        self._exchange = exchange = Exchange(self, request, close)
        self._owner.on_begun()
        self._task = asyncio.get_running_loop().create_task(self._answer(exchange))

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._owner.handler(exchange)
        except asyncio.CancelledError:
            if not exchange.gone and not exchange.opened:
                exchange.reply(503)
        except Exception:
            _log.exception("a request to %s failed", exchange.request.path)
            if not exchange.opened:
                exchange.reply(500)
        if not exchange.answered and not exchange.gone:
            exchange.abort()

    def finished(self, close: bool) -> None:
        """The response is complete."""
        if self._exchange is not None and not self._exchange.gone:
            self._owner.on_ended()
        self._exchange = None
        self._release()
        if self._transport is None:
            return
        if close:
            self._transport.close()
        elif self._waiting:
            self._begin(*self._waiting.popleft())
        else:
            self._owner.on_answered(self)

    def send(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        if transport.get_write_buffer_size() > self._owner.limits.unread:
            self.abort()

    def _refuse(self, status: int, why: str) -> None:
        if self._exchange is None:
            body = why.encode()
            self.send(head(status, (("content-type", "text/plain"),), length=len(body), close=True) + body)
        if self._transport is not None:
            self._transport.close()

    def cancel(self) -> asyncio.Task[None] | None:
        """Cut off whoever is answering; the task, while it has not ended."""
        if self._exchange is None or self._task is None:
            return None
        self._task.cancel()
        return self._task

    def close(self) -> None:
        """End an idle connection."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def timed_out(self) -> None:
        """What the client was sending did not come in time."""
        self._refusal = (408, "the request did not come in time")
        self._refuse(*self._refusal)

    def _release(self) -> None:
        if self._reserved:
            self._owner.release(self._reserved)
            self._reserved = 0
