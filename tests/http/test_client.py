"""The HTTP client: what it keeps, what it refuses, and what it knows about what left."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import pytest

from tests.timing import within
from tests.upstream.raw_http import Conn, Received, always, chunk, loops, once, peer, reacting, response
from toolway.http import dialer as http1_dial
from toolway.http.client import ClientLimits, HttpClient, HttpError, HttpTarget, encode_headers
from toolway.http.limits import StallDetector
from toolway.network import NetworkPolicy, ResolvedAddress
from toolway.types import Certainty

pytestmark = pytest.mark.anyio

PATIENT = ClientLimits(
    connect_timeout=30, write_timeout=30, head_timeout=30, min_rate_window=30, idle_timeout=30, linger_timeout=30
)
QUICK = ClientLimits(
    connect_timeout=30, write_timeout=0.3, head_timeout=0.3, min_rate_window=0.3, idle_timeout=0.3, linger_timeout=0.3
)
quick = pytest.mark.parametrize(
    "limits", [QUICK], ids=["quick"]
)  # for tests of these limits: others must not meet them
OK = response(200, b"ok")
HERE = NetworkPolicy(("127.0.0.0/8", "::1", "localhost"))


@pytest.fixture(params=loops(), ids=lambda p: "uvloop" if p[1]["use_uvloop"] else "asyncio")
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def limits() -> ClientLimits:
    return PATIENT


@pytest.fixture
async def client(anyio_backend: Any, limits: ClientLimits):
    client = HttpClient(limits, HERE)
    yield client
    client.close()
    await asyncio.sleep(0)


async def fetch(client: HttpClient, url: str, body: bytes = b"hi", limit: int = 1_000_000, **how: Any) -> bytes:
    async with asyncio.timeout(30):
        async with client.send(
            "POST", HttpTarget.parse(url), [encode_headers({"X-Test": "1"})], body, **how
        ) as response:
            return await response.read(limit)


async def fault_of(client: HttpClient, url: str, **how: Any) -> HttpError:
    with pytest.raises(HttpError) as caught:
        await fetch(client, url, **how)
    return caught.value


# -- what is sent, and how connections are kept


async def test_request_arrives_whole_and_response_is_returned(client: HttpClient) -> None:
    seen: list[Received] = []

    async def react(conn: Conn, request: Received) -> None:
        seen.append(request)
        await conn.send(response(200, b"hello", X_One="1", x_one="2"))

    headers = [encode_headers({"X-Test": "1"})]
    async with (
        peer(reacting(react)) as server,
        client.send("POST", HttpTarget.parse(server.url + "?a=b"), headers, b"body") as answer,
    ):
        assert answer.status == 200
        assert answer.headers["x-one"] == "1, 2"
        assert await answer.read(100) == b"hello"
    assert seen == [
        Received(
            "POST", "/mcp?a=b", {"host": f"127.0.0.1:{server.port}", "content-length": "4", "x-test": "1"}, b"body"
        )
    ]


async def test_sequential_requests_share_one_connection(client: HttpClient) -> None:
    async with peer(always(OK)) as server:
        for _ in range(20):
            assert await fetch(client, server.url) == b"ok"
        assert server.connections == 1


async def test_most_recently_used_connection_is_reused_first(client: HttpClient) -> None:
    both = asyncio.Event()
    used: list[int] = []

    async def react(conn: Conn, request: Received) -> None:
        used.append(conn.number)
        if len(used) == 2:
            both.set()
        await both.wait()
        await asyncio.sleep(0.02 * conn.number)
        await conn.send(OK)

    async with peer(reacting(react)) as server:
        await asyncio.gather(fetch(client, server.url), fetch(client, server.url))
        await fetch(client, server.url)
        assert used == [1, 2, 2]


def falling_silent(*, lost: bool) -> tuple[Any, asyncio.Event]:
    """A peer that answers, until the event: then its old connections are as if the way to it was gone, or are reset
    by the next request."""
    gone = asyncio.Event()

    async def script(conn: Conn) -> None:
        old = not gone.is_set()
        while await conn.request() is not None:
            if old and gone.is_set():
                if lost:
                    await asyncio.sleep(60)
                return
            await asyncio.sleep(0.05)
            await conn.send(OK)

    return script, gone


@pytest.mark.parametrize("lost", [True, False], ids=["silence", "reset"])
async def test_failed_exchange_discards_older_idle_connections(lost: bool) -> None:
    script, gone = falling_silent(lost=lost)
    client = HttpClient(PATIENT, HERE)
    async with peer(script) as server:
        await asyncio.gather(*(fetch(client, server.url) for _ in range(5)))
        assert server.connections == 5
        gone.set()
        with pytest.raises((TimeoutError, HttpError)):
            async with asyncio.timeout(0.2):
                await fetch(client, server.url)
        assert await fetch(client, server.url) == b"ok"
        assert server.connections == 6
    client.close()
    await asyncio.sleep(0)


async def test_cancelled_request_keeps_other_connections(client: HttpClient) -> None:
    async def react(conn: Conn, request: Received) -> None:
        if request.body == b"slow":
            await asyncio.sleep(60)
        await conn.send(OK)

    async with peer(reacting(react)) as server:
        slow = asyncio.create_task(fetch(client, server.url, b"slow"))
        await asyncio.sleep(0.05)
        await fetch(client, server.url)
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        await fetch(client, server.url)
        assert server.connections == 2


async def test_connection_idle_longer_than_max_idle_is_not_used(client: HttpClient) -> None:
    async with peer(always(OK)) as server:
        await fetch(client, server.url)
        await asyncio.sleep(0.06)
        await fetch(client, server.url, max_idle=0.05)
        assert server.connections == 2
        await fetch(client, server.url, max_idle=0.05)
        assert server.connections == 2


@quick
async def test_idle_connection_is_closed(client: HttpClient) -> None:
    closed = asyncio.Event()

    async def script(conn: Conn) -> None:
        await conn.request()
        await conn.send(OK)
        await conn.gone()
        closed.set()

    async with peer(script) as server:
        await fetch(client, server.url)
        async with asyncio.timeout(30):
            await closed.wait()


async def test_connection_closed_by_peer_is_not_reused(client: HttpClient) -> None:
    async with peer(once(OK)) as server:
        assert await fetch(client, server.url) == b"ok"
        await asyncio.sleep(0.05)
        assert await fetch(client, server.url) == b"ok"
        assert server.connections == 2


async def test_reused_connection_closed_without_a_byte_is_unknown(client: HttpClient) -> None:
    async def script(conn: Conn) -> None:
        await conn.request()
        await conn.send(OK)
        await conn.request()

    async with peer(script) as server:
        await fetch(client, server.url)
        fault = await fault_of(client, server.url)
        assert server.connections == 1
    assert (fault.code, fault.certainty) == ("E-HTTP-RESET", Certainty.UNKNOWN)


@pytest.mark.parametrize(
    "data",
    [
        response(200, b"ok", Connection="close"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + b"surplus",
        OK + OK,
    ],
    ids=["close", "http-1.0", "surplus", "second response"],
)
async def test_connection_is_kept_only_after_clean_end(client: HttpClient, data: bytes) -> None:
    async with peer(always(data)) as server:
        assert await fetch(client, server.url) == b"ok"
        assert await fetch(client, server.url) == b"ok"
        assert server.connections == 2


async def test_unsolicited_bytes_close_idle_connection(client: HttpClient) -> None:
    sent = asyncio.Event()

    async def script(conn: Conn) -> None:
        await conn.request()
        await conn.send(OK)
        if conn.number == 1:
            await asyncio.sleep(0.02)
            await conn.send(response(200, b"poison"))
            sent.set()
        await conn.gone()

    async with peer(script) as server:
        assert await fetch(client, server.url) == b"ok"
        await sent.wait()
        await asyncio.sleep(0.06)
        assert await fetch(client, server.url) == b"ok"
        assert server.connections == 2


async def test_body_may_last_until_connection_closes(client: HttpClient) -> None:
    async with peer(once(b"HTTP/1.1 200 OK\r\n\r\nall of it")) as server:
        assert await fetch(client, server.url) == b"all of it"


async def test_interim_responses_are_skipped(client: HttpClient) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    async with peer(always(interim + OK)) as server:
        assert await fetch(client, server.url) == b"ok"
        assert await fetch(client, server.url) == b"ok"
        assert server.connections == 1


async def test_early_response_is_read_while_request_is_sent(client: HttpClient) -> None:
    async def script(conn: Conn) -> None:
        await conn.reader.readexactly(10)
        await conn.send(response(413, b"too large"))
        await asyncio.sleep(0.3)

    async with peer(script) as server:
        async with client.send("POST", HttpTarget.parse(server.url), (), b"x" * 20_000_000) as answer:
            assert answer.status == 413
            assert await answer.read(100) == b"too large"
        await fetch_in_vain(client, server.url)
        assert server.connections == 2


async def fetch_in_vain(client: HttpClient, url: str) -> None:
    async with client.send("POST", HttpTarget.parse(url), (), b"x" * 20) as answer:
        await answer.read(100)


async def test_finished_stream_frees_connection_for_reuse(anyio_backend: Any) -> None:
    client = HttpClient(PATIENT, HERE)

    async def react(conn: Conn, _: Received) -> None:
        await conn.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"answer"))
        await asyncio.sleep(0.02)
        await conn.send(b"0\r\n\r\n")

    async with peer(reacting(react)) as server:
        for _ in range(3):
            async with client.send("GET", HttpTarget.parse(server.url)) as answer:
                assert await answer.chunk() == b"answer"
                answer.finish_soon()
            async with asyncio.timeout(60):
                while not any(client._idle.values()):
                    await asyncio.sleep(0.01)
        assert server.connections == 1
        client.close()
        await asyncio.sleep(0)


@quick
async def test_finished_stream_that_continues_is_closed(client: HttpClient) -> None:
    closed = asyncio.Event()

    async def script(conn: Conn) -> None:
        await conn.request()
        await conn.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"answer"))
        await conn.gone()
        closed.set()

    async with peer(script) as server:
        async with client.send("GET", HttpTarget.parse(server.url)) as answer:
            await answer.chunk()
            answer.finish_soon()
        async with asyncio.timeout(30):
            await closed.wait()


# -- what cannot be reached


async def test_refused_connection_is_not_sent(client: HttpClient) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        fault = await fault_of(client, f"http://127.0.0.1:{unused.getsockname()[1]}/")
    assert (fault.code, fault.certainty, fault.bytes_sent) == ("E-HTTP-CONNECT", Certainty.NOT_SENT, 0)
    assert "refused" in fault.reason
    assert "listening" in fault.hint


async def test_unknown_host_is_not_sent(client: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    fault = await fault_of(client, "http://nowhere.test/")
    assert (fault.code, fault.certainty) == ("E-HTTP-DNS", Certainty.NOT_SENT)
    assert "nowhere.test" in fault.reason


async def test_hanging_resolver_times_out_and_uses_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    lookups: list[str] = []
    real = socket.getaddrinfo

    def hang(host: str, port: int, type: int = 0, flags: int = 0) -> Any:
        if host == "slow.test" and not flags:
            lookups.append(host)
            release.wait(10)
        return real(host, port, type=type, flags=flags)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    client = HttpClient(msgspec.structs.replace(PATIENT, connect_timeout=0.2), HERE)
    try:
        began = time.monotonic()
        faults = await asyncio.gather(*(fault_of(client, "http://slow.test/") for _ in range(20)))
        assert time.monotonic() - began < within(2)
        assert {(f.code, f.certainty) for f in faults} == {("E-HTTP-TIMEOUT", Certainty.NOT_SENT)}
        assert lookups == ["slow.test"]
    finally:
        release.set()
        client.close()


async def test_next_address_is_tried_if_one_refuses() -> None:
    client = HttpClient(PATIENT, replace(HERE, lookup=lambda _: ["127.0.0.2", "127.0.0.1"]))
    async with peer(always(OK)) as server:
        assert await fetch(client, f"http://two.test:{server.port}/") == b"ok"
    client.close()


async def test_invalid_host_name_is_not_sent(client: HttpClient) -> None:
    fault = await fault_of(client, f"http://{'a' * 64}.test/")
    assert (fault.code, fault.certainty) == ("E-HTTP-DNS", Certainty.NOT_SENT)


async def test_slow_address_is_overtaken_and_all_sockets_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[socket.socket] = []

    async def open_slowly(address: ResolvedAddress) -> socket.socket:
        try:
            await asyncio.sleep(address.sockaddr)
        except asyncio.CancelledError:
            if address.sockaddr > 1:
                raise
        opened.append(socket.socket())
        return opened[-1]

    monkeypatch.setattr(http1_dial, "_STAGGER_S", 0.02)
    monkeypatch.setattr(http1_dial, "_connect_address", open_slowly)
    addresses = [ResolvedAddress(0, delay) for delay in (5.0, 0.9, 0.05)]
    winner = await http1_dial._connect_first(addresses)
    assert winner is opened[0]
    assert [sock.fileno() >= 0 for sock in opened] == [True, False]
    winner.close()


# -- what is lost or broken


async def test_reset_before_response_head_is_unknown(client: HttpClient) -> None:
    async def script(conn: Conn) -> None:
        await conn.request()
        conn.reset()

    async with peer(script) as server:
        fault = await fault_of(client, server.url)
    assert (fault.code, fault.certainty) == ("E-HTTP-RESET", Certainty.UNKNOWN)
    assert fault.bytes_sent > 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ],
    ids=["nothing", "half a head", "half a body", "no last chunk"],
)
async def test_truncated_response_fails_its_request(client: HttpClient, data: bytes) -> None:
    async with peer(once(data)) as server:
        fault = await fault_of(client, server.url)
    assert (fault.code, fault.certainty) == ("E-HTTP-RESET", Certainty.UNKNOWN)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nokay\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Folded: a\r\n b\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX-Nul: a\x00b\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ],
)
async def test_invalid_response_fails_only_its_request(client: HttpClient, data: bytes) -> None:
    async def react(conn: Conn, request: Received) -> None:
        await conn.send(data if request.body == b"bad" else OK)

    async with peer(reacting(react)) as server:
        fault = await fault_of(client, server.url, body=b"bad")
        assert (fault.code, fault.certainty) == ("E-HTTP-PROTOCOL", Certainty.UNKNOWN)
        assert await fetch(client, server.url) == b"ok"


async def test_one_reset_of_fifty_requests_fails_only_that_request(client: HttpClient) -> None:
    everyone = asyncio.Event()
    waiting = 0

    async def react(conn: Conn, request: Received) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 50:
            everyone.set()
        await everyone.wait()
        if request.body == b"17":
            conn.reset()
        else:
            await conn.send(response(200, request.body))

    async with peer(reacting(react)) as server:
        calls = [fetch(client, server.url, str(n).encode()) for n in range(50)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
    failed = [n for n, answer in enumerate(answers) if isinstance(answer, BaseException)]
    assert failed == [17]
    assert all(answer == str(n).encode() for n, answer in enumerate(answers) if n != 17)


# -- limits


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000,
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 201 + b"\r\n",
        b"HTTP/1.1 102 Processing\r\n\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 1_000_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nTrailer: " + b"x" * 1_000_000,
    ],
    ids=["long head", "endless head", "fields", "interim flood", "chunk extension", "trailer"],
)
async def test_oversized_head_or_framing_fails_request(client: HttpClient, data: bytes) -> None:
    async with peer(once(data)) as server:
        fault = await fault_of(client, server.url)
    assert (fault.code, fault.certainty) == ("E-HTTP-LIMIT", Certainty.UNKNOWN)


@quick
async def test_slow_head_times_out(client: HttpClient) -> None:
    async def script(conn: Conn) -> None:
        await conn.request()
        await conn.trickle(b"HTTP/1.1 200 OK\r\n" * 100, 0.02)

    async with peer(script) as server:
        began = time.monotonic()
        fault = await fault_of(client, server.url)
    assert fault.code == "E-HTTP-SLOW"
    assert time.monotonic() - began < within(2)


@quick
async def test_slow_body_times_out(client: HttpClient) -> None:
    async def script(conn: Conn) -> None:
        await conn.request()
        await conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        await conn.trickle(b"x" * 1000, 0.02)

    async with peer(script) as server:
        fault = await fault_of(client, server.url)
    assert (fault.code, fault.certainty) == ("E-HTTP-SLOW", Certainty.UNKNOWN)


@quick
async def test_slow_stream_does_not_time_out(client: HttpClient) -> None:
    async def script(conn: Conn) -> None:
        await conn.request()
        await conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n")
        await conn.trickle(b"abcdefgh", 0.1)

    async with peer(script) as server, client.send("GET", HttpTarget.parse(server.url)) as answer:
        assert b"".join([part async for part in answer]) == b"abcdefgh"


@quick
async def test_slow_start_of_body_does_not_time_out(client: HttpClient) -> None:
    async def script(conn: Conn) -> None:
        await conn.request()
        await asyncio.sleep(0.5)
        await conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
        await asyncio.sleep(0.5)
        await conn.send(b"ok")

    async with peer(script) as server:
        assert await fetch(client, server.url) == b"ok"


@pytest.mark.parametrize(
    "head", [b"Content-Length: 5000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n4c4b40\r\n", b"\r\n"]
)
async def test_body_over_limit_is_not_buffered(client: HttpClient, head: bytes) -> None:
    part = b"x" * 10_000

    async def script(conn: Conn) -> None:
        await conn.request()
        await conn.send(b"HTTP/1.1 200 OK\r\n" + head)
        while not conn.writer.transport.is_closing():
            conn.writer.write(part)
            await conn.writer.drain()

    async with peer(script) as server:
        tracemalloc.start()
        fault = await fault_of(client, server.url, limit=100_000)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (fault.code, fault.certainty) == ("E-HTTP-LIMIT", Certainty.UNKNOWN)
    assert peak < 2_000_000


async def test_slow_reader_applies_backpressure(client: HttpClient) -> None:
    size = 40_000_000
    written = 0

    async def script(conn: Conn) -> None:
        nonlocal written
        await conn.request()
        await conn.send(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
        while written < size:
            conn.writer.write(b"x" * 100_000)
            await conn.writer.drain()
            written += 100_000

    async with peer(script) as server, client.send("GET", HttpTarget.parse(server.url)) as answer:
        await asyncio.sleep(0.4)
        assert written < size / 2  # our buffers hold none of the rest: only the system's buffers fill
        assert answer.unread < 1_000_000
        total = 0
        async for part in answer:
            total += len(part)
        assert total == size


@quick
async def test_server_that_stops_reading_times_out(client: HttpClient) -> None:
    async def script(conn: Conn) -> None:
        conn.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(5)

    async with peer(script) as server:
        fault = await fault_of(client, server.url, body=b"x" * 30_000_000)
    assert (fault.code, fault.certainty) == ("E-HTTP-TIMEOUT", Certainty.UNKNOWN)
    assert 0 < fault.bytes_sent < 30_000_000


def test_stall_detector_judges_progress() -> None:
    watch = StallDetector(ClientLimits(write_timeout=10, head_timeout=10, min_rate_window=10, min_rate=1024))
    assert not watch.is_stalled(0, "write", 100)
    assert not watch.is_stalled(9, "write", 50)  # some of it left
    assert not watch.is_stalled(18, "write", 50)
    assert watch.is_stalled(19, "write", 50)
    assert not watch.is_stalled(20, "head", 0)
    assert not watch.is_stalled(29, "head", 0)
    assert watch.is_stalled(30, "head", 0)
    assert not watch.is_stalled(31, "body", 0)
    assert not watch.is_stalled(40, "body", 0)
    assert not watch.is_stalled(41, "body", 10_240)
    assert watch.is_stalled(51, "body", 20_000)


# -- compression


def compressed(body: bytes, coding: str) -> bytes:
    return response(200, body, Content_Encoding=coding)


TEXT = b'{"jsonrpc": "2.0", "result": "some text that repeats, some text that repeats"}' * 50


@cache
def bomb() -> bytes:
    return gzip.compress(bytes(50_000_000), 1)


@pytest.mark.parametrize("coding", ["gzip", "br", "gzip, gzip"])
async def test_unrequested_compression_is_rejected(client: HttpClient, coding: str) -> None:
    async with peer(always(compressed(gzip.compress(TEXT), coding))) as server:
        fault = await fault_of(client, server.url)
    assert (fault.code, fault.certainty) == ("E-HTTP-CONTENT", Certainty.UNKNOWN)


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (gzip.compress(TEXT), "gzip"),
        (gzip.compress(TEXT), "x-gzip"),
        (zlib.compress(TEXT), "deflate"),
        (zlib.compress(TEXT)[2:-4], "deflate"),
        (TEXT, "identity"),
    ],
    ids=["gzip", "x-gzip", "deflate", "bare deflate", "identity"],
)
async def test_compressed_response_is_decoded_if_enabled(body: bytes, coding: str) -> None:
    client = HttpClient(msgspec.structs.replace(PATIENT, accept_compression=True), HERE)
    async with peer(always(compressed(body, coding))) as server:
        assert await fetch(client, server.url) == TEXT
        assert await fetch(client, server.url) == TEXT
        assert server.connections == 1
        client.close()


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (bomb, "gzip"),
        (lambda: gzip.compress(bomb()), "gzip, gzip"),
        (lambda: gzip.compress(TEXT)[:-20], "gzip"),
        (lambda: gzip.compress(TEXT) + b"more", "gzip"),
        (lambda: b"not gzip at all", "gzip"),
        (lambda: b"x", "gzip"),
        (lambda: TEXT, "br"),
        (lambda: TEXT, "zstd"),
    ],
    ids=["bomb", "nested", "cut", "trailing", "no gzip", "one byte", "br", "zstd"],
)
async def test_malicious_compressed_response_fails_within_memory(body: Callable[[], bytes], coding: str) -> None:
    client = HttpClient(msgspec.structs.replace(PATIENT, accept_compression=True), HERE)
    async with peer(always(compressed(body(), coding))) as server:
        tracemalloc.start()
        fault = await fault_of(client, server.url, limit=100_000_000)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        client.close()
    assert fault.code in ("E-HTTP-LIMIT", "E-HTTP-CONTENT")
    assert fault.certainty is Certainty.UNKNOWN
    assert peak < 4_000_000


# -- leaving early


async def test_cancelling_closes_the_connection(client: HttpClient) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def script(conn: Conn) -> None:
        await conn.request()
        asked.set()
        await conn.gone()
        closed.set()

    sent: list[int] = []
    async with peer(script) as server:
        task = asyncio.create_task(fetch(client, server.url, on_sent=lambda: sent.append(1)))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(30):
            await closed.wait()
    assert sent == [1]


async def test_leaving_the_response_early_closes_connection(client: HttpClient) -> None:
    closed = asyncio.Event()

    async def script(conn: Conn) -> None:
        await conn.request()
        await conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        await conn.gone()
        closed.set()

    async with peer(script) as server:
        async with client.send("GET", HttpTarget.parse(server.url)) as answer:
            assert answer.status == 200
        async with asyncio.timeout(30):
            await closed.wait()


async def test_cancelling_while_connecting_sends_nothing() -> None:
    def slow(_: str) -> list[str]:
        time.sleep(0.3)
        return []

    client = HttpClient(PATIENT, replace(HERE, lookup=slow))
    sent: list[int] = []
    task = asyncio.create_task(fetch(client, "http://any.test/", on_sent=lambda: sent.append(1)))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sent == []
    client.close()


async def test_closed_client_fails_pending_and_later_requests() -> None:
    client = HttpClient(PATIENT, HERE)
    asked = asyncio.Event()

    async def script(conn: Conn) -> None:
        await conn.request()
        asked.set()
        await conn.gone()

    async with peer(script) as server:
        under_way = asyncio.create_task(fault_of(client, server.url))
        await asked.wait()
        client.close()
        fault = await under_way
        assert (fault.code, fault.certainty) == ("E-HTTP-CLOSED", Certainty.UNKNOWN)
        later = await fault_of(client, server.url)
        assert (later.code, later.certainty) == ("E-HTTP-CLOSED", Certainty.NOT_SENT)


async def test_closing_client_while_connecting_leaks_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    real = http1_dial._connect_first

    async def held(addresses: tuple[ResolvedAddress, ...]) -> socket.socket:
        begun.set()
        await go.wait()
        return await real(addresses)

    monkeypatch.setattr(http1_dial, "_connect_first", held)
    client = HttpClient(PATIENT, HERE)
    async with peer(always(OK)) as server:
        task = asyncio.create_task(fault_of(client, server.url))
        await begun.wait()
        client.close()
        go.set()
        fault = await task
    assert (fault.code, fault.certainty) == ("E-HTTP-CLOSED", Certainty.NOT_SENT)


# -- what a request may contain


@pytest.mark.parametrize(
    "headers",
    [
        {"X": "a\r\nEvil: 1"},
        {"X": "a\nb"},
        {"X": "a\rb"},
        {"X": "a\0b"},
        {"X": "grün"},
        {"X: a\r\nEvil": "1"},
        {"X\r\n": "1"},
        {"": "1"},
        {"A B": "1"},
        {"Content-Length": "3"},
        {"transfer-encoding": "chunked"},
        {"Host": "other"},
    ],
)
def test_unsafe_headers_are_rejected(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        encode_headers(headers)


@pytest.mark.parametrize(
    "url",
    [
        "http://host/a b",
        "http://host/a\r\nX: 1",
        "http://host/\0",
        "http://ho\tst/",
        "http://host/grün",
        "http://user:secret@host/",
        "http://ho st/",
        "ftp://host/",
        "http:///path",
        "http://host:99999/",
        " http://host/",
    ],
)
def test_unsafe_urls_are_rejected(url: str) -> None:
    with pytest.raises(ValueError):
        HttpTarget.parse(url)


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("http://host", "host", "/"),
        ("https://host:443/a?b=c#d", "host", "/a?b=c"),
        ("http://host:8080/mcp/", "host:8080", "/mcp/"),
        ("http://[::1]:8080/", "[::1]:8080", "/"),
        ("http://bücher.example/", "xn--bcher-kva.example", "/"),
    ],
)
def test_url_is_split_into_authority_and_path(url: str, authority: str, path: str) -> None:
    target = HttpTarget.parse(url)
    assert (target.origin.authority, target.path) == (authority, path)
