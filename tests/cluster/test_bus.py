"""News and signs of life over a real NATS server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import nats
import pytest

from tests.cluster.nats_server import NatsServer, nats_server, program
from toolway.cluster.bus import LARGEST, SILENCE, Bus
from toolway.model import Json

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(program() is None, reason="there is no nats-server here")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Node:
    def __init__(self, id: str, cluster: str = "test") -> None:
        self.heard: list[tuple[str, Json]] = []
        self.gaps = 0
        self.bus = Bus(cluster, id, lambda kind, body: self.heard.append((kind, body)), self._gap)

    def _gap(self) -> None:
        self.gaps += 1


@asynccontextmanager
async def _nodes(server: NatsServer, *nodes: Node) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for node in nodes:
            await node.bus.open([server.url])
            stack.push_async_callback(node.bus.close)
        yield


async def _until(what: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not what():
            await asyncio.sleep(0.01)


async def test_all_others_hear_the_news_of_their_own_cluster() -> None:
    a, b, c, stranger = Node("a"), Node("b"), Node("c"), Node("a", "other")
    async with nats_server() as server, _nodes(server, a, b, c, stranger):
        assert await a.bus.tell("keys.revoked", {"id": "k1"})
        await _until(lambda: b.heard == c.heard == [("keys.revoked", {"id": "k1"})])
        assert (a.heard, stranger.heard) == ([], [])


async def test_what_is_no_news_is_left_out_and_the_next_is_heard() -> None:
    a, b = Node("a"), Node("b")
    async with nats_server() as server, _nodes(server, a, b):
        other = await nats.connect(server.url)
        for junk in (b"", b"{", b"[]", b'{"body": 7}', b"\xff" * 100, b'{"body": {}, "x": "' + b"y" * LARGEST + b'"}'):
            await other.publish("toolway.test.news.junk", junk)
        await other.close()
        assert not await a.bus.tell("large", {"x": "y" * LARGEST})
        assert await a.bus.tell("small", {})
        await _until(lambda: b.heard == [("small", {})])


async def test_whoever_lost_the_connection_is_told_of_the_gap_and_hears_again() -> None:
    a, b = Node("a"), Node("b")
    async with nats_server() as server, _nodes(server, a, b):
        server.kill()
        await _until(lambda: not a.bus.connected and not b.bus.connected)
        assert not await a.bus.tell("lost", {})
        await server.start()
        await _until(lambda: a.gaps > 0 and b.gaps > 0)
        assert await a.bus.tell("again", {})
        await _until(lambda: ("again", {}) in b.heard)
        assert ("lost", {}) not in b.heard


PROGRAM = """
import asyncio, sys
from toolway.cluster.bus import Bus
async def main():
    await Bus("test", "b", lambda *_: None, lambda: None).open([sys.argv[1]])
    print("ready", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_node_that_died_or_hangs_is_known_in_about_a_second(end: signal.Signals) -> None:
    a = Node("a")
    async with nats_server() as server, _nodes(server, a):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, server.url], stdout=subprocess.PIPE)  # noqa: ASYNC220
        assert process.stdout is not None
        try:
            assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
            async with a.bus.listening_to("b") as ear, a.bus.listening_to("b") as same:
                assert ear is same
                silent = asyncio.create_task(ear.wait_silent())
                await asyncio.sleep(2 * SILENCE)
                assert not silent.done()
                os.kill(process.pid, end)
                async with asyncio.timeout(3):
                    await silent
        finally:
            process.kill()
            process.wait(10)
            process.stdout.close()


async def test_nobody_is_silent_while_we_are_deaf_ourselves() -> None:
    a = Node("a")
    async with nats_server() as server, _nodes(server, a), a.bus.listening_to("b") as ear:
        server.kill()
        await _until(lambda: not a.bus.connected)
        silent = asyncio.create_task(ear.wait_silent())
        await asyncio.sleep(2 * SILENCE)
        assert not silent.done()
        await server.start()
        async with asyncio.timeout(10):
            await silent  # it can be heard again, and is not
