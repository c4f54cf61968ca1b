"""Answers as they go out: in order, as a stream, to clients that leave or do not read, and at the end of a server."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from tests.http.raw_client import connected, get, leftovers, post, serving, until
from toolway.http.exchange import Exchange
from toolway.http.limits import ServerLimits

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Transports differ between the two event loops, and a gateway may run on either."""
    return ("asyncio", {"use_uvloop": request.param})


class Held:
    """A handler that waits to be let go, and says what became of it."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.let_go = asyncio.Event()

    async def handle(self, exchange: Exchange) -> None:
        self.begun += 1
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        exchange.reply(200, exchange.request.path.encode())


async def plain(exchange: Exchange) -> None:
    exchange.reply(200, exchange.request.path.encode())


async def welcome(exchange: Exchange) -> None:
    """The same for clients who show who they are."""
    if "authorization" in exchange.request.headers:
        exchange.mark_authenticated()
    await plain(exchange)


# -- order ------------------------------------------------------------------------------------------------------------


async def test_pipelined_requests_are_answered_in_order_one_at_a_time():
    held = Held()
    async with serving(held.handle) as (server, port), connected(port) as client:
        await client.send(b"".join(get(f"/{n}") for n in range(10)))
        await until(lambda: held.begun == 1)
        await asyncio.sleep(0.05)
        assert (held.begun, server.active_count) == (1, 1)
        held.let_go.set()
        assert [(await client.answer()).body for _ in range(10)] == [b"/%d" % n for n in range(10)]


@pytest.mark.attack("held-8")
async def test_too_many_pipelined_requests_close_connection():
    held = Held()
    async with serving(held.handle, ServerLimits(max_pipelined=3)) as (server, port), connected(port) as client:
        await client.send(b"".join(post(f"/{n}", b"body") for n in range(100)))
        assert await client.closed() == b""
        await until(lambda: held.cancelled == 1)
        await until(lambda: leftovers(server) == {})
    assert held.begun == 1


# -- streams ----------------------------------------------------------------------------------------------------------


async def test_stream_is_sent_as_written():
    more = asyncio.Event()

    async def stream(exchange: Exchange) -> None:
        exchange.open(200, (("content-type", "text/event-stream"),))
        exchange.write(b"one")
        await more.wait()
        exchange.write(b"")  # says nothing, and above all not that it is over
        exchange.write(b"two")
        exchange.end()

    async with serving(stream) as (_, port), connected(port) as client:
        await client.send(get())
        assert (await client.head()).headers["transfer-encoding"] == "chunked"
        chunks = client.chunks()
        assert await anext(chunks) == b"one"
        more.set()
        assert [part async for part in chunks] == [b"two"]
        more.clear()
        await client.send(get())  # and the connection continues
        assert (await client.head()).status == 200


async def test_failed_stream_is_cut_off_without_final_chunk(caplog: pytest.LogCaptureFixture):
    async def fails(exchange: Exchange) -> None:
        exchange.open(200, ())
        exchange.write(b"one")
        await asyncio.sleep(0)
        raise RuntimeError("in the middle")

    with caplog.at_level(logging.CRITICAL, logger="toolway"):
        async with serving(fails) as (_, port), connected(port) as client:
            await client.send(get())
            await client.head()
            assert b"0\r\n\r\n" not in await client.closed()


async def test_failed_handler_returns_empty_500(caplog: pytest.LogCaptureFixture):
    async def fails(exchange: Exchange) -> None:
        if exchange.request.path == "/bad":
            raise RuntimeError("secret")
        await plain(exchange)

    with caplog.at_level(logging.CRITICAL, logger="toolway"):
        async with serving(fails) as (_, port), connected(port) as client:
            answer = await client.ask(get("/bad"))
            assert (answer.status, answer.body) == (500, b"")
            assert (await client.ask(get("/good"))).status == 200


async def test_handler_without_response_closes_connection():
    async def forgets(exchange: Exchange) -> None:
        pass

    async with serving(forgets) as (_, port), connected(port) as client:
        await client.send(get())
        assert await client.closed() == b""


# -- clients that leave -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_disconnecting_client_cancels_handler(how: str):
    held = Held()
    async with serving(held.handle) as (server, port), connected(port) as client:
        await client.send(post("/", b"abc"))
        await until(lambda: held.begun == 1)
        client.reset() if how == "reset" else client.writer.close()
        await until(lambda: held.cancelled == 1)
        await until(lambda: leftovers(server) == {})


async def test_disconnect_callback_replaces_cancellation():
    told: list[str] = []
    done = asyncio.Event()
    go_on = asyncio.Event()

    async def stays(exchange: Exchange) -> None:
        exchange.on_disconnect = lambda: told.append("gone")
        exchange.open(200, ())
        exchange.write(b"one")
        await go_on.wait()
        assert exchange.disconnected
        exchange.write(b"two")
        exchange.end()
        done.set()

    async with serving(stays) as (server, port), connected(port) as client:
        await client.send(get())
        await client.head()
        client.reset()
        await until(lambda: told == ["gone"])
        assert server.active_count == 0
        go_on.set()
        await asyncio.wait_for(done.wait(), 10)
        assert server.active_count == 0


async def test_pipelined_requests_of_gone_client_never_start():
    held = Held()
    async with serving(held.handle) as (server, port), connected(port) as client:
        await client.send(post("/1", b"a") + post("/2", b"b"))
        await until(lambda: held.begun == 1)
        client.reset()
        await until(lambda: leftovers(server) == {})
    assert held.begun == 1


# -- clients that do not read -----------------------------------------------------------------------------------------


async def _deaf_client(port: int, window: int = 4096) -> socket.socket:
    """A client with a small window that asks and then does not read."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    await loop.sock_sendall(sock, get())
    return sock


