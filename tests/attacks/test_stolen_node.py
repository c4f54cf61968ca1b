"""Attacks with what was stolen from a node: its key, its certificate; and by a server in the place of PostgreSQL."""

from __future__ import annotations

import asyncio
import ssl
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg
from sqlalchemy.exc import SQLAlchemyError

from tests.cluster.nats_server import nats_server, program
from tests.cluster.node import hop_lab
from tests.faults.matrix.http.tls_server import certificate
from toolway.cluster.bus import Bus
from toolway.cluster.db.client_state import ApiKeyTable
from toolway.cluster.db.engine import connection_class, open_engine
from toolway.cluster.db.integrity import Integrity, StateRefused
from toolway.cluster.db.nodes import NodeStore
from toolway.cluster.db.takeover import take_over
from toolway.cluster.keys import derive_tenant_key
from toolway.cluster.node_auth import NodeAuthenticator, NodeProofs, issue_node_credential
from toolway.cluster.routing.peers import Peers
from toolway.gateway.sealing import Sealer
from toolway.http.client import HttpTarget
from toolway.http.limits import HttpError
from toolway.http.request import HeaderBlock
from toolway.types import Json

pytestmark = pytest.mark.anyio
needs_nats = pytest.mark.skipif(program() is None, reason="needs nats-server")
KEY = b"k" * 32


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# -- the key of a cluster ---------------------------------------------------------------------------------------------


