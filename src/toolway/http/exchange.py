"""HTTP exchange: one request to the server, and the methods that send its response.

`HeadCache` serves the client too. A peer sends the same head (start line and headers) repeatedly, and only the body
length differs. A head that was parsed and accepted once is found again by its bytes, except for the Content-Length
digits. Every other head goes to the parser, which costs ten times as much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

THIS_MACHINE: Final = "localhost"  # `HttpRequest.peer` of a client on this machine that has no loopback address
JSON_TYPE: Final = "application/json"
EVENT_STREAM_TYPE: Final = "text/event-stream"

Headers = Iterable[tuple[str, str]]

JSON_HEADERS: Final = (("content-type", JSON_TYPE),)


class HeadNotes:
    """The results of authentication and routing for one request head.

    Requests share them only if the head cache found their heads by identical bytes (docs/decisions/0043). Never reuse
    them by comparing two parsed heads.
    """

    __slots__ = ("authenticated", "plan", "routing")

    def __init__(self) -> None:
        self.authenticated: Any = None  # authentication result
        self.plan: Any = None  # how calls with this head are sent
        self.routing: Any = None  # routing headers of the modern era


class HttpRequest(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One complete HTTP request, as received by the server. Header names are in lower case."""

    method: str
    path: str  # as sent, without the query; never decoded
    query: str
    headers: Mapping[str, str]
    repeated_headers: frozenset[str]  # names of headers sent more than once; `headers` has the last value
    body: bytes
    peer: str  # IP address of the client, or `THIS_MACHINE`; "" if unknown
    notes: HeadNotes = msgspec.field(default_factory=HeadNotes)

    def with_body(self, body: bytes, peer: str) -> HttpRequest:
        """Return a request with this one's method, path, and headers, but with another body.

        `peer` is the client that sent the other request, which may be a different one.
        """
        return HttpRequest(
            self.method, self.path, self.query, self.headers, self.repeated_headers, body, peer, self.notes
        )


