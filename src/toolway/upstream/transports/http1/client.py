"""A lean HTTP/1.1 client that knows what left.

It exists because a general client costs 200 to 1000 µs a call, and none tells how many bytes of a request left, which
decides whether a lost call may be repeated. It follows no redirect and repeats nothing: one `send`, one attempt.

    client = Client(addresses=server.reach)
    headers = header_block({"Content-Type": "application/json"})
    async with client.send("POST", Target.parse(url), [headers], body) as response:
        if response.status == 200:
            data = await response.read(limit)

Leaving the block before the response has ended closes its connection: that is how a request is cancelled. A connection
whose response has ended cleanly is kept for the next request to the same origin, the last one used first. How many are
open is bounded by how many requests the caller has under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final

from toolway.addresses import PUBLIC, Addresses
from toolway.protocol.heads import Heads
from toolway.upstream.transports.http1.connection import Connection, Head
from toolway.upstream.transports.http1.dial import Dialer
from toolway.upstream.transports.http1.incoming import Incoming
from toolway.upstream.transports.http1.inflate import CODINGS, BadCompression, Inflate
from toolway.upstream.transports.http1.limits import HttpFault, HttpLimits
from toolway.upstream.transports.http1.proxy import Proxy, proxy_for
from toolway.upstream.transports.http1.request import (
    HeaderBlock,
    Origin,
    Prepared,
    Target,
    header_block,
    prepared,
    request_bytes,
)

__all__ = [
    "Client",
    "HeaderBlock",
    "HttpFault",
    "HttpLimits",
    "Origin",
    "Prepared",
    "Response",
    "Target",
    "header_block",
]

_CLOSED: Final = "the client was closed"
KNOWN_HEADS: Final = 16  # of responses; most servers have one for each second


class Response(Incoming):
    """One exchange, to be entered once. `status` and `headers` are there inside the block.

    Header names are lower-case; a field that came several times is one value, joined by ", ".
    """

    __slots__ = ("_client", "_inflate", "_max_idle", "_on_sent", "_request", "_target", "on_dial")

    def __init__(
        self, client: Client, target: Target, request: bytes, max_idle: float | None, on_sent: Callable[[], None] | None
    ) -> None:
        super().__init__()
        self._client = client
        self._target = target
        self._request = request
        self._max_idle = max_idle
        self._on_sent = on_sent
        self.on_dial: Callable[[], None] | None = None  # called where a connection has to be made first
        self._inflate: Inflate | None = None

    async def __aenter__(self) -> Response:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    async def begin(self) -> None:
        """Send, and wait for the head of the response. `leave` must follow where it does not raise."""
        origin = self._target.origin
        connection = self._client._kept(origin, self._max_idle)
        if connection is None:
            if self.on_dial is not None:
                self.on_dial()
            connection = await self._client._dial(origin)
        loop = connection.loop
        began = loop.time()
        connection.start(self, self._request, self._on_sent)
        self._request = b""
        try:
            while not self.status:
                if self.fault is not None:
                    raise self.fault
                self._waiter = loop.create_future()
                await self._waiter
        except BaseException:
            self.leave()
            if not self.heard:
                self._client._doubt(origin, began)
            raise
        finally:
            self._waiter = None
        if "content-encoding" in self.headers:
            self._open_coding(self.headers["content-encoding"].strip().lower())

    def leave(self) -> None:
        """Nothing more is read: a response that has not ended loses its connection."""
        if self.connection is not None:
            self.connection.abort()

    def __aiter__(self) -> Response:
        return self

    async def __anext__(self) -> bytes:
        chunk = await self.chunk()
        if not chunk:
            raise StopAsyncIteration
        return chunk

    async def chunk(self) -> bytes:
        """The next bytes of the body as they come, at most a few hundred KiB; empty at its end. Raises `HttpFault`."""
        if self._inflate is None:
            return await self._raw_chunk()
        try:
            while not (piece := self._inflate.take()):
                raw = await self._raw_chunk()
                if not raw:
                    self._inflate.finish()
                    break
                self._inflate.feed(raw)
            return piece
        except BadCompression as exc:
            raise self._refused("E-HTTP-LIMIT", str(exc)) from None

    def whole(self, limit: int) -> bytes | None:
        """The body where it is there in one piece, as nearly every one is; else it is to be read."""
        if self.complete and len(self.chunks) == 1 and self._inflate is None and self.unread <= limit:
            return self.chunks.popleft()
        return None

    async def read(self, limit: int) -> bytes:
        """The whole body, which must keep coming at a decent pace. Raises `HttpFault`."""
        if (body := self.whole(limit)) is not None:
            return body
        self.metered = True
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise self._too_long(limit)
        pieces: list[bytes] = []
        size = 0
        while size <= limit:
            chunk = await self.chunk()
            if not chunk:
                return b"".join(pieces)
            pieces.append(chunk)
            size += len(chunk)
        raise self._too_long(limit)

    def finish_soon(self) -> None:
        """The rest does not matter: keep the connection if the end of the message is at hand, else close it."""
        self.chunks.clear()
        if self.connection is not None:
            self.connection.linger()

    async def _raw_chunk(self) -> bytes:
        while not self.chunks:
            if self.fault is not None:
                raise self.fault
            if self.complete:
                return b""
            await self.wait()
        chunk = self.chunks.popleft()
        self.unread -= len(chunk)
        if self.connection is not None and not self.chunks:
            self.connection.taken()
        return chunk

    def _open_coding(self, coding: str) -> None:
        """A body in a coding that is not accepted cannot be read; what its head says still counts."""
        if coding in CODINGS and self._client.limits.compression:
            self._inflate = Inflate(coding)
        elif coding != "identity":
            self.fault = self._refused(
                "E-HTTP-CONTENT", f"its answer in a coding that was not asked for: {coding[:40]!a}"
            )
            self.chunks.clear()

    def _too_long(self, limit: int) -> HttpFault:
        return self._refused("E-HTTP-LIMIT", f"an answer of more than {limit} bytes")

    def _refused(self, code: str, what: str) -> HttpFault:
        self.leave()
        return HttpFault(f"{self._target.origin} sent {what}", code=code, bytes_sent=self.sent)


class Client:
    """Connections to any number of origins, at public addresses and those that `addresses` allows. Belongs to one event
    loop; `close` ends every exchange."""

    def __init__(self, limits: HttpLimits | None = None, addresses: Addresses = PUBLIC) -> None:
        self.limits = limits or HttpLimits()
        self._dialer = Dialer(addresses, self.limits.connect)
        self._proxies: dict[Origin, Proxy | None] = {}
        self.heads: Heads[Head] = Heads(KNOWN_HEADS)
        self._open: set[Connection] = set()
        self._idle: dict[Origin, list[Connection]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def send(
        self,
        method: str,
        target: Target,
        headers: Iterable[HeaderBlock] = (),
        body: bytes = b"",
        *,
        max_idle: float | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> Response:
        """A request to be made by `async with`.

        A kept connection that was idle for longer than `max_idle` seconds is
        not used: if it turns out to be lost, nobody could tell whether the request was. `on_sent` is called once, when
        the first byte has left.
        """
        head = self.prepare(method, target, headers)
        return self.send_prepared(head, target, body, max_idle=max_idle, on_sent=on_sent)

    def prepare(self, method: str, target: Target, headers: Iterable[HeaderBlock]) -> Prepared:
        """What stays the same of requests with this head."""
        proxy = self._proxy(target.origin)
        plain = proxy is not None and target.origin.scheme == "http"
        if plain and proxy is not None and proxy.authorization:
            headers = (*headers, header_block({"Proxy-Authorization": proxy.authorization}))
        return prepared(method, target, headers, absolute=plain)

    def send_prepared(
        self,
        head: Prepared,
        target: Target,
        body: bytes,
        *,
        max_idle: float | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> Response:
        """The same as `send`, with a head that was prepared for `target`."""
        return Response(self, target, request_bytes(head, body), max_idle, on_sent)

    async def connect(self, origin: Origin) -> None:
        """One more connection to `origin`, kept for the next request to it. Raises `HttpFault`."""
        connection = await self._dial(origin)
        connection.idle_since = connection.loop.time()
        self.on_free(connection)

    def close(self) -> None:
        """End every exchange with a fault and close every connection."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self._open):
            connection.fail("E-HTTP-CLOSED", _CLOSED)

    # -- for `Response`

    def _kept(self, origin: Origin, max_idle: float | None) -> Connection | None:
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if not connection.usable:
                continue
            if max_idle is not None and connection.loop.time() - connection.idle_since > max_idle:
                idle.append(connection)  # all below it have been idle for longer
                return None
            return connection
        return None

    def _doubt(self, origin: Origin, since: float) -> None:
        """Not a byte came back: whatever swallowed the request may have cut off the kept connections too, all but those
        that were in use meanwhile."""
        for connection in self._idle.get(origin, ()):
            if connection.idle_since <= since:
                connection.abort()

    async def _dial(self, origin: Origin) -> Connection:
        try:
            async with asyncio.timeout(self.limits.connect):
                connection = await self._dialer.dial(
                    origin, self._proxy(origin), lambda: Connection(self, origin, str(origin), self.limits)
                )
        except TimeoutError:
            raise HttpFault(
                f"no connection to {origin} within {self.limits.connect:g} s",
                code="E-HTTP-TIMEOUT",
                fix="check the address and the network; a firewall may drop packets",
            ) from None
        if self._closed:
            connection.abort()
            raise HttpFault(_CLOSED, code="E-HTTP-CLOSED")
        self._open.add(connection)
        if self._timer is None:
            self._tick()
        return connection

    # -- for `Connection`

    def on_free(self, connection: Connection) -> None:
        idle = self._idle.setdefault(connection.key, [])
        if self._closed or len(idle) >= self.limits.idle_connections:
            connection.abort()
        else:
            idle.append(connection)

    def on_lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        idle = self._idle.get(connection.key)
        if idle and connection in idle:
            idle.remove(connection)

    # -- inside

    def _proxy(self, origin: Origin) -> Proxy | None:
        if origin not in self._proxies:
            self._proxies[origin] = proxy_for(origin)
        return self._proxies[origin]

    def _tick(self) -> None:
        """One timer looks after all connections, so that a request needs none of its own."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for idle in self._idle.values():
            for connection in idle:
                if now - connection.idle_since > self.limits.idle:
                    connection.abort()
        for connection in list(self._open):
            connection.check(now)
        self._timer = loop.call_later(self.limits.tick, self._tick) if self._open else None