@pytest.mark.attack("A2-NC4")
@needs_nats
async def test_replaced_cluster_key_makes_a_stolen_key_useless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As documented. A node that has only the new key first gets an error that says what to do."""
    stolen, fresh = b"1" * 32, b"2" * 32
    old, new = derive_tenant_key(stolen, "default"), derive_tenant_key(fresh, "default")
    monkeypatch.setattr(hop_lab, "KEY", old)
    async with hop_lab.cluster(tmp_path, {}, names=("one",)) as before:
        token = await before.key("mine", admin=True)
    monkeypatch.setattr(hop_lab, "KEY", new)
    with pytest.raises(StateRefused) as refused:
        async with hop_lab.cluster(tmp_path, {}, names=("one",)):
            pass
    assert refused.value.code == "E-CLUSTER-KEY" and "toolway cluster trust" in refused.value.hint
    engine = open_engine(f"sqlite:///{tmp_path / 'record'}")
    try:
        planned = await take_over(engine, fresh)
        assert {each.action for each in planned} == {"delete"}  # nothing of the thief's is kept
        await take_over(engine, fresh, planned)
        async with hop_lab.cluster(tmp_path, {}, names=("one",)) as after:
            node = after.nodes[0]
            thief = Sealer(old, time.time)
            assert node.replica.api_keys.authenticate(token) is None
            assert node.replica.integrity.findings() == []
            credential = issue_node_credential(thief, "evil", node.id)
            assert NodeAuthenticator(node.id, node.replica.sealer).authenticate(credential) is None
            assert node.replica.member is not None
            await NodeStore(engine, Integrity(old)).join(replace(node.replica.member.info, id="evil"))
            assert [each.info.id for each in await node.replica.nodes.list_alive("default")] == [node.id]
            with pytest.raises(StateRefused):
                await ApiKeyTable(engine, Integrity(old)).add("default", "evil", {"id": "evil", "admin": True})
    finally:
        await engine.dispose()


# -- the certificate of a node ----------------------------------------------------------------------------------------


@pytest.mark.attack("A2-held-C3")
@pytest.mark.parametrize("answer", [b"{}", b'{"ok":true}', b'{"proof":"x"}'])
async def test_stolen_certificate_and_address_receive_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    """TLS hides calls from the network. That a process is the node is not shown by its certificate."""
    file = certificate(tmp_path / "stolen.pem", "localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    got = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                got.extend(data)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    address = f"https://localhost:{server.sockets[0].getsockname()[1]}"
    proofs = NodeProofs("own", Sealer(KEY, time.time), lambda: ("own", 1), lambda: "")
    bus = Bus("test", "own", lambda kind, body: None, lambda: None)
    known = Peers(bus, lambda to: "twn_canary", lambda id_: 1, proofs)
    try:
        peer = known.get("a-1", address)
        target = HttpTarget.parse(f"{address}/node")
        credential = HeaderBlock(b"authorization: Bearer twn_canary\r\n")
        with pytest.raises(HttpError) as refused:
            await peer.client.send("POST", target, [credential], b"secret-call").send_and_wait()
        assert refused.value.bytes_sent == 0
        assert b"GET " in got  # it was asked for its proof, over TLS
        assert b"canary" not in got and b"secret-call" not in got
    finally:
        await known.close()
        server.close()


# -- messages over NATS -----------------------------------------------------------------------------------------------


@pytest.mark.attack("A2-held-C4")
@needs_nats
async def test_recorded_message_counts_once_in_any_spelling() -> None:
    """Each message counts once: even with other characters that mean the same bytes, and for another tenant."""
    heard: list[tuple[str, Json]] = []
    recorded: list[bytes] = []
    buses = [
        Bus("test", name, lambda kind, body: heard.append((kind, body)), lambda: None, tenant, Sealer(key, time.time))
        for name, tenant, key in (("a", "t", KEY), ("b", "t", KEY), ("c", "other", b"o" * 32))
    ]

    async def record(message: Msg) -> None:
        recorded.append(message.data)

    async with nats_server() as server:
        for bus in buses:
            await bus.connect([server.url])
        stranger = await nats.connect(server.url)
        try:
            await stranger.subscribe("toolway.test.t.news.keys", cb=record)
            await stranger.flush()
            async with asyncio.timeout(60):
                while not heard:  # the other bus may not be subscribed yet
                    await buses[0].publish("hello", {})
                    await asyncio.sleep(0.05)
            await buses[0].publish("keys", {"revoked": "x"})
            await _until(lambda: bool(recorded) and ("keys", {"revoked": "x"}) in heard)
            text = recorded[0]
            last = bytes([text[-1] + 1]) if text[-1:] in b"ABCDEFGHIJKLMNOPQRSTUVWXYabcdefghijklmnopqrstuvwxy" else b"B"
            spellings = [text + b"=", text + b"\n", b"\n" + text, b" " + text, text[:4] + b"\r\n" + text[4:]]
            spellings += [text.replace(b"-", b"+").replace(b"_", b"/") + b"==", text[:-1] + last, text + b"AAAA", text]
            for each in spellings:
                await stranger.publish("toolway.test.t.news.keys", each)
                await stranger.publish("toolway.test.other.news.keys", each)
            await stranger.flush()
            await buses[0].publish("end", {})
            await _until(lambda: ("end", {}) in heard)
            assert [each for each in heard if each[0] != "hello"] == [("keys", {"revoked": "x"}), ("end", {})]
        finally:
            await stranger.close()
            for bus in buses:
                await bus.close()


async def _until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not what():
            await asyncio.sleep(0.01)


# -- a server in the place of PostgreSQL ------------------------------------------------------------------------------


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", len(body) + 4) + body


TLS_REQUEST = struct.pack(">II", 8, 80877103)
ACCEPTED = message(b"R", struct.pack(">I", 0)) + message(b"Z", b"I")
ANSWERS = {
    "another protocol": b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    "a message without end": b"R\x7f\xff\xff\xff",
    "an error without end": b"E\x7f\xff\xff\xff" + b"x" * 100_000,
    "let in, then noise": ACCEPTED + b"\x00" * 1000,
    "let in, then the end": ACCEPTED,
    "rows of another question": ACCEPTED + message(b"T", b"\x00\x00") + message(b"D", b"\x00\x00"),
}


class FakePostgres:
    def __init__(self, answer: bytes) -> None:
        self.got = bytearray()
        self.url = ""
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            self.got += await reader.read(65536)
            if bytes(self.got) == TLS_REQUEST:
                writer.write(b"N")
                self.got += await reader.read(65536)
            writer.write(self._answer)
            if self._answer is not ACCEPTED:
                while data := await reader.read(65536):
                    self.got += data
        writer.close()


@asynccontextmanager
async def fake_postgres(answer: bytes, sslmode: str) -> AsyncIterator[FakePostgres]:
    made = FakePostgres(answer)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    made.url = f"postgresql://user:canary@127.0.0.1:{port}/x?gssencmode=disable&sslmode={sslmode}"
    try:
        yield made
    finally:
        server.close()


@pytest.mark.attack("A2-held-C5")
@pytest.mark.parametrize("answer", ANSWERS)
async def test_malformed_database_answer_raises_an_error(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_class(), "answer_timeout_s", 0.5)
    monkeypatch.setattr("toolway.cluster.db.engine.PAUSE_GRACE_S", 0.5)
    async with fake_postgres(ANSWERS[answer], "disable") as database:
        engine = open_engine(database.url)
        try:
            async with asyncio.timeout(30):
                with pytest.raises((SQLAlchemyError, OSError)):
                    await NodeStore(engine, Integrity(KEY)).list_alive("default")
        finally:
            await engine.dispose()


@pytest.mark.attack("A2-held-C6")
@pytest.mark.parametrize("sslmode", ["require", "verify-full"])
async def test_database_password_is_not_sent_without_tls(sslmode: str) -> None:
    """With the option in the URL of the database, of which nothing is lost on the way to the driver."""
    async with fake_postgres(message(b"R", struct.pack(">I", 3)), sslmode) as database:
        engine = open_engine(database.url)
        try:
            with pytest.raises(SQLAlchemyError):
                await NodeStore(engine, Integrity(KEY)).list_alive("default")
        finally:
            await engine.dispose()
        assert database.got and b"canary" not in database.got
