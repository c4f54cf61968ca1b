"""The fault proxy breaks exactly the configured bytes, and nothing else."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from tests.timing import within
from tests.upstream.raw_http import loops
from toolway.testing import Fault, FaultProxy, Flow
from toolway.testing.fault_proxy import HALF_OPEN, FlowFilter

# uvloop closes what it was left with in a later turn of its loop, which a test that ends does not have.
LATE = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
pytestmark = [pytest.mark.anyio, LATE]
SOON = 30.0


@pytest.fixture(params=loops(), ids=lambda p: "uvloop" if p[1]["use_uvloop"] else "asyncio")
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, data: bytes) -> bytes:
        """What comes back of `data`, or as much as comes before the end."""
        self.writer.write(data)
        try:
            return await asyncio.wait_for(self.reader.readexactly(len(data)), SOON)
        except asyncio.IncompleteReadError as short:
            return short.partial

    async def silent(self, seconds: float = 0.2) -> bool:
        try:
            await asyncio.wait_for(self.reader.read(1), seconds)
        except TimeoutError:
            return True
        return False


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def echo(dice: Random | None = None) -> AsyncIterator[FaultProxy]:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    try:
        async with FaultProxy("127.0.0.1", server.sockets[0].getsockname()[1], random=dice) as proxy:
            yield proxy
    finally:
        server.close()
        await asyncio.sleep(0.01)  # its connections end in their own tasks


@asynccontextmanager
async def through(proxy: FaultProxy) -> AsyncIterator[Client]:
    reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", proxy.port), SOON)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def test_everything_passes_and_is_counted_without_a_fault() -> None:
    async with echo() as proxy:
        async with through(proxy) as client:
            data = bytes(range(256)) * 4000
            assert await client.ask(data) == data
            assert (proxy.counts.connections, proxy.open_connections) == (1, 1)
            assert (proxy.counts.bytes_up, proxy.counts.bytes_down) == (len(data), len(data))
        async with asyncio.timeout(SOON):
            while proxy.open_connections:
                await asyncio.sleep(0.01)


async def test_half_close_is_passed_on() -> None:
    async with echo() as proxy, through(proxy) as client:
        client.writer.write(b"last words")
        client.writer.write_eof()
        assert await asyncio.wait_for(client.reader.read(), SOON) == b"last words"


async def test_faults_apply_to_one_connection_each() -> None:
    async with echo() as proxy:
        proxy.set_faults([Fault(), Fault(down=Flow(cut_at=2)), Fault(down=Flow(flip=(0,)))])
        answers = []
        for _ in range(4):
            async with through(proxy) as client:
                answers.append(await client.ask(b"abcd"))
        assert answers == [b"abcd", b"ab", b"`bcd", b"abcd"]


async def test_faults_can_depend_on_connection_number() -> None:
    async with echo() as proxy:
        proxy.set_faults(lambda number: Fault(up=Flow(cut_at=number)))
        for number in range(3):
            async with through(proxy) as client:
                assert await client.ask(b"abcd") == b"abcd"[:0]
            assert proxy.counts.bytes_up == sum(range(number + 1))


@pytest.mark.parametrize("reset", [False, True])
async def test_cut_ends_connection_after_exact_bytes(reset: bool) -> None:
    async with echo() as proxy:
        proxy.set_faults([Fault(down=Flow(cut_at=100, reset=reset))])
        async with through(proxy) as client:
            client.writer.write(b"x" * 100)
            assert await asyncio.wait_for(client.reader.readexactly(100), SOON) == b"x" * 100
            if reset:
                with pytest.raises(ConnectionResetError):
                    await asyncio.wait_for(client.reader.read(), SOON)
            else:
                assert await asyncio.wait_for(client.reader.read(), SOON) == b""
        assert (proxy.counts.cut, proxy.counts.bytes_down) == (1, 100)


async def test_delay_and_rate_take_their_time() -> None:
    async with echo() as proxy:
        for fault, least in ((Fault(down=Flow(delay=0.2)), 0.2), (Fault(up=Flow(rate=1000)), 0.2)):
            proxy.set_faults([fault])
            async with through(proxy) as client:
                began = time.monotonic()
                assert await client.ask(b"x" * 250) == b"x" * 250
                assert least <= time.monotonic() - began < within(SOON)


async def test_half_open_connection_swallows_everything() -> None:
    async with echo() as proxy:
        proxy.set_faults([HALF_OPEN])
        async with through(proxy) as client:
            client.writer.write(b"x" * 1_000_000)
            await asyncio.wait_for(client.writer.drain(), SOON)
            assert await client.silent()
            assert (proxy.counts.bytes_up, proxy.counts.bytes_swallowed) == (0, 1_000_000)


async def test_stalled_flow_fills_send_buffers() -> None:
    async with echo() as proxy:
        proxy.set_faults([Fault(up=Flow(stall_at=4))])
        async with through(proxy) as client:
            assert await client.ask(b"abcd") == b"abcd"
            with pytest.raises(TimeoutError):
                for _ in range(1000):
                    client.writer.write(b"x" * 65536)
                    await asyncio.wait_for(client.writer.drain(), 0.3)


async def test_freeze_affects_only_open_connections() -> None:
    async with echo() as proxy, through(proxy) as client:
        assert await client.ask(b"before") == b"before"
        proxy.freeze()
        client.writer.write(b"after")
        assert await client.silent()
        async with through(proxy) as other:
            assert await other.ask(b"new") == b"new"


@pytest.mark.parametrize("reset", [False, True])
async def test_open_connections_can_be_cut(reset: bool) -> None:
    async with echo() as proxy, through(proxy) as client:
        assert await client.ask(b"before") == b"before"
        await proxy.cut_connections(reset=reset)
        assert proxy.open_connections == 0
        if reset:
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(client.reader.read(), SOON)
        else:
            assert await asyncio.wait_for(client.reader.read(), SOON) == b""


async def test_connection_can_be_refused_after_accept() -> None:
    async with echo() as proxy:
        proxy.set_faults([Fault(refuse=True)])
        with pytest.raises(ConnectionResetError):
            async with through(proxy) as client:
                await client.reader.read()
        assert proxy.counts.refused == 1


async def test_listener_can_be_closed_and_reopened() -> None:
    async with echo() as proxy:
        await proxy.refuse_connections()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
        await proxy.accept_connections()
        async with through(proxy) as client:
            assert await client.ask(b"back") == b"back"


async def test_black_hole_leaves_connect_unanswered() -> None:
    async with echo() as proxy:
        await proxy.black_hole()
        with socket.socket() as attempt:
            attempt.setblocking(False)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.get_running_loop().sock_connect(attempt, ("127.0.0.1", proxy.port)), 0.5)
        assert proxy.counts.connections == 0
        await proxy.accept_connections()
        async with through(proxy) as client:
            assert await client.ask(b"back") == b"back"


async def test_missing_server_is_a_reset() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    async with FaultProxy("127.0.0.1", port) as proxy, through(proxy) as client:
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(client.reader.read(), SOON)


async def test_urls_point_at_the_proxy() -> None:
    async with FaultProxy("127.0.0.1", 1) as proxy:
        here = f"127.0.0.1:{proxy.port}"
        assert proxy.url_for("/mcp") == f"http://{here}/mcp"
        assert proxy.url_for("https://example.org/mcp?a=b") == f"https://{here}/mcp?a=b"


async def test_exit_closes_every_connection() -> None:
    async with echo() as proxy:
        proxy.set_faults([HALF_OPEN])
        async with through(proxy) as client:
            await proxy.__aexit__()
            assert await asyncio.wait_for(client.reader.read(), SOON) == b""
            assert proxy.open_connections == 0


# -- the bytes alone


def passed(flow: Flow, data: bytes, size: int, dice: Random | None = None) -> bytes:
    passage = FlowFilter(flow, dice or Random(0))
    return b"".join(passage.apply(data[at : at + size]) for at in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_chunk_size_does_not_change_the_output(size: int) -> None:
    data = bytes(range(20))
    assert passed(Flow(), data, size) == data
    assert passed(Flow(flip=(3, 19)), data, size) == bytes([*data[:3], 2, *data[4:19], 18])
    assert passed(Flow(repeat=(5, 9)), data, size) == data[:9] + data[5:]
    assert passed(Flow(repeat=(0, 20)), data, size) == data * 2
    assert passed(Flow(cut_at=6), data, size) == data[:6]
    assert passed(Flow(swallow_at=6, flip=(1,)), data, size) == bytes([0, 0, *data[2:6]])


def test_noise_is_deterministic_for_a_seed() -> None:
    data = bytes(10_000)
    one, two = (passed(Flow(noise=0.1), data, 64, Random(7)) for _ in range(2))
    assert one == two
    assert 800 < sum(one) < 1200
