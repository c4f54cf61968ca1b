"""One HTTP/1.1 connection: a request out in one write, a response in as it comes.

Rule 1. A connection carries one exchange at a time. It is kept for the next one only after a clean end of the message,
        with everything written, nothing left over, and both sides willing; in every other case it is closed.
Rule 2. Facts are recorded where they become known, in the loop's callbacks; nothing here waits.
Rule 3. What arrives is bounded: the head by bytes and fields, the framing by what it frames, the body by pausing the
        socket while the reader is behind.
Rule 4. `bytes_sent` is an upper bound, and zero only where that is certain. TLS hides what left, so there it is all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

import httptools

from toolway.protocol.heads import Heads
from toolway.upstream.transports.http1.incoming import Incoming
from toolway.upstream.transports.http1.limits import HttpFault, HttpLimits, Watch

# Chunk sizes, extensions and trailers may cost so much more than the bytes they carry; beyond, it is an attack.
_FRAMING_FLOOR: Final = 64 * 1024
_FRAMING_RATIO: Final = 16
_SPECIAL: Final = frozenset({"transfer-encoding", "trailer", "upgrade"})


Head = tuple[int, dict[str, str]]  # status and fields, not to be changed


class Keeper(Protocol):
    """Whoever owns connections. Both are called at once, from the loop's callbacks."""

    heads: Heads[Head]

    def on_free(self, connection: Connection) -> None: ...

    def on_lost(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    """One socket and its parser."""

    __slots__ = (
        "_complete",
        "_fields",
        "_head_bytes",
        "_head_done",
        "_incoming",
        "_keep",
        "_keeper",
        "_limits",
        "_linger",
        "_lost",
        "_on_sent",
        "_overhead",
        "_parser",
        "_paused",
        "_problem",
        "_surplus",
        "_tls",
        "_transport",
        "_unsent",
        "_watch",
        "_written",
        "idle_since",
        "key",
        "loop",
        "name",
    )

    def __init__(self, keeper: Keeper, key: Any, name: str, limits: HttpLimits) -> None:
        self.key = key  # the keeper's own
        self.name = name  # of the peer, for messages
        self.idle_since = 0.0
        self._keeper = keeper
        self._limits = limits
        self.loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._watch = Watch(limits)
        self._lost = False
        self._tls = False
        self._paused = False
        self._incoming: Incoming | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._clear()

    def _clear(self) -> None:
        self._on_sent: Callable[[], None] | None = None
        self._written = 0
        self._unsent = False  # the write failed on the spot: nothing left
        self._head_done = False
        self._head_bytes = 0
        self._fields: list[tuple[bytes, bytes]] = []
        self._overhead = 0
        self._complete = False
        self._keep = False
        self._surplus = False
        self._problem: tuple[str, str] | None = None  # code and reason, found inside the parser's callbacks

    # -- the life of the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # by its methods: not every loop's is one by its class
        self._tls = transport.get_extra_info("ssl_object") is not None

    @property
    def usable(self) -> bool:
        return not self._lost and not self._transport.is_closing()

    def eof_received(self) -> None:
        incoming = self._incoming
        if incoming is not None and self._head_done and not self._complete and _ends_with_connection(incoming.headers):
            self._complete = True
            self._finish(incoming)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._keeper.on_lost(self)
        if self._incoming is not None:
            how = "vanished from" if isinstance(exc, TimeoutError) else "reset" if exc is not None else "closed"
            when = "in the middle of its answer" if self._head_done or self._head_bytes else "without an answer"
            self.fail("E-HTTP-RESET", f"{self.name} {how} the connection {when}")

    def abort(self) -> None:
        """Close at once. An exchange under way is forgotten; whoever waits for it must already know."""
        self._note_sent()
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            incoming.sent = self.bytes_sent
            incoming.connection = None
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self._transport.abort()

    def fail(self, code: str, reason: str, fix: str = "") -> None:
        """End the exchange under way with a fault, and the connection with it."""
        incoming = self._incoming
        if incoming is not None:
            incoming.fault = HttpFault(reason, code=code, bytes_sent=self.bytes_sent, fix=fix)
            self.abort()
            incoming.wake()
        else:
            self.abort()

    # -- one exchange

    def start(self, incoming: Incoming, data: bytes, on_sent: Callable[[], None] | None) -> None:
        """Send a request whose response goes to `incoming`. `on_sent` is called when the first byte has left, or, where
        that was not seen at once, before anyone can learn how the exchange ended."""
        self._clear()
        self._watch.reset()
        self._incoming = incoming
        incoming.connection = self
        self._on_sent = on_sent
        self._written = len(data)
        self._transport.write(data)
        if not self._tls and self._transport.is_closing():
            # The transport writes on the spot when it can: this is the system's refusal of the very first byte.
            self._unsent = True
        self._note_sent()

    @property
    def bytes_sent(self) -> int:
        if self._unsent or not self._written:
            return 0
        if self._lost or self._tls:
            return self._written
        return self._written - min(self._written, self._transport.get_write_buffer_size())

    def _note_sent(self) -> None:
        if self._on_sent is not None and self.bytes_sent:
            on_sent, self._on_sent = self._on_sent, None
            on_sent()

    def linger(self) -> None:
        """The answer is known but its message has not ended: keep the connection if the end comes at once."""
        assert self._incoming is not None
        self._incoming.connection = None
        self._incoming = Incoming()  # nobody reads the rest
        self._linger = self.loop.call_later(self._limits.linger, self.abort)
        self.taken()

    def taken(self) -> None:
        """The reader has emptied what was held."""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def check(self, now: float) -> None:
        """Look whether the exchange gets on."""
        incoming = self._incoming
        if incoming is None or self._paused:
            return
        self._note_sent()
        unsent = self._transport.get_write_buffer_size()
        if self._head_done:
            if incoming.metered and incoming.received and self._watch.overdue(now, "body", incoming.received):
                rate = f"{self._limits.slow_rate} bytes/s over {self._limits.slow_window:g} s"
                self.fail("E-HTTP-SLOW", f"{self.name} sent its answer more slowly than {rate}")
        elif self._head_bytes:
            if self._watch.overdue(now, "head", 0):
                self.fail("E-HTTP-SLOW", f"{self.name} took more than {self._limits.head:g} s to send a head")
        elif unsent and self._watch.overdue(now, "write", unsent):
            self.fail(
                "E-HTTP-TIMEOUT",
                f"{self.name} took no byte of the request for {self._limits.write:g} s",
                "the server has stopped reading; restart it",
            )

    # -- what arrives

    def data_received(self, data: bytes) -> None:
        incoming = self._incoming
        if incoming is None:
            self.abort()
            return
        if self._on_sent is not None:
            self._note_sent()
        incoming.heard = True
        first = not (self._head_done or self._head_bytes or self._fields)
        if first and (known := self._keeper.heads.find(data)) is not None:
            self._take(incoming, *known)
            return
        before = incoming.received
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            if not self._complete:
                self._problem = self._problem or ("E-HTTP-PROTOCOL", f"sent no valid HTTP ({exc})")
            self._surplus = True
        if self._problem is not None:
            code, reason = self._problem
            self.fail(code, f"{self.name} {reason}")
        elif self._complete:
            if first and self._keep and not self._surplus and not (_SPECIAL & incoming.headers.keys()):
                self._keeper.heads.learn(data, (incoming.status, incoming.headers))
            self._finish(incoming)
        else:
            self._account(incoming, len(data) - (incoming.received - before))

    def _take(self, incoming: Incoming, head: Head, body: bytes) -> None:
        """A whole response whose head was read before."""
        incoming.status, incoming.headers = head
        incoming.chunks.append(body)
        incoming.unread = incoming.received = len(body)
        self._head_done = self._complete = self._keep = True
        self._finish(incoming)

    def _account(self, incoming: Incoming, overhead: int) -> None:
        """Between two reads: are the limits kept, and does the reader keep up?"""
        if not self._head_done:
            self._head_bytes += overhead
            if self._head_bytes > self._limits.head_bytes:
                self.fail("E-HTTP-LIMIT", f"{self.name} {_too_long(self._limits)}")
            return
        self._overhead += overhead
        if self._overhead > _FRAMING_FLOOR + self._limits.head_bytes + _FRAMING_RATIO * incoming.received:
            self.fail("E-HTTP-LIMIT", f"{self.name} sent more framing than content")
        elif self._linger is not None and incoming.received > self._limits.linger_bytes:
            self.abort()
        elif incoming.unread > self._limits.unread and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        incoming.wake()

    def _finish(self, incoming: Incoming) -> None:
        transport = self._transport
        incoming.sent = self._written
        incoming.complete = True
        incoming.connection = None
        self._incoming = None
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._keep and not self._surplus and self.usable and not transport.get_write_buffer_size():
            self.taken()
            self.idle_since = self.loop.time()
            self._keeper.on_free(self)
        else:
            transport.abort()
        incoming.wake()

    # -- the parser's callbacks

    def on_message_begin(self) -> None:
        if self._complete:
            self._surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_done:
            return  # a trailer
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        incoming = self._incoming
        if self._complete or incoming is None:
            return
        fields, self._fields = self._fields, []
        if len(fields) > self._limits.headers:
            self._problem = ("E-HTTP-LIMIT", f"sent more than {self._limits.headers} header fields")
            return
        status = self._parser.get_status_code()
        if status < 200:
            return  # an interim response; its bytes still count against the limit of the head
        headers: dict[str, str] = {}
        size = 0
        for raw_name, raw_value in fields:
            size += len(raw_name) + len(raw_value)
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        if size > self._limits.head_bytes:
            self._problem = ("E-HTTP-LIMIT", _too_long(self._limits))
            return
        if headers.get("transfer-encoding", "chunked").lower() != "chunked":
            self._problem = ("E-HTTP-PROTOCOL", "sent a transfer coding other than chunked")
            return
        self._head_done = True
        incoming.status = status
        incoming.headers = headers

    def on_body(self, body: bytes) -> None:
        incoming = self._incoming
        if incoming is None or self._complete:
            return
        size = len(body)
        incoming.chunks.append(body)
        incoming.unread += size
        incoming.received += size

    def on_message_complete(self) -> None:
        if self._head_done and not self._complete:
            self._complete = True
            self._keep = self._parser.should_keep_alive()


def _too_long(limits: HttpLimits) -> str:
    return f"sent a head of more than {limits.head_bytes} bytes"


def _ends_with_connection(headers: dict[str, str]) -> bool:
    """Whether the body lasts until the connection is closed."""
    return "content-length" not in headers and "transfer-encoding" not in headers