class ConnectionWriter(Protocol):
    """The methods of a server connection with which an `Exchange` sends the response."""

    authenticated: bool  # the client is authenticated

    @property
    def draining(self) -> bool: ...

    def send(self, data: bytes) -> None: ...

    def run(
        self, exchange: Exchange, handler: Callable[[Exchange], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]: ...

    def finish_exchange(self, close: bool) -> None: ...

    def abort(self) -> None: ...


class Exchange(msgspec.Struct, eq=False):
    """One request to the server and its response: call `reply`, or `open`, then `write`, then `end`."""

    _connection: ConnectionWriter
    request: HttpRequest
    _close: bool
    _is_http10: bool  # HTTP/1.0 has no chunks: closing the connection ends a response
    extra_headers: Headers = ()  # headers added to any response
    request_id: str = ""  # sent as `X-Request-ID` with any response
    opened: bool = False  # the response has started
    completed: bool = False  # the response is complete
    disconnected: bool = False  # the client is disconnected
    on_disconnect: Callable[[], None] | None = None  # called on disconnect, instead of cancelling the handler
    on_cancel: Callable[[], None] | None = None  # set if no task handles the request: must start one
    on_tick: Callable[[float], None] | None = None  # called about once a second, with the loop's time
    _chunked: bool = False

    def __repr__(self) -> str:
        return object.__repr__(self)  # without the fields: a request has credentials

    def mark_authenticated(self) -> None:
        """Mark the client as authenticated, so its connection is not among the first to be closed.

        If there are too many connections, rejected and unauthenticated ones are closed first.
        """
        self._connection.authenticated = True

    def reply(self, status: int, body: bytes = b"", headers: Headers = ()) -> None:
        """Send a complete response: status, headers and body."""
        assert not self.opened, "response already started"
        close = self._begin()
        data = encode_head(
            status,
            (*headers, *self.extra_headers) if self.extra_headers else headers,
            length=len(body),
            close=close,
            request_id=self.request_id,
        )
        self._connection.send(data if self._is_head_request else data + body)
        self._end()

    def reply_json(self, prefix: bytes, result: bytes | memoryview, suffix: bytes) -> None:
        """Send a complete response with status 200, whose JSON body is `prefix`, `result` and `suffix` joined."""
        connection = self._connection
        if self._close or self._is_http10 or self.extra_headers or not self.request_id or connection.draining:
            self.reply(200, b"".join((prefix, result, suffix)), JSON_HEADERS)
            return
        assert not self.opened, "response already started"
        self.opened = self.completed = True
        head = _JSON_OK_HEAD_WITH_ID % (self.request_id.encode(), len(prefix) + len(result) + len(suffix))
        connection.send(b"".join((head, prefix, result, suffix)))
        connection.finish_exchange(False)

    def run(self, handler: Callable[[Exchange], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Create a task in which `handler` handles the request, and return the task."""
        self.on_cancel = self.on_disconnect = None
        return self._connection.run(self, handler)

    def open(self, status: int, headers: Headers) -> None:
        """Start a response of unknown length. `write` then sends its body, and `end` ends it."""
        assert not self.opened, "response already started"
        close = self._begin()
        self._chunked = not self._is_http10
        self._connection.send(
            encode_head(
                status,
                (*headers, *self.extra_headers),
                length=None,
                close=close,
                chunked=self._chunked,
                request_id=self.request_id,
            )
        )

    def write(self, data: bytes) -> None:
        """Send a part of the response body. A client that reads too slowly is disconnected."""
        if data and not self.completed and not self._is_head_request:
            self._connection.send(encode_chunk(data) if self._chunked else data)

    def end(self) -> None:
        if not self.completed:
            if self._chunked and not self._is_head_request:
                self._connection.send(LAST_CHUNK)
            self._end()

    @property
    def _is_head_request(self) -> bool:
        return self.request.method == "HEAD"

    def abort(self) -> None:
        """Close the connection, so the client cannot take a partial response for a complete one."""
        self.completed = True
        self._connection.abort()

    def _begin(self) -> bool:
        self.opened = True
        self._close = self._close or self._is_http10 or self._connection.draining
        return self._close

    def _end(self) -> None:
        self.completed = True
        self._connection.finish_exchange(self._close)


# -- encoding of responses --------------------------------------------------------------------------------------------

_JSON_OK_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_JSON_OK_HEAD_WITH_ID: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: %b\r\ncontent-length: %d\r\n\r\n"
)

_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_BODILESS_STATUSES: Final = (204, 304)  # these have no body, and so no content-length

LAST_CHUNK: Final = b"0\r\n\r\n"


def encode_head(
    status: int, headers: Headers, *, length: int | None, close: bool, chunked: bool = True, request_id: str = ""
) -> bytes:
    """Encode the head of a response: status line and headers.

    If `length` is None, the body is chunked, or ends with the connection if `chunked` is False.
    """
    if status == 200 and headers is JSON_HEADERS and not close and length is not None:
        return _JSON_OK_HEAD_WITH_ID % (request_id.encode(), length) if request_id else _JSON_OK_HEAD % length
    lines = [_STATUS_LINES[status]] if status in _STATUS_LINES else [f"HTTP/1.1 {status} Status\r\n"]
    for name, value in headers:
        lines.append(f"{name}: {value}\r\n")
    if request_id:
        lines.append(f"x-request-id: {request_id}\r\n")
    if length is not None:
        if status not in _BODILESS_STATUSES:
            lines.append(f"content-length: {length}\r\n")
    elif chunked:
        lines.append("transfer-encoding: chunked\r\n")
    lines.append("connection: close\r\n\r\n" if close else "\r\n")
    return "".join(lines).encode("latin-1")


def encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


# -- cache of parsed heads --------------------------------------------------------------------------------------------

T = TypeVar("T")

MAX_HEADS: Final = 1024  # cached heads
MAX_HEAD_BYTES: Final = 4096  # bytes of one head
_LENGTH_HEADER_STARTS: Final = frozenset({b"\nContent-L", b"\ncontent-l"})  # before "ength: "


class HeadCache(Generic[T]):
    """Cache of parsed HTTP heads (start line and headers); cleared completely when it is full."""

    def __init__(self, max_heads: int = MAX_HEADS) -> None:
        self._max_heads = max_heads
        self._heads: dict[bytes, T] = {}

    def get(self, data: bytes) -> KnownHead[T] | None:
        """Return the cached head of the complete message `data`, with which the caller splits head and body.

        Return None if `data` is not exactly one complete message, or if its head is not cached.
        """
        span = _find_length(data)
        if span is None:
            return None
        begin, stop, end = span
        parsed = self._heads.get(data[:begin] + data[stop:end])
        return KnownHead(data, begin, stop, end + 4, parsed) if parsed is not None else None

    def put(self, data: bytes, parsed: T) -> None:
        """Cache `parsed`, the parsed head of the message `data`, so `get` can return it.

        Does nothing unless `data` is exactly one complete message with a Content-Length. The caller must pass
        no head that closes the connection or has another framing.
        """
        span = _find_length(data)
        if span is None or span[2] > MAX_HEAD_BYTES:
            return
        if len(self._heads) >= self._max_heads:
            self._heads.clear()  # active peers are cached again soon
        begin, stop, end = span
        self._heads[data[:begin] + data[stop:end]] = parsed

    def get_head(self, data: bytes) -> KnownHead[T] | None:
        """Return the cached head of a message that begins with `data`; None if it is not cached or not complete yet."""
        end = data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
        span = _find_digits(data, end)
        parsed = self._heads.get(data[: span[0]] + data[span[1] : end]) if span is not None else None
        return KnownHead(data, *span, end + 4, parsed) if span is not None and parsed is not None else None

    def put_head(self, head: bytes, parsed: T) -> None:
        """Cache `parsed`, the parsed form of the complete head `head`, so `get_head` can return it.

        As for `put`, the caller must pass no head that closes the connection or has another framing.
        """
        end = len(head) - 4
        span = _find_digits(head, end)
        if span is None:
            return
        if len(self._heads) >= self._max_heads:
            self._heads.clear()
        self._heads[head[: span[0]] + head[span[1] : end]] = parsed

    def __len__(self) -> int:
        return len(self._heads)


class KnownHead(Generic[T]):
    """The parsed HTTP head (start line and headers) of the last message on a connection.

    Most messages on a connection have the same head as the one before, and comparing is cheaper than a search.
    """

    __slots__ = ("_after", "_before", "_begin", "_end", "_head", "_size", "parsed")

    def __init__(self, data: bytes, begin: int, stop: int, end: int, parsed: T) -> None:
        self.parsed = parsed
        self._before = data[:begin]  # the Content-Length digits
        self._begin = begin
        self._after = data[stop:end]
        self._head = data[:end]  # of the last message, whose length the next one often has
        self._end = end
        self._size = end + int(data[begin:stop])  # of the whole message: `data` may be its start

    def match(self, data: bytes) -> bytes | None:
        """Return the body of the complete message `data` if its head equals this one, or else None.

        Only the value of Content-Length may differ.
        """
        size = len(data)
        if size == self._size and data.startswith(self._head):
            return data[self._end :]
        begin = self._begin
        if not data.startswith(self._before):
            return None
        stop = data.find(b"\r", begin, begin + 8)
        if stop <= begin or not data.startswith(self._after, stop):
            return None
        end = stop + len(self._after)
        if data[begin:stop] != b"%d" % (size - end):
            return None
        self._head, self._end, self._size = data[:end], end, size
        return data[end:]

    def match_start(self, data: bytes) -> tuple[int, bytes] | None:
        """Return the length of the body and its first part, if `data` is the start of a message with this head.

        Return None if the head is different, or if `data` is already a whole message.
        """
        begin = self._begin
        if not data.startswith(self._before):
            return None
        stop = data.find(b"\r", begin, begin + 8)
        end = stop + len(self._after)
        digits = data[begin:stop]
        if stop <= begin or not data.startswith(self._after, stop) or not digits.isdigit() or digits.startswith(b"0"):
            return None
        size = int(digits)
        return (size, data[end:]) if size > len(data) - end else None


def _find_length(data: bytes) -> tuple[int, int, int] | None:
    """Return start and end of the Content-Length digits in `data`, and the end of the head.

    Return None if `data` is not exactly one complete HTTP message with a Content-Length.
    """
    end = data.find(b"\r\n\r\n")
    span = _find_digits(data, end)
    if span is None or len(data) - end - 4 != int(data[span[0] : span[1]]):
        return None
    return *span, end


def _find_digits(data: bytes, end: int) -> tuple[int, int] | None:
    """Return start and end of the Content-Length digits in a head that ends at `end`, or None if there are none."""
    name = data.find(b"ength: ", 0, end) if end > 0 else -1
    if name < 0 or data[name - 10 : name] not in _LENGTH_HEADER_STARTS:
        return None
    begin = name + 7
    stop = data.find(b"\r", begin, end + 1)
    digits = data[begin:stop]
    return (begin, stop) if digits.isdigit() and len(digits) <= 7 else None
