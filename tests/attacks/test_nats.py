"""Attacks on the nodes of a cluster by a hostile NATS server, or any client that reaches NATS."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.protocol.parser import Parser

from tests.cluster.nats_server import nats_server, program
from tests.cluster.node import nats_lab
from tests.gateway.program import until
from toolway.cluster.bus import Bus
from toolway.cluster.nats_connection import MAX_KNOWN_SERVERS, MAX_RECEIVED_BYTES, NatsConnection
from toolway.cluster.nats_rpc import frames
from toolway.cluster.nats_rpc.rpc_client import connect_nats
from toolway.cluster.nats_rpc.rpc_server import MAX_CALLS

pytestmark = pytest.mark.anyio
needs_nats = pytest.mark.skipif(program() is None, reason="needs nats-server")
Behave = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
INFO = {"server_id": "x", "version": "2.10.0", "max_payload": 1024 * 1024, "proto": 1, "headers": True}
MIB = 1024 * 1024


def info(**fields: Any) -> bytes:
    return b"INFO " + json.dumps({**INFO, **fields}).encode() + b"\r\n"


class HostileNats:
    """A NATS server that treats each connection as the next function says; the last one applies to all later ones."""

    def __init__(self, *behaviors: Behave) -> None:
        self.behaviors = list(behaviors)
        self.connections = 0
        self.got = bytearray()
        self.sent = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        behave = self.behaviors.pop(0) if len(self.behaviors) > 1 else self.behaviors[0]
        with suppress(OSError):
            await behave(reader, writer)
        writer.close()

    async def greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes = b"") -> None:
        """Open the connection as an honest server does."""
        writer.write(first or info())
        while not self.got.endswith(b"PING\r\n"):
            if not (data := await reader.read(65536)):
                return
            self.got += data
        self.got += b"\n"
        writer.write(b"PONG\r\n")

    async def stay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer each ping until the end."""
        while data := await reader.read(65536):
            self.got += data
            writer.write(b"PONG\r\n" * data.count(b"PING\r\n"))

    async def honest(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.greet(reader, writer)
        await self.stay(reader, writer)

    def then(self, data: bytes, repeated: bytes = b"") -> Behave:
        """Greet, send `data`, and then `repeated` until the node ends the connection, or 64 MB were sent."""

        async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.greet(reader, writer)
            writer.write(data)
            while repeated and self.sent < 64 * MIB:
                writer.write(repeated)
                self.sent += len(repeated)
                await writer.drain()
            await self.stay(reader, writer)

        return behave

    def first(self, data: bytes) -> Behave:
        """Send `data` instead of the greeting, and end the connection if the node uses it."""

        async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.greet(reader, writer, data)

        return behave


@asynccontextmanager
async def served(nats: HostileNats) -> AsyncIterator[HostileNats]:
    listener = await asyncio.start_server(nats.serve, "127.0.0.1", 0)
    nats.port = listener.sockets[0].getsockname()[1]
    try:
        yield nats
    finally:
        listener.close()


@asynccontextmanager
async def bus_to(url: str) -> AsyncIterator[Bus]:
    """The bus of a node, which connects in the background."""
    bus = Bus("test", "n", lambda kind, body: None, lambda: None)
    connecting = asyncio.create_task(bus.connect([url]))
    try:
        yield bus
    finally:
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        await bus.close()


def client_of(bus: Bus) -> NatsConnection:
    assert isinstance(bus._nats, NatsConnection)
    return bus._nats


# -- the server -------------------------------------------------------------------------------------------------------


@pytest.mark.attack("R3-A-1")
@pytest.mark.parametrize("tls", [{}, {"tls_required": False}, {"tls_required": None, "tls_available": 0}])
async def test_password_is_not_sent_to_nats_without_tls(tls: dict[str, Any]) -> None:
    nats = HostileNats()
    nats.behaviors = [nats.first(info(auth_required=True, **tls))]
    async with served(nats), bus_to(f"tls://user:canary-password@localhost:{nats.port}") as bus:
        await until(lambda: nats.connections >= 2, 20)
        assert "has no TLS" in str(bus.last_error) and not bus.is_connected
    assert bytes(nats.got) == b""


@pytest.mark.attack("R3-A-1")
async def test_available_tls_is_used_even_if_not_required(tmp_path: Path) -> None:
    """The node begins the handshake, and rejects a certificate that it does not know."""
    nats = HostileNats()
    nats.behaviors = [nats.first(info(auth_required=True, tls_available=True))]
    async with served(nats), bus_to(f"tls://user:canary-password@localhost:{nats.port}"):
        await until(lambda: len(nats.got) > 100, 20)
    assert nats.got[:2] == b"\x16\x03" and b"canary" not in nats.got  # a ClientHello
    assert ssl.create_default_context().check_hostname


@pytest.mark.attack("R3-A-2")
@pytest.mark.parametrize(
    ("data", "repeated"),
    [
        (b"MSG toolway.test.default.news.x 1 9999999999\r\n", b"x" * 65536),
        (b"HMSG toolway.test.default.news.x 1 12 9999999999\r\n", b"x" * 65536),
        (b"MSG ", b"x" * 65536),
        (b"", b"x" * 65536),
        (b"INFO {", b'"a":' + b"1" * 65000),
        (b"MSG a 1 \xb2\r\n", b""),
    ],
    ids=["message", "message with headers", "subject", "line", "info", "digits"],
)
async def test_endless_nats_message_is_bounded_and_reconnects(data: bytes, repeated: bytes) -> None:
    nats = HostileNats()
    nats.behaviors = [nats.then(data, repeated), nats.honest]
    async with served(nats), bus_to(f"nats://127.0.0.1:{nats.port}") as bus:
        await until(lambda: nats.connections >= 2 and bus.is_connected, 30)
        assert len(client_of(bus)._ps.buf) == 0
    assert nats.sent < MAX_RECEIVED_BYTES + 4 * MIB  # what the node read, and the buffers of the socket


@pytest.mark.attack("R3-A-3")
@pytest.mark.parametrize(
    "message",
    [
        b"-ERR 'authorization violation'\r\n",
        b"-ERR 'anything'\r\n",
        b"-ERR \r\n",
        b"INFO []\r\n",
        b"INFO {\r\n",
        b"?\r\n",
    ],
)
async def test_hostile_nats_message_leads_to_a_reconnect(message: bytes) -> None:
    nats = HostileNats()
    nats.behaviors = [nats.then(message), nats.honest]
    async with served(nats), bus_to(f"nats://127.0.0.1:{nats.port}") as bus:
        await until(lambda: nats.connections >= 2 and bus.is_connected, 30)
        assert await bus.publish("news", {})


@pytest.mark.attack("R3-A-3")
async def test_invalid_nats_greetings_lead_to_a_reconnect() -> None:
    nats = HostileNats()
    greetings = [
        *(b"INFO []\r\n", b'INFO "x"\r\n', b"INFO 1\r\n", b"INFO {\r\n", b"hello\r\n", b"INFO " + b"x" * 200_000),
        *(info(max_payload="x"), info(max_payload=-1), info(max_payload=1), info(max_payload=None)),
        *(info(connect_urls=5), info(connect_urls=[["x"], 5]), info(nonce=[])),
    ]
    nats.behaviors = [nats.honest, *(nats.first(each) for each in greetings), nats.honest]
    cut = asyncio.Event()

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await nats.greet(reader, writer)
        await cut.wait()

    nats.behaviors[0] = once
    async with served(nats), bus_to(f"nats://127.0.0.1:{nats.port}") as bus:
        await until(lambda: bus.is_connected, 20)
        cut.set()
        await until(lambda: len(nats.behaviors) == 1 and bus.is_connected, 60)
        assert await bus.publish("news", {})


@pytest.mark.attack("R3-A-3")
async def test_known_nats_servers_are_bounded() -> None:
    nats = HostileNats()
    names = [info(connect_urls=[f"10.{n}.{m}.1:4222" for m in range(200)]) for n in range(20)]
    nats.behaviors = [nats.then(b"".join(names))]
    async with served(nats), bus_to(f"nats://127.0.0.1:{nats.port}") as bus:
        await until(lambda: bus.is_connected, 20)
        await until(lambda: len(client_of(bus)._server_pool) > 10, 20)
        await client_of(bus).flush()  # the answer is behind all of them
        assert len(client_of(bus)._server_pool) <= MAX_KNOWN_SERVERS


def test_replaced_nats_client_methods_exist() -> None:
    for name in ("_connect_to_server", "_process_connect_init", "_process_info", "_process_err"):
        assert name in vars(Client) and name in vars(NatsConnection)
    assert isinstance(Client()._ps, Parser)


async def test_cancelled_nats_connect_ends_at_any_moment() -> None:
    nats = HostileNats()
    nats.behaviors = [nats.first(b"INFO {\r\n")]
    async with served(nats):
        for number in range(60):
            connecting = asyncio.create_task(connect_nats([f"nats://127.0.0.1:{nats.port}"], "n"))
            for _ in range(number):
                await asyncio.sleep(0)
            connecting.cancel()
            done, _ = await asyncio.wait({connecting}, timeout=20)
            assert done and connecting.cancelled(), number


# -- a foreign client publishes ---------------------------------------------------------------------------------------


@pytest.mark.attack("R3-A-4")
def test_call_keeps_no_more_bytes_than_announced() -> None:
    """By chunks that are too early: only a limited number is kept, but each could have any size."""
    gathering = frames.Reassembly(1000)
    assert gathering.add(b"P10\nx")
    assert gathering.add(b"C2\nyyyy") and gathering.add(b"C3\nzz")
    for large in (b"C4\n" + b"x" * 6, b"C1\n" + b"x" * 6, b"C5\n" + b"x" * MIB):
        with pytest.raises(frames.InvalidFrame):
            gathering.add(large)
    gathering = frames.Reassembly(1000)
    assert gathering.add(b"P4\na") and gathering.add(b"C2\ncd") and gathering.add(b"C1\nb")
    assert gathering.message == b"abcd"


@pytest.mark.attack("R3-A-4")
def test_calls_per_batch_message_are_bounded() -> None:
    allowed = [str(number) for number in range(frames.MAX_BATCH_FRAMES)]
    assert len(frames.decode_batch(frames.encode_batch(allowed, [b"Q"] * len(allowed)))) == len(allowed)
    for packed in (
        frames.encode_batch([*allowed, "7"], [b"Q"] * (len(allowed) + 1)),
        b"M" + b"1 0 " * 250_000 + b"1 0\n",
    ):
        with pytest.raises(frames.InvalidFrame):
            frames.decode_batch(packed)


@pytest.mark.attack("R3-A-4")
@needs_nats
async def test_incomplete_nats_calls_use_bounded_memory() -> None:
    async with nats_server() as server, nats_lab.owner(server, nats_lab.echo) as made, nats_lab.caller(server) as way:
        door, stranger = made.door, await connect_nats([server.url], "stranger")
        assert door is not None
        subject = f"{nats_lab.ROOT}.call.owner.1"
        for number in range(1, 40):
            reply = f"{nats_lab.ROOT}.reply.nobody.{number}"
            await stranger.publish(subject, b"P10\nx", reply)
            for chunk in range(2, 9):
                await stranger.publish(f"{subject}.c", b"C%d\n" % chunk + b"x" * 500_000, reply)
        for number in range(3 * MAX_CALLS):  # made-up nodes that do not listen
            await stranger.publish(f"{subject}.gone-{number}", b"", headers={"Status": "503"})
        await stranger.flush()
        await stranger.flush()
        assert (await nats_lab.answered(await nats_lab.link_to(way)))["content"] == []
        incomplete = [call.reassembly for call in door._active_calls.values() if call.reassembly is not None]
        held = sum(len(part) for each in incomplete for part in (each._data, *each._early_chunks.values()))
        assert held < 1000 and door.reassembly_bytes < 1000
        assert len(door._unreachable_callers) <= MAX_CALLS
        await stranger.close()
