"""Requests as they come in: framing, limits, and what is refused because it could be read in two ways."""

from __future__ import annotations

import asyncio
import json
import tracemalloc

import pytest

from tests.http.raw_client import chunked, connected, get, leftovers, post, serving, until
from toolway.http.exchange import Exchange, HttpRequest
from toolway.http.limits import ServerLimits

pytestmark = pytest.mark.anyio


async def echo(exchange: Exchange) -> None:
    """Say what was understood."""
    request = exchange.request
    said = [request.method, request.path, request.query, request.body.decode("latin-1"), dict(request.headers)]
    exchange.reply(200, json.dumps(said).encode(), (("content-type", "application/json"),))


class Counting:
    """Counts what reaches the handler."""

    def __init__(self) -> None:
        self.seen: list[HttpRequest] = []

    async def handle(self, exchange: Exchange) -> None:
        self.seen.append(exchange.request)
        await echo(exchange)


async def test_one_connection_serves_many_requests():
    async with serving(echo) as (server, port), connected(port) as client:
        for number in range(3):
            answer = await client.ask(post(f"/a?n={number}", b"x" * number))
            assert json.loads(answer.body)[:4] == ["POST", "/a", f"n={number}", "x" * number]
            assert "connection" not in answer.headers
        assert len(server) == 1


async def test_connection_closes_if_client_asks():
    async with serving(echo) as (_, port), connected(port) as client:
        answer = await client.ask(get("/", "Connection: close"))
        assert answer.headers["connection"] == "close"
        assert await client.closed() == b""


async def test_bytes_after_the_last_request_are_not_read():
    seen = Counting()
    async with serving(seen.handle) as (_, port), connected(port) as client:
        answer = await client.ask(get("/a", "Connection: close") + get("/b"))
        assert json.loads(answer.body)[1] == "/a"
        await client.closed()
    assert [request.path for request in seen.seen] == ["/a"]


async def test_request_may_arrive_byte_by_byte():
    async with serving(echo) as (_, port), connected(port) as client:
        for byte in post("/slow", b"abc"):
            await client.send(bytes([byte]))
        assert json.loads((await client.answer()).body)[3] == "abc"


