"""One connection of a client: requests in, one after the other, and their responses out.

Rule 1. A request reaches the handler whole, or not at all.
Rule 2. Requests of one connection are answered in their order; the next one waits, in a bounded line.
Rule 3. The end of the client's side ends the connection: whoever is answering hears of it at once.
Rule 4. Nothing here waits; the server's sweep ends what takes too long.
Rule 5. What could be read in two ways is refused, and the connection with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, cast

import httptools

from toolway.gateway.http.exchange import Exchange
from toolway.gateway.http.limits import HttpLimits
from toolway.gateway.http.messages import Fields, Request, head
from toolway.gateway.http.room import Room
from toolway.protocol.heads import Heads

Handler = Callable[[Exchange], Coroutine[Any, Any, None]]

Refusal = tuple[int, bytes, Fields]
Greet = Callable[[Request], Refusal | str]  # by the head of a request: no, or the name of a guest

_FRAMING: Final = 64 * 1024  # what chunk sizes and trailers may cost beyond the body itself
_VERSIONS: Final = ("1.0", "1.1")
_OFFERS: Final = frozenset({"connection", "upgrade", "http2-settings"})  # of a client that would speak something else
_SPECIAL: Final = frozenset({"transfer-encoding", "expect", "upgrade"})  # read each time
_log = logging.getLogger(__name__)


class Owner(Protocol):
    """The server, as its connections see it. All are called at once, from the loop's callbacks."""

    limits: HttpLimits
    handler: Handler
    greet: Greet | None
    room: Room
    heads: Heads[Request]
    draining: bool
    loop: asyncio.AbstractEventLoop  # asking which one runs costs a system call

    def on_opened(self, connection: Connection) -> None: ...

    def on_reading(self, connection: Connection) -> None: ...

    def on_request(self, connection: Connection) -> None: ...

    def on_begun(self, connection: Connection) -> None: ...

    def on_ended(self, connection: Connection) -> None: ...

    def on_answered(self, connection: Connection) -> None: ...

    def on_unread(self, connection: Connection) -> None: ...

    def on_taken(self, connection: Connection) -> None: ...

    def on_refused(self, connection: Connection) -> None: ...

    def on_closed(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    __slots__ = (
        "_body",
        "_deaf",
        "_exchange",
        "_fields",
        "_guest",
        "_head",
        "_held",
        "_last",
        "_left",
        "_owner",
        "_parser",
        "_path",
        "_peer",
        "_refusal",
        "_repeated",
        "_reserved",
        "_sent",
        "_size",
        "_task",
        "_transport",
        "_waiting",
        "head_done",
        "known",
        "mark",
        "received",
        "since",
        "taken_mark",
    )

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting: deque[tuple[Request, bool, bool, int]] = deque()
        self._peer = ""
        self._refusal: Refusal | None = None
        self._last: Request | None = None  # what was read last, where its head may be remembered
        self._deaf = False  # what comes now is not read: the client said that nothing more would
        self._left = False  # the refusal is sent
        self.known = False  # the client has shown who it is
        self.since = 0.0  # when the message being read began; 0 while none is
        self.mark = (0.0, 0)  # when the speed of a body was last looked at, and what had come by then
        self.received = 0  # bytes of the message being read, framing included
        self._sent = 0  # bytes that were given to the transport
        self.taken_mark = (0.0, 0)  # when it was last looked at what the client had taken, and how much that was
        self._guest = ""  # whose room its bodies take
        self._reserved = 0  # bytes of the budget for bodies: of the one being read
        self._held = 0  # and of the one being answered
        self._clear()

    def _clear(self) -> None:
        self.head_done = False
        self._path = b""
        self._fields: dict[str, str] = {}
        self._repeated: set[str] = set()
        self._body: list[bytes] = []
        self._head = 0
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
        if self._refusal is not None or self._deaf:
            return
        between = not self.since and not self.received and self._exchange is None
        if between and (known := self._owner.heads.find(data)) is not None and self._take(*known):
            return
        self.received += len(data)
        self._read(data)
        if between and self._last is not None:
            self._owner.heads.learn(data, self._last.with_body(b"", ""))
            self._last = None

    def _take(self, request: Request, body: bytes) -> bool:
        """A whole request whose head was read before. False where it is refused: then it is read again, to say why."""
        owner, size = self._owner, len(body)
        if size > owner.limits.body:
            return False
        if owner.greet is not None:
            guest = owner.greet(request)
            if not isinstance(guest, str):
                return False
            self._guest = guest
        if not owner.room.take(size, self._guest):
            return False
        self._begin(request.with_body(body, self._peer), False, False, size)
        return True

    def _read(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline(data[offer.args[0] :])
        except httptools.HttpParserError:
            if not self._deaf:
                self._turn_away(400, "the request is not valid HTTP/1.1")
        if self._refusal is None:
            self._check_size()
        if self._refusal is not None:
            self._refuse(self._refusal)

    def _decline(self, rest: bytes) -> None:
        """Read on as if no other protocol had been offered: some clients offer HTTP/2 with their first request."""
        method = self._parser.get_method()
        if self._refusal is not None or method == b"CONNECT":
            self._turn_away(405, "this is no proxy")
            return
        kept = [f"{name}: {value}\r\n".encode("latin-1") for name, value in self._fields.items() if name not in _OFFERS]
        again = b"%b %b HTTP/1.1\r\n%b\r\n" % (method, self._path, b"".join(kept))
        repeated = self._repeated
        self._clear()
        self._repeated = repeated
        self._parser = httptools.HttpRequestParser(self)
        self.data_received(again + rest)

    def _check_size(self) -> None:
        limits = self._owner.limits
        if not self.head_done and self.received > limits.head:
            self._turn_away(431, "the head of the request is too large")
        elif self.received > limits.head + self._size + _FRAMING + self._size // 4:
            self._turn_away(400, "the request is mostly framing")

    def _turn_away(self, status: int, why: str) -> None:
        """Refuse what is being read; the first reason counts."""
        if self._refusal is None:
            self._refusal = (status, why.encode(), (("content-type", "text/plain"),))

    def eof_received(self) -> None:
        return None  # close: a client that ends its side takes no answer

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._owner.on_closed(self)
        self._release()
        self._drop()
        for *_, reserved in self._waiting:
            self._owner.room.give_back(reserved, self._guest)
        self._waiting.clear()
        exchange = self._exchange
        if exchange is None:
            return
        self._owner.on_ended(self)
        exchange.gone = True
        if exchange.on_gone is not None:
            exchange.on_gone()
        elif self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self.taken_mark = (self._owner.loop.time(), self.taken)
        self._owner.on_unread(self)

    def resume_writing(self) -> None:
        self._owner.on_taken(self)

    @property
    def taken(self) -> int:
        """Bytes that have left for the client."""
        return self._sent - self.unread

    @property
    def unread(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    # -- the parser ---------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.since = self._owner.loop.time()
        self.mark = (self.since, 0)
        self._owner.on_reading(self)

    def on_url(self, url: bytes) -> None:
        self._path += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head_done:
            return  # a trailer: nothing that comes after the body says how to take it
        key = name.decode("latin-1").lower()
        if key in self._fields:
            self._repeated.add(key)
        elif len(self._fields) >= self._owner.limits.fields:
            self._turn_away(431, "the request has too many headers")
            return
        self._count(len(name) + len(value) + 4)
        self._fields[key] = value.strip(b" \t").decode("latin-1")

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > self._owner.limits.head:
            self._turn_away(431, "the head of the request is too large")

    def on_headers_complete(self) -> None:
        self.head_done = True
        self._check_head(self._fields)
        if self._refusal is None and not self._parser.should_upgrade():
            self._expect_body(self._fields)

    def _check_head(self, fields: dict[str, str]) -> None:
        version = self._parser.get_http_version()
        if version not in _VERSIONS:
            self._turn_away(505, "only HTTP/1.1 is spoken here")
        elif "transfer-encoding" not in fields:
            return
        elif fields["transfer-encoding"].lower() != "chunked" or "transfer-encoding" in self._repeated:
            self._turn_away(501, "only chunked bodies are understood")
        elif version == "1.0":
            self._turn_away(400, "HTTP/1.0 knows no chunks")

    def _expect_body(self, fields: dict[str, str]) -> None:
        """What can be said about a body before any of it is read."""
        size = int(fields.get("content-length", "0"))
        expected = fields.get("expect", "").lower()
        if not size and "transfer-encoding" not in fields:
            return
        if size > self._owner.limits.body:
            self._turn_away(413, "the body of the request is too large")
        elif expected not in ("", "100-continue"):
            self._turn_away(417, "only 100-continue can be expected")
        elif not self.busy:
            self._greet()
            if self._refusal is None and not self._owner.room.has(size, self._guest):
                self._turn_away(503, "too many requests are being read")
            elif self._refusal is None and expected and self._parser.get_http_version() != "1.0":
                self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _greet(self) -> None:
        """Nothing of theirs is in our hands while a guest is greeted, so the name may change."""
        if self._owner.greet is None:
            return
        found = self._owner.greet(self._request(b""))
        if isinstance(found, str):
            self._guest = found
        else:
            self._refusal = found

    def on_body(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._size += len(data)
        if self._size > self._owner.limits.body:
            self._turn_away(413, "the body of the request is too large")
        elif not self._owner.room.take(len(data), self._guest):
            self._turn_away(503, "too many requests are being read")
        else:
            self._reserved += len(data)
            self._body.append(data)

    def on_message_complete(self) -> None:
        if self._refusal is not None or self._parser.should_upgrade():
            return
        request = self._request(self._body[0] if len(self._body) == 1 else b"".join(self._body))
        old = self._parser.get_http_version() == "1.0"
        close = self._deaf = old or not self._parser.should_keep_alive()
        reserved, self._reserved = self._reserved, 0
        self.since = 0.0
        plain = not close and request.method == "POST" and not (_SPECIAL & self._fields.keys())
        self._last = request if plain and not request.repeated else None
        self._clear()
        self._owner.on_request(self)
        if self._exchange is None:
            self._begin(request, close, old, reserved)
        elif len(self._waiting) < self._owner.limits.pipelined:
            self._waiting.append((request, close, old, reserved))
        else:
            self._owner.room.give_back(reserved, self._guest)
            self._turn_away(400, "too many requests at once on one connection")

    def _request(self, body: bytes) -> Request:
        path, _, query = self._path.decode("latin-1").partition("?")
        method = self._parser.get_method().decode("latin-1")
        return Request(method, path, query, self._fields, frozenset(self._repeated), body, self._peer)

    # -- answering ----------------------------------------------------------------------------------------------------

    def _begin(self, request: Request, close: bool, old: bool, reserved: int) -> None:
        self._held = reserved
        self._exchange = exchange = Exchange(self, request, close, old)
        self._owner.on_begun(self)
        self._task = self._owner.loop.create_task(self._answer(exchange))

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

    def look(self, now: float) -> None:
        """Called now and then while somebody is being answered."""
        exchange = self._exchange
        if exchange is not None and exchange.on_look is not None:
            exchange.on_look(now)

    def finished(self, close: bool) -> None:
        """The response is complete."""
        if self._exchange is not None and not self._exchange.gone:
            self._owner.on_ended(self)
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
        """Write, unless too much of what was written before still waits for the client."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._left:
            return
        if transport.get_write_buffer_size() > self._owner.limits.unread:
            self.abort()
            return
        self._sent += len(data)
        transport.write(data)

    def _refuse(self, refusal: Refusal) -> None:
        """Say why and end. The client may still be sending: what comes is dropped for a while instead of resetting the
        connection, which would take the answer from it."""
        transport = self._transport
        if transport is None or self._left:
            return
        self._drop()
        if self._exchange is not None:
            transport.close()
            return
        status, body, fields = refusal
        self.send(head(status, fields, length=len(body), close=True) + body)
        self._left = True
        if transport.can_write_eof() and not transport.is_closing():
            transport.write_eof()
        self._owner.on_refused(self)

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
        self._turn_away(408, "the request did not come in time")
        assert self._refusal is not None
        self._refuse(self._refusal)

    def _release(self) -> None:
        """What was answered needs no room any more."""
        self._owner.room.give_back(self._held, self._guest)
        self._held = 0

    def _drop(self) -> None:
        """What was read of a request that will not be answered."""
        self._owner.room.give_back(self._reserved, self._guest)
        self._reserved = 0
        self._body = []
