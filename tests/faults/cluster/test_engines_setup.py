"""The ground that clusters are tested on: engines that can be ended, ways that can be cut."""

from __future__ import annotations

import asyncio
import sys
import time

import nats
import psycopg
import pytest

from tests.faults.cluster.engines import missing_engines, nats_cluster, postgres
from tests.faults.cluster.engines_setup import POSTGRES, Ground, Loopback, Seat, namespaces, why_no_namespaces

pytestmark = pytest.mark.anyio

DIAL = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.4).close()
    print("open")
except TimeoutError:
    print("silence")
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def need_engines() -> None:
    if why := missing_engines():
        pytest.skip(why)


async def dial(seat: Seat, host: str, port: int) -> str:
    """What a connection from `seat` to that address finds."""
    words = [*seat.inside, sys.executable, "-c", DIAL, host, str(port)]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    return said.decode().strip()


async def listen_at(seat: Seat) -> tuple[asyncio.subprocess.Process, int]:
    program = f"import socket; s = socket.create_server(({seat.host!r}, 0)); print(s.getsockname()[1], flush=True); "
    words = [*seat.inside, sys.executable, "-c", program + "input()"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    return process, int(await process.stdout.readline())


async def test_cut_route_is_silent_while_other_routes_stay_open():
    if why := why_no_namespaces():
        pytest.skip(why)
    with namespaces(["a", "b", "c"]) as ground:
        engine, replica = ground.seat(POSTGRES), ground.seat("b")
        first, port = await listen_at(engine)
        second, other = await listen_at(replica)
        try:
            ground.cut("a", POSTGRES)
            assert await dial(ground.seat("a"), engine.host, port) == "silence"
            assert await dial(ground.seat("a"), replica.host, other) == "open"
            ground.cut("a", "b")
            assert await dial(ground.seat("a"), replica.host, other) == "silence"
            assert await dial(ground.seat("c"), replica.host, other) == "open"
            assert await dial(ground.seat("clients"), replica.host, other) == "open"
            ground.mend()
            assert await dial(ground.seat("a"), engine.host, port) == "open"
            assert await dial(ground.seat("a"), replica.host, other) == "open"
        finally:
            for process in (first, second):
                await process.communicate(b"\n")


async def messages_pass(ground: Ground) -> bool:
    """Whether messages pass from one NATS server to another after the third was killed."""
    async with nats_cluster(ground) as nodes:
        ears = await nats.connect(nodes[0].url)
        mouth = await nats.connect(nodes[1].url)
        heard = await ears.subscribe("word")
        await ears.flush()
        await nodes[2].kill()
        until = time.monotonic() + 10
        while time.monotonic() < until:
            await mouth.publish("word", b"")
            try:
                await heard.next_msg(0.2)
                break
            except nats.errors.TimeoutError:
                continue
        else:
            return False
        await ears.close()
        await mouth.close()
        return True


@pytest.mark.usefixtures("need_engines")
async def test_two_of_three_nats_servers_deliver_messages():
    assert await messages_pass(Loopback())


@pytest.mark.usefixtures("need_engines")
async def test_database_keeps_committed_rows_after_crash():
    async with postgres(Loopback()) as server:
        async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as db:
            await db.execute("CREATE TABLE kept (number int)")
            await db.execute("INSERT INTO kept VALUES (7)")
        await server.stop()
        with pytest.raises(psycopg.OperationalError):
            await psycopg.AsyncConnection.connect(server.url)
        await server.start()
        async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as db:
            assert await (await db.execute("SELECT number FROM kept")).fetchone() == (7,)
            server.pause()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(db.execute("SELECT 1"), 0.5)
            server.resume()
