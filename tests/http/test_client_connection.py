"""What a connection knows about the bytes it sent, over a scripted socket."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from toolway.http.client_connection import ClientConnection, IncomingResponse, ResponseHead
from toolway.http.exchange import HeadCache
from toolway.http.limits import ClientLimits, HttpError
from toolway.types import Certainty

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"


class Socket:
    """A transport whose buffer and fate the test sets."""

    def __init__(self, *, takes: int | None = None, broken: bool = False, tls: bool = False) -> None:
        self.takes = takes  # bytes of a write that leave at once; None for all
        self.broken = broken  # a write fails on the spot
        self.tls = tls
        self.buffered = 0
        self.closing = False

    def write(self, data: bytes) -> None:
        self.closing = self.broken
        self.buffered = 0 if self.takes is None else len(data) - self.takes

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True

    def get_extra_info(self, name: str) -> Any:
        return object() if self.tls else None


class Exchange:
    """A connection on such a socket, with one request of 100 bytes in flight."""

    def __init__(self, sock: Socket) -> None:
        self.free: list[ClientConnection] = []
        self.head_cache: HeadCache[ResponseHead] = HeadCache()
        self.sent: list[int] = []
        self.incoming = IncomingResponse()
        self.connection = ClientConnection(self, "key", "peer", ClientLimits())
        self.connection.connection_made(cast(asyncio.Transport, sock))
        self.connection.start(self.incoming, b"x" * 100, lambda: self.sent.append(1))

    def on_idle(self, connection: ClientConnection) -> None:
        self.free.append(connection)

    def on_lost(self, connection: ClientConnection) -> None: ...

    @property
    def fault(self) -> HttpError:
        assert self.incoming.error is not None
        return self.incoming.error


async def test_write_rejected_by_the_system_sent_nothing() -> None:
    at = Exchange(Socket(broken=True))
    at.connection.connection_lost(BrokenPipeError())
    assert (at.fault.code, at.fault.certainty, at.fault.bytes_sent) == ("E-HTTP-RESET", Certainty.NOT_SENT, 0)
    assert at.sent == []


async def test_aborted_write_without_a_byte_out_sent_nothing() -> None:
    at = Exchange(Socket(takes=0))
    at.connection.abort()
    assert (at.incoming.sent, at.sent) == (0, [])


async def test_buffered_bytes_of_lost_connection_are_unknown() -> None:
    at = Exchange(Socket(takes=0))
    at.connection.connection_lost(ConnectionResetError())
    assert (at.fault.certainty, at.fault.bytes_sent) == (Certainty.UNKNOWN, 100)
    assert at.sent == [1]


async def test_one_sent_byte_makes_outcome_unknown() -> None:
    at = Exchange(Socket(takes=1))
    assert at.sent == [1]
    at.connection.fail("E", "over")
    assert (at.fault.certainty, at.fault.bytes_sent) == (Certainty.UNKNOWN, 1)


async def test_tls_write_counts_as_sent() -> None:
    at = Exchange(Socket(takes=0, broken=True, tls=True))
    assert at.sent == [1]
    at.connection.connection_lost(None)
    assert (at.fault.certainty, at.fault.bytes_sent) == (Certainty.UNKNOWN, 100)


async def test_later_write_is_noticed_at_progress_check() -> None:
    sock = Socket(takes=0)
    at = Exchange(sock)
    at.connection.check_progress(0.0)
    assert at.sent == []
    sock.buffered = 40
    at.connection.check_progress(1.0)
    assert at.sent == [1]


async def test_later_write_is_noticed_when_response_arrives() -> None:
    sock = Socket(takes=0)
    at = Exchange(sock)
    sock.buffered = 0
    at.connection.data_received(OK)
    assert at.sent == [1]
    assert at.free == [at.connection]


async def test_connection_with_unsent_bytes_is_not_kept() -> None:
    sock = Socket(takes=50)
    at = Exchange(sock)
    at.connection.data_received(OK)
    assert at.incoming.complete
    assert (at.free, sock.closing) == ([], True)


async def test_stream_that_continues_after_response_is_closed() -> None:
    sock = Socket()
    at = Exchange(sock)
    at.connection.data_received(CHUNKED)
    at.connection.linger()
    at.connection.data_received(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
    assert not sock.closing
    for _ in range(20):
        at.connection.data_received(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
    assert sock.closing
    assert at.incoming.received == 1


async def test_end_after_response_keeps_connection() -> None:
    at = Exchange(Socket())
    at.connection.data_received(CHUNKED)
    at.connection.linger()
    at.connection.data_received(b"0\r\n\r\n")
    assert at.free == [at.connection]


# -- a large response in several parts, whose head is known: the parser does not see it --------------------------------

LARGE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nServer: x\r\n\r\n"


def parts(body: bytes, *cuts: int) -> list[bytes]:
    data = LARGE_HEAD % len(body) + body
    ends = [len(data) - len(body) + cut for cut in cuts]
    return [data[begin:end] for begin, end in zip([0, *ends], [*ends, len(data)], strict=True)]


def receive(at: Exchange, *pieces: bytes) -> IncomingResponse:
    """Send one more request on the connection, and receive its response in pieces."""
    at.free.clear()
    response = at.incoming = IncomingResponse()
    at.connection.start(response, b"x" * 100, None)
    for piece in pieces:
        at.connection.data_received(piece)
    return response


@pytest.mark.parametrize("first", [(b"a" * 500, 100), (b"a" * 500,)])
async def test_rest_of_large_response_is_counted_not_parsed(first: tuple[bytes, int]) -> None:
    at = Exchange(Socket())
    for piece in parts(*first):
        at.connection.data_received(piece)
    assert at.incoming.complete
    for body, cuts in (
        (b"b" * 3000, (10, 2999)),
        (b"c" * 500, (1,)),
        (b"c" * 500, (0,)),
        (b"d" * 70_000, (60_000,)),
        (b"e", ()),
        (b"", ()),
    ):
        at.connection._parser = None  # type: ignore[assignment]  # every head is known
        response = receive(at, *parts(body, *cuts))
        assert (response.complete, response.status, b"".join(response.chunks)) == (True, 200, body)
        assert response.received == response.unread == len(body)
        assert all(response.chunks) or not body  # an empty chunk would be the end of the body
        assert response.headers["content-type"] == "text/plain"
        assert at.free == [at.connection]
        if cuts:
            assert response.headers["content-length"] == str(len(body))


async def test_large_response_of_wrong_length_is_noticed() -> None:
    at = Exchange(Socket())
    for piece in parts(b"a" * 500, 100):
        at.connection.data_received(piece)
    begin, rest = parts(b"b" * 500, 100)
    response = receive(at, begin, rest + b"surplus")
    assert (response.complete, b"".join(response.chunks), at.free) == (True, b"b" * 500, [])  # not used again

    at = Exchange(Socket())
    for piece in parts(b"a" * 500, 100):
        at.connection.data_received(piece)
    response = receive(at, begin)
    assert (response.complete, response.status) == (False, 200)
    at.connection.connection_lost(None)
    assert at.fault.code == "E-HTTP-RESET"
    assert "middle of its response" in at.fault.reason


@pytest.mark.parametrize("length", [b"0500", b"+500", b"500 ", b"", b"5 00"])
async def test_unusual_content_length_is_left_to_the_parser(length: bytes) -> None:
    at = Exchange(Socket())
    for piece in parts(b"a" * 500, 100):
        at.connection.data_received(piece)
    known = at.head_cache.get_head(parts(b"a" * 500, 100)[0])
    assert known is not None
    assert known.match_start(LARGE_HEAD.replace(b"%d", length) + b"a" * 100) is None


async def test_interim_head_is_not_cached() -> None:
    at = Exchange(Socket())
    early = b"HTTP/1.1 103 Early Hints\r\nContent-Length: 500\r\n\r\n"
    begin, rest = parts(b"a" * 500, 100)
    at.connection.data_received(early + begin)
    at.connection.data_received(rest)
    assert len(at.head_cache) == 0


@pytest.mark.attack("A2-NG1")
@pytest.mark.parametrize("part", [0, 1, 50], ids=lambda part: f"{part} bytes with the head")
async def test_body_after_its_head_belongs_to_its_request(part: int) -> None:
    """Many servers write head and body apart, so each first part of a response has the same length."""
    at = Exchange(Socket())
    for number in range(5):
        body = b"%d" % number * 100
        response = IncomingResponse()
        if number:
            at.connection.start(response, b"x" * 100, None)
        else:
            response = at.incoming
        at.connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + body[:part])
        assert not response.complete
        assert len(at.free) == number  # it is not used for another request yet
        at.connection.data_received(body[part:])
        assert (response.complete, response.error, b"".join(response.chunks)) == (True, None, body)
