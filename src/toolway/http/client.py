"""Pooled HTTP/1.1 client that counts the bytes of a request that were sent.

    client = HttpClient(network_policy=server.network_policy)
    headers = encode_headers({"Content-Type": "application/json"})
    async with client.send("POST", HttpTarget.parse(url), [headers], body) as response:
        if response.status == 200:
            data = await response.read(limit)

Theory of operation ------------------- A general client would cost 200 to 1000 µs per call. And none reports how many
bytes of a request were sent, which decides whether a lost call may be repeated. This client never follows a redirect
and never repeats a request: one `send` is one attempt.

`send` only builds the request. Entering the block takes a connection from the pool, most recently used first, or lets
the `Dialer` open one (`dialer.py`: DNS, TCP, proxy, TLS). A `ClientConnection` (`client_connection.py`) writes the
request and parses the response in event loop callbacks. It fills the `HttpResponse`, which the caller reads at its
own speed; the socket pauses while too much is unread.

Exiting the block before the response has ended closes its connection, which is how a request is cancelled. After a
complete response, the connection returns to the pool. The number of open connections is bounded by the number of
requests that the caller has in flight.

Every failure is an `HttpError` (`limits.py`) with `bytes_sent`: zero means that the server cannot have executed the
request. One timer for all connections (`_tick`) finds those that stall, so requests work without timers.

Bodies are decompressed in pieces, with a ratio limit against decompression bombs.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Final

from toolway.config.schema import Tls
from toolway.http.client_connection import ClientConnection, IncomingResponse, ResponseHead
from toolway.http.dialer import Dialer, Proxy, proxy_for
from toolway.http.exchange import HeadCache
from toolway.http.limits import ClientLimits, HttpError
from toolway.http.request import (
    HeaderBlock,
    HttpTarget,
    Origin,
    RequestTemplate,
    encode_head,
    encode_headers,
    encode_request,
)
from toolway.network import PUBLIC_ONLY, NetworkPolicy

__all__ = [
    "ClientLimits",
    "HeaderBlock",
    "HttpClient",
    "HttpError",
    "HttpResponse",
    "HttpTarget",
    "Origin",
    "RequestTemplate",
    "encode_headers",
]

#: Checks a new connection before its first request. Raises `HttpError` if it must not be used.
ConnectionCheck = Callable[[ClientConnection], Awaitable[None]]

_CLOSED_REASON: Final = "the HTTP client was closed"
MAX_CACHED_HEADS: Final = 16  # cached response heads; most servers send one per second, because of the Date header


class HttpClient:
    """HTTP client with a connection pool, for origins that the network policy allows.

    A client belongs to one event loop. `close` fails every request in progress. `check_connection` is called with
    every new connection before anything else is sent on it, and raises `HttpError` if the connection must not be
    used. With `unix_path`, all connections are to that Unix socket.
    """

    def __init__(
        self,
        limits: ClientLimits | None = None,
        network_policy: NetworkPolicy = PUBLIC_ONLY,
        tls: Tls | None = None,
        check_connection: ConnectionCheck | None = None,
        unix_path: str = "",
    ) -> None:
        self.limits = limits or ClientLimits()
        self._check_connection = check_connection
        self._checked: set[ClientConnection] = set()  # connections that are being checked
        self._dialer = Dialer(network_policy, self.limits.connect_timeout, tls, unix_path)
        self._unix_path = unix_path
        self._proxies: dict[Origin, Proxy | None] = {}
        self.head_cache: HeadCache[ResponseHead] = HeadCache(MAX_CACHED_HEADS)
        self._connections: set[ClientConnection] = set()
        self._idle: dict[Origin, list[ClientConnection]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def send(
        self,
        method: str,
        target: HttpTarget,
        headers: Iterable[HeaderBlock] = (),
        body: bytes = b"",
        *,
        max_idle: float | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> HttpResponse:
        """Build a request and return its response object; `async with` on that sends the request.

        A pooled connection that was idle for longer than `max_idle` seconds is not used: if it is lost, the
        request may or may not have been received. `on_sent` is called once, when the first byte has been sent.
        """
        head = self.prepare(method, target, headers)
        return self.send_prepared(head, target, body, max_idle=max_idle, on_sent=on_sent)

    def prepare(self, method: str, target: HttpTarget, headers: Iterable[HeaderBlock]) -> RequestTemplate:
        """Encode a request head (request line and headers) that several requests can reuse."""
        proxy = self._proxy_for(target.origin)
        absolute = proxy is not None and target.origin.scheme == "http"
        if absolute and proxy is not None and proxy.authorization:
            headers = (*headers, encode_headers({"Proxy-Authorization": proxy.authorization}))
        return encode_head(method, target, headers, absolute=absolute)

    def send_prepared(
        self,
        head: RequestTemplate,
        target: HttpTarget,
        body: bytes,
        *,
        max_idle: float | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> HttpResponse:
        """Build a request from a head that `prepare` encoded for `target`. Otherwise, this works like `send`."""
        return HttpResponse(self, target, encode_request(head, body), max_idle, on_sent)

    def send_on(
        self,
        connection: ClientConnection,
        head: RequestTemplate,
        target: HttpTarget,
        body: bytes,
        on_sent: Callable[[], None],
        on_change: Callable[[], None],
    ) -> HttpResponse:
        """Write a request with a body immediately on an idle connection that `take_idle` returned.

        No task reads the response. `on_change` is called when bytes of it arrive, and when the connection ends.
        """
        response = HttpResponse(self, target, b"", None, on_sent, connection.loop.time(), on_change=on_change)
        connection.start(response, b"%bContent-Length: %d\r\n\r\n%b" % (head.head, len(body), body), on_sent)
        return response

    async def connect(self, origin: Origin) -> None:
        """Open a connection to `origin` and keep it in the pool for the next request.

        Raises `HttpError` if no connection is open within the connect timeout.
        """
        connection = await self._connect(origin)
        connection.idle_since = connection.loop.time()
        self.on_idle(connection)

    def close(self) -> None:
        """Fail every request in progress and close every connection."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self._connections):
            connection.fail("E-HTTP-CLOSED", _CLOSED_REASON)

    # -- used by `HttpResponse` ---------------------------------------------------------------------------------------

    def take_idle(self, origin: Origin, max_idle: float | None) -> ClientConnection | None:
        """Take the most recently used idle connection to `origin` from the pool.

        Return None if there is none, or if it has been idle for longer than `max_idle` seconds. The caller uses it at
        once, or returns it with `on_idle`.
        """
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if not connection.usable:
                continue
            if max_idle is not None and connection.loop.time() - connection.idle_since > max_idle:
                idle.append(connection)  # all connections below it have been idle for longer
                return None
            return connection
        return None

    def _drop_suspect(self, origin: Origin, since: float) -> None:
        """Close the pooled connections to `origin` that have not been used since the time `since`.

        At that time, a request began that never got a byte back. The fault that dropped it may have cut these
        connections too, whereas connections that were used later are known to work.
        """
        for connection in self._idle.get(origin, ()):
            if connection.idle_since <= since:
                connection.abort()

    async def _connect(self, origin: Origin) -> ClientConnection:
        """Open a connection to `origin` and check it. Raises `HttpError` if either fails."""
        try:
            async with asyncio.timeout(self.limits.connect_timeout):
                connection = await self._dial(origin)
                if self._check_connection is not None:
                    await self._check(connection, self._check_connection)
                return connection
        except TimeoutError:
            raise HttpError(
                f"no connection to {origin} within {self.limits.connect_timeout:g} s",
                code="E-HTTP-TIMEOUT",
                hint="check the address and the network; a firewall may drop packets",
            ) from None

    async def _check(self, connection: ClientConnection, check: ConnectionCheck) -> None:
        """Run `check` on a new connection. If it fails, close the connection and raise the error."""
        self._checked.add(connection)
        try:
            await check(connection)
            if not connection.usable:
                raise HttpError(f"{connection.name} closed a new connection", code="E-HTTP-RESET")
        except HttpError as exc:
            connection.abort()
            raise HttpError(exc.reason, code=exc.code, hint=exc.hint) from None  # nothing of the request was sent
        except BaseException:
            connection.abort()
            raise
        finally:
            self._checked.discard(connection)

    async def _dial(self, origin: Origin) -> ClientConnection:
        connection = await self._dialer.dial(
            origin, self._proxy_for(origin), lambda: ClientConnection(self, origin, str(origin), self.limits)
        )
        if self._closed:
            connection.abort()
            raise HttpError(_CLOSED_REASON, code="E-HTTP-CLOSED")
        self._connections.add(connection)
        if self._timer is None:
            self._tick()
        return connection

    # -- used by `ClientConnection` -----------------------------------------------------------------------------------

    def on_idle(self, connection: ClientConnection) -> None:
        if connection in self._checked:
            return  # its request waits for it
        idle = self._idle.get(connection.key)
        if idle is None:
            idle = self._idle[connection.key] = []
        if self._closed or len(idle) >= self.limits.max_idle_connections:
            connection.abort()
        else:
            idle.append(connection)

    def on_lost(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        idle = self._idle.get(connection.key)
        if idle and connection in idle:
            idle.remove(connection)

    # -- internal -----------------------------------------------------------------------------------------------------

    def _proxy_for(self, origin: Origin) -> Proxy | None:
        if origin not in self._proxies:
            self._proxies[origin] = proxy_for(origin) if not self._unix_path else None
        return self._proxies[origin]

    def _tick(self) -> None:
        """Close connections that have been idle for too long, and fail requests that make no progress.

        One timer checks all connections, so requests work without their own timers.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        for idle in self._idle.values():
            for connection in idle:
                if now - connection.idle_since > self.limits.idle_timeout:
                    connection.abort()
        for connection in list(self._connections):
            connection.check_progress(now)
        self._timer = loop.call_later(self.limits.check_interval, self._tick) if self._connections else None


class HttpResponse(IncomingResponse):
    """One request and its response. `async with` sends the request and waits for the headers.

    It can be entered once. Inside the block `status` and `headers` are set, and `read`, `chunk` or `async for`
    return the body.

    Header names are lower-case. A repeated header is one value, joined by ", ".
    """

    _client: HttpClient
    _target: HttpTarget
    _request: bytes
    _max_idle: float | None
    _on_sent: Callable[[], None] | None
    _began: float = 0.0  # when it was sent, on the loop's clock
    on_dial: Callable[[], None] | None = None  # called before a new connection is opened
    before_send: Callable[[], None] | None = None  # if it raises, the request is not sent
    _decompressor: Decompressor | None = None

    async def __aenter__(self) -> HttpResponse:
        await self.send_and_wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    async def send_and_wait(self, connection: ClientConnection | None = None) -> None:
        """Send the request and wait for the head (status and headers) of the response.

        If a `connection` is passed in, use it, or else an idle or new one. If this method returns, the caller must
        call `abandon` at the end. Raises `HttpError` if the connection or the request fails.
        """
        origin = self._target.origin
        if connection is None:
            connection = self._client.take_idle(origin, self._max_idle)
        if connection is None:
            if self.on_dial is not None:
                self.on_dial()
            connection = await self._client._connect(origin)
        if self.before_send is not None:
            try:
                self.before_send()
            except BaseException:
                self._client.on_idle(connection)
                raise
        self.start(connection)
        await self.wait_head()
        self.set_up_decoding()

    def start(self, connection: ClientConnection) -> None:
        """Send the request on this connection, which must be new or idle. Does not wait for the response."""
        self._began = connection.loop.time()
        connection.start(self, self._request, self._on_sent)
        self._request = b""

    async def wait_head(self) -> None:
        """Wait for the head of the response to a request that was sent. Raises `HttpError` if the request fails.

        If this method returns, the caller must call `abandon` at the end.
        """
        self.on_change = None
        try:
            while not self.status:
                if self.error is not None:
                    raise self.error
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
        except BaseException:
            self.abandon()
            if not self.any_received:
                self._client._drop_suspect(self._target.origin, self._began)
            raise
        finally:
            self._waiter = None

    def abandon(self) -> None:
        """Stop reading the response. Its connection is closed if the response has not ended."""
        if self.connection is not None:
            self.connection.abort()

    def __aiter__(self) -> HttpResponse:
        return self

    async def __anext__(self) -> bytes:
        chunk = await self.chunk()
        if not chunk:
            raise StopAsyncIteration
        return chunk

    async def chunk(self) -> bytes:
        """Return the next bytes of the body, at most a few hundred KiB. Return b"" at its end.

        Raises `HttpError` if the connection fails, or if the compressed body is invalid.
        """
        if self._decompressor is None:
            return await self._raw_chunk()
        try:
            while not (piece := self._decompressor.read()):
                raw = await self._raw_chunk()
                if not raw:
                    self._decompressor.finish()
                    break
                self._decompressor.feed(raw)
            return piece
        except BadCompression as exc:
            raise self._response_error("E-HTTP-LIMIT", str(exc)) from None

    def take_complete(self, limit: int) -> bytes | None:
        """Return the body if all of it has arrived in one chunk of at most `limit` bytes, or else None.

        After None, use `read`. A compressed body always needs `read`.
        """
        if self.complete and len(self.chunks) == 1 and self._decompressor is None and self.unread <= limit:
            return self.chunks.popleft()
        return None

    def take_plain(self, limit: int) -> bytes | None:
        """Return the body if all of it has arrived, in any number of chunks, and fits into `limit` bytes.

        Otherwise, return None. Only use this for a response that is not compressed.
        """
        if not self.complete or self.unread > limit:
            return None
        if len(self.chunks) != 1:
            self.chunks = deque([b"".join(self.chunks)])
        return self.chunks.popleft()

    def put_back(self, body: bytes) -> None:
        """Put a body that `take_plain` returned back into the response, so `read` returns it again."""
        self.chunks.append(body)

    async def read(self, limit: int) -> bytes:
        """Read the response body to its end, and return it.

        Raises `HttpError` if the body is longer than `limit` bytes or slower than the minimum rate, or if the
        connection fails.
        """
        if (body := self.take_complete(limit)) is not None:
            return body
        self.min_rate_enforced = True
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise self._too_long_error(limit)
        pieces: list[bytes] = []
        size = 0
        while size <= limit:
            chunk = await self.chunk()
            if not chunk:
                return b"".join(pieces)
            pieces.append(chunk)
            size += len(chunk)
        raise self._too_long_error(limit)

    def finish_soon(self) -> None:
        """Stop reading the response; the rest of its body is discarded.

        The connection is kept if the body ends within `linger_timeout`; otherwise it is closed.
        """
        self.chunks.clear()
        if self.connection is not None:
            self.connection.linger()

    async def _raw_chunk(self) -> bytes:
        while not self.chunks:
            if self.error is not None:
                raise self.error
            if self.complete:
                return b""
            await self.wait()
        chunk = self.chunks.popleft()
        self.unread -= len(chunk)
        if self.connection is not None and not self.chunks:
            self.connection.on_drained()
        return chunk

    def set_up_decoding(self) -> None:
        """Set up decompression of the body if it has a Content-Encoding.

        If that encoding was not requested, reading the body fails; status and headers stay usable.
        """
        if "content-encoding" not in self.headers:
            return
        encoding = self.headers["content-encoding"].strip().lower()
        if encoding in ENCODINGS and self._client.limits.accept_compression:
            self._decompressor = Decompressor(encoding)
        elif encoding != "identity":
            self.error = self._response_error(
                "E-HTTP-CONTENT", f"a response with a content encoding that was not requested: {encoding[:40]!a}"
            )
            self.chunks.clear()

    def _too_long_error(self, limit: int) -> HttpError:
        return self._response_error("E-HTTP-LIMIT", f"a response of more than {limit} bytes")

    def _response_error(self, code: str, problem: str) -> HttpError:
        self.abandon()
        return HttpError(f"{self._target.origin} sent {problem}", code=code, bytes_sent=self.sent)


# -- compressed bodies ------------------------------------------------------------------------------------------------

PIECE_BYTES: Final = 64 * 1024
MAX_RATIO: Final = 20
MIN_RATIO_BYTES: Final = 64 * 1024  # bytes of output that are always allowed

_GZIP_WBITS: Final = 16 + zlib.MAX_WBITS
ENCODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})


class BadCompression(Exception):
    """Raised when a compressed body is invalid, incomplete, or exceeds the ratio limit."""


class Decompressor:
    """Decompresses one gzip or deflate body, with a limit on the compression ratio.

    After each `feed`, call `read` until it returns no bytes. After the last one, call `finish`.
    """

    __slots__ = ("_bytes_in", "_bytes_out", "_decoder", "_input", "_is_gzip")

    def __init__(self, encoding: str) -> None:
        self._is_gzip = encoding != "deflate"
        self._decoder: zlib._Decompress | None = None
        self._input = b""
        self._bytes_in = 0
        self._bytes_out = 0

    def feed(self, data: bytes) -> None:
        """Add compressed bytes, which `read` then decompresses."""
        self._input += data
        self._bytes_in += len(data)

    def read(self) -> bytes:
        """Return the next decompressed piece, at most 64 KiB. Return b"" if more input is needed.

        Raises `BadCompression` if the input is invalid, or if the output exceeds the ratio limit.
        """
        if self._decoder is None:
            if len(self._input) < 2:
                return b""
            self._decoder = zlib.decompressobj(_GZIP_WBITS if self._is_gzip else _deflate_wbits(self._input))
        try:
            piece = self._decoder.decompress(self._input, PIECE_BYTES)
        except zlib.error as exc:
            raise BadCompression(f"not a valid compressed body ({exc})") from None
        self._input = self._decoder.unconsumed_tail
        if self._decoder.unused_data:
            raise BadCompression("bytes after the end of a compressed body")
        self._bytes_out += len(piece)
        if self._bytes_out > MIN_RATIO_BYTES and self._bytes_out > MAX_RATIO * self._bytes_in:
            raise BadCompression(f"a compressed body that grows more than {MAX_RATIO}:1")
        return piece

    def finish(self) -> None:
        """Raise `BadCompression` if the compressed body ended early. Called after the last input."""
        if self._bytes_in and (self._decoder is None or not self._decoder.eof):
            raise BadCompression("a compressed body that ends early")


def _deflate_wbits(start: bytes) -> int:
    """Return the zlib `wbits` for a `deflate` body that begins with `start`.

    `deflate` means a zlib stream, but some servers send raw deflate.
    """
    zlib_header = start[0] & 0x0F == 8 and int.from_bytes(start[:2], "big") % 31 == 0
    return zlib.MAX_WBITS if zlib_header else -zlib.MAX_WBITS