async def test_client_that_does_not_read_a_stream_is_dropped():
    written = 0

    async def floods(exchange: Exchange) -> None:
        nonlocal written
        exchange.open(200, ())
        for _ in range(10_000):  # 640 MB
            exchange.write(b"x" * 65536)
            written += 65536
            await asyncio.sleep(0)

    async with serving(floods, ServerLimits(max_unread_bytes=1_000_000)) as (server, port):
        sock = await _deaf_client(port)
        with sock:
            await until(lambda: len(server) == 0)
        assert written < 20_000_000  # what the system took for it, and ours


async def test_response_over_unread_limit_reaches_reading_client():
    body = b"x" * 20_000_000

    async def large(exchange: Exchange) -> None:
        exchange.reply(200, body)

    async with serving(large, ServerLimits(max_unread_bytes=1_000_000)) as (_, port), connected(port) as client:
        assert (await client.ask(get())).body == body
        assert (await client.ask(get())).body == body


async def test_client_that_reads_nothing_is_dropped():
    async def large(exchange: Exchange) -> None:
        exchange.reply(200, b"x" * 20_000_000)

    async with serving(large, ServerLimits(stall_timeout=0.3, sweep_interval=0.1)) as (server, port):
        with await _deaf_client(port):
            await until(lambda: len(server) == 1)
            await until(lambda: len(server) == 0)


async def test_slow_but_steady_client_is_not_dropped():
    size = 40_000_000

    async def large(exchange: Exchange) -> None:
        exchange.reply(200, b"x" * size)

    limits = ServerLimits(stall_timeout=1.5, sweep_interval=0.1, min_bytes_per_s=100)
    async with serving(large, limits) as (server, port):
        with await _deaf_client(port, 200_000) as sock:
            loop, got = asyncio.get_running_loop(), 0
            began = loop.time()
            while loop.time() - began < 2 * limits.stall_timeout:  # a client that takes nothing would be left before
                got += len(await asyncio.wait_for(loop.sock_recv(sock, 100_000), 10))
                await asyncio.sleep(0.05)
            assert len(server) == 1 and 0 < got < size - 10_000_000


async def test_total_unread_bytes_of_all_clients_are_bounded():
    async def large(exchange: Exchange) -> None:
        exchange.reply(200, b"x" * 8_000_000)

    async with serving(large, ServerLimits(max_total_unread_bytes=20_000_000, sweep_interval=0.1)) as (server, port):
        socks = [await _deaf_client(port) for _ in range(8)]
        await until(lambda: server.active_count == 0 and sum(c.unread_bytes for c in server._blocked) <= 20_000_000)
        await until(lambda: 0 < len(server) < 8)
        for sock in socks:
            sock.close()


