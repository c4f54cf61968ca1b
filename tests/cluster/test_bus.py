"""News and signs of life over a real NATS server."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg

from tests.cluster.nats_server import NatsServer, nats_server, program
from tests.faults.cluster.engines import nats_cluster
from tests.faults.cluster.engines_setup import Loopback
from toolway.cluster import heartbeat
from toolway.cluster.bus import HEARTBEAT_TIMEOUT_S, MAX_MESSAGE_BYTES, Bus, Heartbeats, subject_token
from toolway.gateway.sealing import Sealer
from toolway.types import Json

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(program() is None, reason="nats-server is not installed")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Node:
    def __init__(self, id: str, cluster: str = "test", tenant: str = "default", sealer: Sealer | None = None) -> None:
        self.heard: list[tuple[str, Json]] = []
        self.gaps = 0
        self.bus = Bus(cluster, id, lambda kind, body: self.heard.append((kind, body)), self._gap, tenant, sealer)

    def _gap(self) -> None:
        self.gaps += 1


@asynccontextmanager
async def _nodes(server: NatsServer, *nodes: Node) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for node in nodes:
            await node.bus.connect([server.url])
            stack.push_async_callback(node.bus.close)
        yield


async def _until(what: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not what():
            await asyncio.sleep(0.01)


async def _until_silent(listener: Heartbeats, seconds: float) -> None:
    await _until(lambda: listener.seconds_silent >= HEARTBEAT_TIMEOUT_S, seconds)


async def test_message_reaches_all_other_nodes_of_its_cluster() -> None:
    a, b, c, stranger = Node("a"), Node("b"), Node("c"), Node("a", "other")
    async with nats_server() as server, _nodes(server, a, b, c, stranger):
        assert await a.bus.publish("keys.revoked", {"id": "k1"})
        await _until(lambda: b.heard == c.heard == [("keys.revoked", {"id": "k1"})])
        assert (a.heard, stranger.heard) == ([], [])


async def test_invalid_message_is_ignored_and_the_next_one_arrives() -> None:
    a, b = Node("a"), Node("b")
    async with nats_server() as server, _nodes(server, a, b):
        other = await nats.connect(server.url)
        for junk in (
            b"",
            b"{",
            b"[]",
            b'{"body": 7}',
            b"\xff" * 100,
            b'{"body": {}, "x": "' + b"y" * MAX_MESSAGE_BYTES + b'"}',
        ):
            await other.publish("toolway.test.default.news.junk", junk)
        await other.close()
        assert not await a.bus.publish("large", {"x": "y" * MAX_MESSAGE_BYTES})
        assert await a.bus.publish("small", {})
        await _until(lambda: b.heard == [("small", {})])


async def test_reconnect_reports_gap_and_resumes_messages() -> None:
    a, b = Node("a"), Node("b")
    async with nats_server() as server, _nodes(server, a, b):
        server.kill()
        await _until(lambda: not a.bus.is_connected and not b.bus.is_connected)
        assert not await a.bus.publish("lost", {})
        await server.start()
        await _until(lambda: a.gaps > 0 and b.gaps > 0)
        assert await a.bus.publish("again", {})
        await _until(lambda: ("again", {}) in b.heard)
        assert ("lost", {}) not in b.heard


PROGRAM = """
import asyncio, sys
from toolway.cluster.bus import Bus
async def main():
    await Bus("test", "b", lambda *_: None, lambda: None).connect([sys.argv[1]])
    print("ready", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@asynccontextmanager
async def _another_process(server: NatsServer) -> AsyncIterator[int]:
    """The node `b`; its process."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, server.url], stdout=subprocess.PIPE)  # noqa: ASYNC220
    assert process.stdout is not None
    try:
        assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
        yield process.pid
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
async def test_dead_or_hung_node_is_detected_in_about_a_second(end: signal.Signals) -> None:
    a = Node("a")
    async with (
        nats_server() as server,
        _nodes(server, a),
        _another_process(server) as pid,
        a.bus.watch("b") as listener,
        a.bus.watch("b") as same,
    ):
        assert listener is same
        silent = asyncio.create_task(_until_silent(listener, 30))
        await asyncio.sleep(2 * HEARTBEAT_TIMEOUT_S)
        assert not silent.done()
        os.kill(pid, end)
        async with asyncio.timeout(25):
            await silent


async def test_local_stall_is_not_mistaken_for_a_silent_node() -> None:
    a = Node("a")
    async with (
        nats_server() as server,
        _nodes(server, a),
        _another_process(server) as pid,
        a.bus.watch("b") as listener,
    ):
        await asyncio.sleep(2 * HEARTBEAT_TIMEOUT_S)
        for _ in range(3):
            time.sleep(2 * HEARTBEAT_TIMEOUT_S)  # noqa: ASYNC251 - the loop itself must stand still
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert listener.seconds_silent < HEARTBEAT_TIMEOUT_S  # though messages that arrived are yet to be read
            await asyncio.sleep(0.3)
            assert listener.seconds_silent < HEARTBEAT_TIMEOUT_S
        os.kill(pid, signal.SIGKILL)
        await _until_silent(listener, 60)


async def test_watch_works_again_after_it_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "UNUSED_LISTENER_TIMEOUT_S", 1.0)
    a = Node("a")
    async with nats_server() as server, _nodes(server, a):
        async with a.bus.watch("nobody") as first:
            await _until_silent(first, 60)
        await _until(lambda: not a.bus._listeners, 30)  # it is not needed any more
        async with a.bus.watch("nobody") as second:
            assert second is not first
            await _until_silent(second, 60)


async def test_no_node_counts_as_silent_while_disconnected() -> None:
    a = Node("a")
    async with nats_server() as server, _nodes(server, a), a.bus.watch("b") as listener:
        server.kill()
        await _until(lambda: not a.bus.is_connected)
        silent = asyncio.create_task(_until_silent(listener, 30))
        await asyncio.sleep(2 * HEARTBEAT_TIMEOUT_S)
        assert not silent.done()
        await server.start()
        async with asyncio.timeout(60):
            await silent  # it could be received again, and is silent


async def test_watch_started_before_nats_works_afterwards() -> None:
    a, b = Node("a"), Node("b")
    async with a.bus.watch("b") as listener:
        silent = asyncio.create_task(_until_silent(listener, 30))
        await asyncio.sleep(2 * HEARTBEAT_TIMEOUT_S)
        assert not silent.done()  # nothing can be received
        async with nats_server() as server, _nodes(server, a, b):
            await asyncio.sleep(2 * HEARTBEAT_TIMEOUT_S)
            assert not silent.done()  # its heartbeats arrive
            await b.bus.close()
            async with asyncio.timeout(25):
                await silent


async def test_lost_nats_server_is_replaced_and_reports_a_gap() -> None:
    a, b = Node("a"), Node("b")
    async with nats_cluster(Loopback()) as servers, AsyncExitStack() as stack:
        for node in (a, b):
            await node.bus.connect([server.url for server in servers])
            stack.push_async_callback(node.bus.close)
        await _until_received(a, b, "before")
        assert a.bus._nats is not None and a.bus._nats.connected_url is not None
        at = a.bus._nats.connected_url.port
        await next(server for server in servers if server.url.endswith(f":{at}")).kill()
        await _until(lambda: a.gaps > 0, 15)
        await _until_received(a, b, "after")
        await _until_received(b, a, "back")


async def _until_received(one: Node, other: Node, what: str) -> None:
    """Routes between servers are there a little later than the servers."""
    async with asyncio.timeout(15):
        while (what, {}) not in other.heard:
            await one.bus.publish(what, {})
            await asyncio.sleep(0.05)


ACCOUNTS = Path(__file__).parents[2] / "deploy" / "nats-accounts.conf"


async def test_tenants_in_separate_accounts_are_isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_A_PASSWORD", "first")
    monkeypatch.setenv("TEAM_B_PASSWORD", "second")
    a, b, stranger = Node("a", tenant="team-a"), Node("b", tenant="team-a"), Node("c", tenant="team-b")
    spy: list[str] = []

    async def record_message(message: Msg) -> None:
        spy.append(message.subject)

    async with nats_server(ACCOUNTS) as server, AsyncExitStack() as stack:
        for node, user in ((a, "team-a:first"), (b, "team-a:first"), (stranger, "team-b:second")):
            await node.bus.connect([server.url.replace("//", f"//{user}@")])
            stack.push_async_callback(node.bus.close)
        eavesdropper = await nats.connect(server.url.replace("//", "//team-b:second@"))
        await eavesdropper.subscribe(">", cb=record_message)
        await eavesdropper.flush()
        async with stranger.bus.watch("a") as listener:
            assert await a.bus.publish("keys", {"revoked": ["k"]})
            await _until(lambda: b.heard == [("keys", {"revoked": ["k"]})])
            await _until_silent(listener, 60)  # it beats, in another account
        assert await stranger.bus.publish("keys", {})
        await eavesdropper.flush()
        await _until(lambda: "toolway.test.team-b.news.keys" in spy)
        assert {subject.split(".")[2] for subject in spy} == {"team-b"}
        assert stranger.heard == [] and len(b.heard) == 1
        await eavesdropper.close()


async def test_tenants_of_one_account_are_separated_by_subject() -> None:
    a, same, other = Node("a", tenant="one"), Node("b", tenant="one"), Node("b", tenant="one.news")
    async with nats_server() as server, _nodes(server, a, same, other):
        assert await a.bus.publish("keys", {})
        await _until(lambda: same.heard == [("keys", {})])
        assert other.heard == []


@pytest.mark.attack("held-78")
async def test_messages_without_the_key_are_unreadable_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    sealer, now = Sealer(b"k" * 32, time.time), time.time()
    a, b = Node("a", sealer=sealer), Node("b", sealer=sealer)
    stranger, late = (
        Node("c", sealer=Sealer(b"x" * 32, time.time)),
        Node("d", sealer=Sealer(b"k" * 32, lambda: now - 999)),
    )
    plain = Node("e")
    spied: list[Msg] = []

    async def spy(message: Msg) -> None:
        spied.append(message)

    async with nats_server() as server, _nodes(server, a, b, stranger, late, plain):
        outside = await nats.connect(server.url)
        await outside.subscribe("toolway.test.default.news.>", cb=spy)
        await outside.flush()
        assert await a.bus.publish("keys", {"revoked": "the-id"})
        await _until(lambda: len(spied) == 1)
        assert b"the-id" not in spied[0].data
        for other in (stranger, late, plain):
            assert await other.bus.publish("keys", {"revoked": "another"})
        await outside.publish("toolway.test.default.news.places", spied[0].data)  # what was said, as something else
        await outside.publish("toolway.test.default.news.keys", spied[0].data)  # what was said, again
        await outside.close()
        assert await a.bus.publish("end", {})
        await _until(lambda: ("end", {}) in b.heard)
        assert b.heard == [("keys", {"revoked": "the-id"}), ("end", {})]
        assert caplog.text.count("unreadable cluster message") <= 5  # once by each


def test_subject_tokens_are_unique_and_contain_no_wildcards() -> None:
    names = ["a", "a.b", "a b", "*", ">", "a%2e%b", "%", "", "ä", "a\r\nPUB x 0"]
    tokens = [subject_token(name) for name in names]
    assert len(set(tokens)) == len(names) and tokens[0] == "a"
    assert all(re.fullmatch(r"[A-Za-z0-9_%-]+", each) for each in tokens)