EARLIER = (
    b"",
    b"\r\n\r\n",
    get("/first"),
    post("/first", b"POST /first HTTP/1.1\r\n\r\n"),
    post("/first", b"\r\n\r\nGET /odd HTTP/1.1\r\n\r\n") + get("/second"),
    get("/first", "Transfer-Encoding: chunked", method="POST") + chunked(b"GET /x HTTP/1.1\r\n\r\n", b"abc"),
    get("/first", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQBAAAAAAIAAAAA"),
)


@pytest.mark.attack("A2-S9")
@pytest.mark.parametrize("earlier", EARLIER)
async def test_request_line_with_extra_spaces_is_rejected(earlier: bytes) -> None:
    expected = [path for path in ("/first", "/second") if path.encode() + b" HTTP" in earlier]
    neat, seen = post("/odd", b"xyz"), Counting()
    async with serving(seen.handle) as (server, port):
        for odd in (neat, neat.replace(b"/odd ", b"/odd  "), neat.replace(b" /odd", b"   /odd")):
            data = earlier + odd
            for cut in range(max(0, len(earlier) - 5), len(earlier) + 30):
                seen.seen.clear()
                async with connected(port):
                    await until(lambda: len(server))
                    connection = next(iter(server._connections))
                    for piece in (data[:cut], data[cut:]):
                        connection.data_received(piece)
                        for _ in range(5):
                            await asyncio.sleep(0)
                    paths = [request.path for request in seen.seen]
                    assert paths == [*expected, "/odd"] if odd is neat else "/odd" not in paths, (odd, cut)
                await until(lambda: not len(server))


async def test_empty_lines_between_requests_are_skipped():
    async with (
        serving(echo, ServerLimits(head_timeout=0.3, sweep_interval=0.1)) as (_, port),
        connected(port) as client,
    ):
        await client.ask(post("/", b"a") + b"\r\n")
        await asyncio.sleep(0.6)  # an empty line does not begin a request
        assert (await client.ask(b"\r\n" + get("/b"))).status == 200


async def test_chunked_body_is_joined():
    async with serving(echo) as (_, port), connected(port) as client:
        head = get("/", "Transfer-Encoding: chunked", method="POST")
        assert json.loads((await client.ask(head + chunked(b"ab", b"c" * 300))).body)[3] == "ab" + "c" * 300
        assert json.loads((await client.ask(post("/", b"next"))).body)[3] == "next"


@pytest.mark.attack("held-6")
async def test_trailers_do_not_change_the_head():
    """A trailer may look like a header that was checked long before."""
    async with serving(echo) as (_, port), connected(port) as client:
        head = get("/", "Transfer-Encoding: chunked", "Mcp-Name: a", method="POST")
        answer = await client.ask(head + b"1\r\nx\r\n0\r\nHost: evil\r\nMcp-Name: b\r\nAuthorization: Bearer x\r\n\r\n")
        headers = json.loads(answer.body)[4]
        assert headers["host"] == "127.0.0.1" and headers["mcp-name"] == "a" and "authorization" not in headers


async def test_expect_100_continue_gets_100():
    async with serving(echo) as (_, port), connected(port) as client:
        go_on = await client.ask(get("/", "Content-Length: 3", "Expect: 100-continue", method="POST"))
        assert go_on.status == 100
        assert json.loads((await client.ask(b"abc")).body)[3] == "abc"


async def test_expect_100_continue_with_oversized_body_gets_413():
    seen = Counting()
    async with serving(seen.handle, ServerLimits(max_body_bytes=10)) as (_, port), connected(port) as client:
        answer = await client.ask(get("/", "Content-Length: 11", "Expect: 100-continue", method="POST"))
        assert answer.status == 413 and answer.headers["connection"] == "close"
        await client.closed()
    assert seen.seen == []


async def test_unknown_expectation_gets_417():
    async with serving(echo) as (_, port), connected(port) as client:
        assert (await client.ask(get("/", "Content-Length: 3", "Expect: wonders", method="POST"))).status == 417


async def test_head_response_has_length_but_no_body():
    async with serving(echo) as (_, port), connected(port) as client:
        await client.send(get("/", method="HEAD"))
        answer = await client.answer(bodiless=True)
        assert int(answer.headers["content-length"]) > 0
        assert json.loads((await client.ask(get("/next"))).body)[1] == "/next"


async def test_204_response_has_no_length():
    async def nothing(exchange: Exchange) -> None:
        exchange.reply(204)

    async with serving(nothing) as (_, port), connected(port) as client:
        answer = await client.ask(get("/", method="OPTIONS"))
        assert answer.status == 204 and not {"content-length", "transfer-encoding"} & answer.headers.keys()
        assert (await client.ask(get())).status == 204


async def test_http_1_0_is_answered_and_closed():
    async with serving(echo) as (_, port), connected(port) as client:
        answer = await client.ask(get("/old", "Connection: keep-alive", version="1.0"))
        assert json.loads(answer.body)[1] == "/old" and answer.headers["connection"] == "close"
        assert await client.closed() == b""


async def test_http_1_0_stream_has_no_chunks_and_ends_with_close():
    async def stream(exchange: Exchange) -> None:
        exchange.open(200, ())
        exchange.write(b"one ")
        exchange.write(b"two")
        exchange.end()

    async with serving(stream) as (_, port), connected(port) as client:
        answer = await client.ask(get("/", version="1.0"))
        assert answer.body == b"one two" and "transfer-encoding" not in answer.headers


@pytest.mark.parametrize("body", [b"", b"abc"])
@pytest.mark.attack("held-9")
async def test_upgrade_offer_is_declined_and_request_answered(body: bytes):
    """Java's client offers HTTP/2 with its first request, body and all."""
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQBAAAAAAIAAAAA")
    async with serving(echo) as (_, port), connected(port) as client:
        answer = await client.ask(post("/up", body, *offer))
        assert json.loads(answer.body)[:4] == ["POST", "/up", "", body.decode()]
        assert json.loads((await client.ask(get("/next"))).body)[1] == "/next"


async def test_body_after_upgrade_offer_may_come_in_pieces():
    async with serving(echo) as (_, port), connected(port) as client:
        await client.send(get("/", "Connection: Upgrade", "Upgrade: h2c", "Content-Length: 6", method="POST"))
        await client.send(b"abc")
        await asyncio.sleep(0.05)
        assert json.loads((await client.ask(b"def")).body)[3] == "abcdef"


H = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
REFUSED = {
    "length and chunks": (H + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunks and length": (H + b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n", 400),
    "two lengths": (H + b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n", 400),
    "one length twice": (H + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n", 400),
    "a list of lengths": (H + b"Content-Length: 0, 0\r\n\r\n", 400),
    "a length with a sign": (H + b"Content-Length: +0\r\n\r\n", 400),
    "a length below nothing": (H + b"Content-Length: -1\r\n\r\n", 400),
    "a length beyond numbers": (H + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
    "a length in hex": (H + b"Content-Length: 0x0\r\n\r\n", 400),
    "compressed": (H + b"Transfer-Encoding: gzip\r\n\r\n", 501),
    "compressed chunks": (H + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "chunks twice": (H + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400),
    "encodings twice": (H + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
    "something like chunks": (H + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
    "chunks with a control character": (H + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
    "chunks in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "a folded header": (H + b"X: a\r\n Content-Length: 44\r\n\r\n", 400),
    "a folded first header": (b"POST / HTTP/1.1\r\n Host: a\r\n\r\n", 400),
    "a space before the colon": (H + b"Content-Length : 44\r\n\r\n", 400),
    "a bare line feed": (b"POST / HTTP/1.1\nHost: 127.0.0.1\n\n", 400),
    "a bare carriage return": (H + b"X: a\rContent-Length: 44\r\n\r\n", 400),
    "a NUL": (H + b"X: a\0b\r\n\r\n", 400),
    "a header without a name": (H + b": a\r\n\r\n", 400),
    "a header without a colon": (H + b"nothing\r\n\r\n", 400),
    "a chunk size with a sign": (H + b"Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n", 400),
    "a chunk size with 0x": (H + b"Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n", 400),
    "a chunk size without end": (H + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400),
    "a chunk longer than it says": (H + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n", 400),
    "a chunk ended by a line feed": (H + b"Transfer-Encoding: chunked\r\n\r\n0\n\n", 400),
    "a method in lower case": (b"get / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
    "a method that there is not": (b"BREW / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
    "a path with a space": (b"GET /a b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "HTTP/2 by name": (b"GET / HTTP/2.0\r\nHost: 127.0.0.1\r\n\r\n", 505),
    "HTTP/0.9": (b"GET / HTTP/0.9\r\nHost: 127.0.0.1\r\n\r\n", 505),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "a tunnel": (b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 405),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.attack("held-1", "held-2", "held-3", "held-4", "held-5")
async def test_ambiguous_request_is_rejected_and_connection_closed(case: str):
    data, status = REFUSED[case]
    seen = Counting()
    async with serving(seen.handle) as (_, port), connected(port) as client:
        answer = await client.ask(data + SMUGGLED)
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert await client.closed() == b""
    assert seen.seen == []


async def test_oversized_content_length_is_rejected_while_sending():
    """The client reads the refusal though it has not stopped sending."""
    seen = Counting()
    async with serving(seen.handle, ServerLimits(max_body_bytes=1000)) as (_, port), connected(port) as client:
        sending = asyncio.create_task(client.send(post("/", b"x" * 5_000_000)))
        assert (await client.answer()).status == 413
        await client.close()
        await sending
    assert seen.seen == []


async def test_chunked_body_over_limit_is_rejected():
    async with serving(echo, ServerLimits(max_body_bytes=1000)) as (server, port), connected(port) as client:
        await client.send(get("/", "Transfer-Encoding: chunked", method="POST") + chunked(b"x" * 600, b"y" * 600))
        assert (await client.answer()).status == 413
        await client.closed()
        await until(lambda: leftovers(server) == {})


async def test_chunk_extensions_are_limited():
    async with serving(echo) as (_, port), connected(port) as client:
        await client.send(get("/", "Transfer-Encoding: chunked", method="POST"))
        await client.send(b"1;" + b"e" * 1000 + b"\r\nx\r\n" * 1)
        for _ in range(400):
            await client.send(b"1;" + b"e" * 1000 + b"\r\nx\r\n")
        assert (await client.answer()).status == 400


@pytest.mark.attack("held-7")
async def test_oversized_head_is_rejected_in_any_pieces():
    large = get("/", "X: " + "a" * 2000)
    async with serving(echo, ServerLimits(max_head_bytes=1000)) as (_, port):
        async with connected(port) as client:
            assert (await client.ask(large)).status == 431  # whole, in one read
        async with connected(port) as client:
            assert (await client.ask(get("/" + "a" * 2000))).status == 431
        async with connected(port) as client:
            await client.send(large[:1500])
            assert (await client.answer()).status == 431
        async with connected(port) as client:
            await client.send(get("/a") + large)  # behind another
            answers = await client.closed()
            assert b"aaaa" not in answers


@pytest.mark.attack("held-7")
async def test_too_many_headers_are_rejected():
    async with serving(echo, ServerLimits(max_headers=10)) as (_, port), connected(port) as client:
        assert (await client.ask(get("/", *(f"X-{n}: a" for n in range(9))))).status == 200
        assert (await client.ask(get("/", *(f"X-{n}: a" for n in range(10))))).status == 431


@pytest.mark.parametrize("begin", [b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", b"GET /", b"GET / HTTP/1.1\r\nX"])
async def test_endless_head_uses_little_memory(begin: bytes):
    async with serving(echo) as (_, port), connected(port) as client:
        await client.send(begin)
        piece = b"a" * 65536
        tracemalloc.start()
        try:
            sending = asyncio.create_task(_endlessly(client.send, piece, 300))  # 20 MB
            assert (await client.answer()).status == 431
            await client.closed()
            await sending
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 4_000_000


async def _endlessly(send, piece: bytes, times: int) -> None:
    for _ in range(times):
        await send(piece)


async def test_total_body_bytes_of_all_clients_are_bounded():
    limits = ServerLimits(max_body_bytes=1000, max_total_body_bytes=1500)
    async with serving(echo, limits) as (server, port), connected(port) as one, connected(port) as two:
        await one.send(get("/", "Content-Length: 1000", method="POST") + b"x" * 999)
        await until(lambda: not server.body_budget.can_reserve(600))
        refused = await two.ask(post("/", b"y" * 600))
        assert refused.status == 503 and refused.headers["connection"] == "close"
        assert (await one.ask(b"x")).status == 200
        await until(lambda: server.body_budget.can_reserve(1500))
        async with connected(port) as three:
            assert (await three.ask(post("/", b"y" * 600))).status == 200


async def test_chunked_body_over_total_budget_gets_503():
    async with (
        serving(echo, ServerLimits(max_body_bytes=1000, max_total_body_bytes=500)) as (_, port),
        connected(port) as client,
    ):
        head = get("/", "Transfer-Encoding: chunked", method="POST")
        assert (await client.ask(head + chunked(b"x" * 600))).status == 503


async def test_pipelined_body_keeps_its_reservation():
    free = asyncio.Event()

    async def waits(exchange: Exchange) -> None:
        await free.wait()
        exchange.reply(200, exchange.request.body)

    async with serving(waits, ServerLimits(max_total_body_bytes=1000)) as (server, port), connected(port) as client:
        await client.send(post("/", b"a" * 100) + get("/", "Content-Length: 300", method="POST") + b"b" * 200)
        await until(lambda: not server.body_budget.can_reserve(701))
        free.set()
        assert (await client.answer()).body == b"a" * 100
        assert server.body_budget.can_reserve(800) and not server.body_budget.can_reserve(
            801
        )  # of the one that is still being read
        assert (await client.ask(b"b" * 100)).body == b"b" * 300
        await until(lambda: server.body_budget.can_reserve(1000))


@pytest.mark.attack("held-13")
async def test_unauthenticated_request_is_rejected_before_its_body():
    seen = Counting()

    def greet(request: HttpRequest):
        return "me" if "authorization" in request.headers else (401, b"who?", (("www-authenticate", "Bearer"),))

    async with serving(seen.handle, greet=greet) as (_, port):
        async with connected(port) as client:
            answer = await client.ask(get("/", "Content-Length: 1000000", "Expect: 100-continue", method="POST"))
            assert (answer.status, answer.body, answer.headers["www-authenticate"]) == (401, b"who?", "Bearer")
            await client.closed()
        async with connected(port) as client:
            assert (await client.ask(post("/", b"abc", "Authorization: x"))).status == 200
    assert len(seen.seen) == 1


async def test_one_caller_gets_only_a_share_of_body_budget():
    def greet(request: HttpRequest):
        return request.headers["authorization"]

    async with (
        serving(echo, ServerLimits(max_total_body_bytes=4000), greet=greet) as (server, port),
        connected(port) as slow,
        connected(port) as again,
        connected(port) as other,
    ):
        await slow.send(get("/", "Content-Length: 1000", "Authorization: a", method="POST") + b"x" * 900)
        await until(lambda: not server.body_budget.can_reserve(101, "a"))
        assert (await again.ask(post("/", b"y" * 200, "Authorization: a"))).status == 503
        assert (await other.ask(post("/", b"y" * 1000, "Authorization: b"))).status == 200
        assert (await other.ask(post("/", b"y" * 100, "Authorization: a"))).status == 200  # which fits
        assert (await slow.ask(b"x" * 100)).status == 200
        await until(lambda: server.body_budget.can_reserve(1000, "a"))


@pytest.mark.attack("held-12")
async def test_slow_head_gets_408():
    async with (
        serving(echo, ServerLimits(head_timeout=0.3, sweep_interval=0.1)) as (_, port),
        connected(port) as client,
    ):
        for byte in b"GET / HTTP":
            await client.send(bytes([byte]))
            await asyncio.sleep(0.01)
        assert (await client.answer()).status == 408
        assert await client.closed() == b""


@pytest.mark.attack("held-12")
async def test_slow_body_gets_408():
    limits = ServerLimits(min_bytes_per_s=1000, speed_window=0.3, sweep_interval=0.1)
    async with serving(echo, limits) as (server, port), connected(port) as client:
        await client.send(get("/", "Content-Length: 100000", method="POST"))
        trickling = asyncio.create_task(_trickle(client.send))
        assert (await client.answer()).status == 408
        await client.closed()
        trickling.cancel()
        await until(lambda: leftovers(server) == {})


async def _trickle(send) -> None:
    for _ in range(1000):
        await send(b"x")
        await asyncio.sleep(0.05)


async def test_slow_head_after_first_request_gets_408():
    async with (
        serving(echo, ServerLimits(head_timeout=0.3, sweep_interval=0.1)) as (_, port),
        connected(port) as client,
    ):
        assert (await client.ask(get() + b"GET / HT")).status == 200
        assert (await client.answer()).status == 408


async def test_idle_connection_is_closed():
    async with serving(echo, ServerLimits(idle_timeout=0.3, sweep_interval=0.1)) as (_, port):
        async with connected(port) as client:
            assert await client.closed() == b""
        async with connected(port) as client:
            await client.ask(get())
            assert await client.closed() == b""