# -- too many connections ---------------------------------------------------------------------------------------------


async def test_oldest_idle_connection_is_closed_over_the_limit():
    async with (
        serving(welcome, ServerLimits(max_connections=3)) as (server, port),
        connected(port) as one,
        connected(port) as two,
        connected(port) as three,
    ):
        for client in (one, two, three, one):  # now `two` has waited longest
            await client.ask(get("/", "Authorization: x"))
        async with connected(port) as four:
            assert (await four.ask(get())).status == 200
            assert await two.closed() == b""
            assert (await one.ask(get())).status == 200
            assert (await three.ask(get())).status == 200
            assert len(server) == 3


async def test_unauthenticated_connections_are_closed_first():
    async with serving(welcome, ServerLimits(max_connections=3)) as (_, port), connected(port) as known:
        await known.ask(get("/", "Authorization: x"))
        async with connected(port) as silent, connected(port) as slow:
            await slow.send(b"GET / HT")
            await asyncio.sleep(0.05)
            async with connected(port) as new:
                assert await silent.closed() == b""
                await new.ask(get("/", "Authorization: x"))
                async with connected(port) as newer:
                    assert await slow.closed() == b""
                    assert (await newer.ask(get())).status == 200
            assert (await known.ask(get())).status == 200


async def test_busy_connection_is_never_closed_for_a_new_one():
    held = Held()
    limits = ServerLimits(max_connections=2)
    async with serving(held.handle, limits) as (_, port), connected(port) as one, connected(port) as two:
        await one.send(get("/1"))
        await two.send(get("/2"))
        await until(lambda: held.begun == 2)
        async with connected(port) as newcomer:
            assert await newcomer.closed() == b""
        held.let_go.set()
        assert (await one.answer()).body == b"/1"
        assert (await two.answer()).body == b"/2"


# -- the end ----------------------------------------------------------------------------------------------------------


async def test_stopping_server_finishes_running_requests():
    held = Held()
    async with serving(held.handle) as (server, port), connected(port) as busy, connected(port) as idle:
        await busy.send(get("/busy"))
        await until(lambda: held.begun == 1 and len(server) == 2)
        server.stop_accepting()
        with pytest.raises(ConnectionError):
            async with connected(port):
                pass
        waiting = asyncio.create_task(server.wait_idle())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        held.let_go.set()
        answer = await busy.answer()
        assert (answer.body, answer.headers["connection"]) == (b"/busy", "close")
        await asyncio.wait_for(waiting, 10)
        assert await busy.closed() == b""
        last = await idle.ask(get("/last"))  # it may have been on its way when the end began
        assert (last.body, last.headers["connection"]) == (b"/last", "close")


async def test_half_read_request_is_answered_while_stopping():
    async with serving(plain) as (server, port), connected(port) as client:
        await client.send(get("/half")[:-2])
        await until(lambda: bool(server._reading))
        server.stop_accepting()
        answer = await client.ask(b"\r\n")
        assert (answer.body, answer.headers["connection"]) == (b"/half", "close")


async def test_cancelled_request_gets_503():
    held = Held()
    async with serving(held.handle) as (server, port), connected(port) as client:
        await client.send(get())
        await until(lambda: held.begun == 1)
        server.stop_accepting()
        await server.cancel_all()
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (503, "close")
    assert held.cancelled == 1


async def test_written_response_is_sent_before_close():
    body = b"x" * 10_000_000

    async def large(exchange: Exchange) -> None:
        exchange.reply(200, body)

    async with serving(large) as (server, port), connected(port) as client:
        await client.send(get())
        await until(lambda: len(server) == 1 and server.active_count == 0 and bool(server._blocked))
        closing = asyncio.create_task(server.close(timeout=20))
        assert (await client.answer()).body == body
        await closing


async def test_stuck_client_does_not_delay_close():
    async def large(exchange: Exchange) -> None:
        exchange.reply(200, b"x" * 10_000_000)

    async with serving(large) as (server, port):
        with await _deaf_client(port):
            await until(lambda: bool(server._blocked))
            await asyncio.wait_for(server.close(timeout=0.2), 10)
            assert leftovers(server) == {}
