"""Attacks from the network between the nodes of a cluster: NATS subjects, the addresses of nodes, HTTP in between.

Two nodes: one is called over HTTP, the other over NATS, by each other. Servers are owned by both of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.cluster.nats_server import program
from tests.cluster.node.hop_lab import TOKEN, Cluster, Node, cluster
from tests.cluster.node.http_tap import tap
from tests.gateway.bridge_lab import OLD_WORDS, Answer
from tests.gateway.full_server import FullHttp
from toolway.cluster.node_auth import (
    CALL_TOKEN_LIFETIME_S,
    MAX_CLOCK_SKEW_S,
    CallToken,
    CallTokenVerifier,
    OpenedCall,
    issue_call_token,
    new_call_key,
    new_use_id,
)
from toolway.cluster.options import Flags, read_options
from toolway.cluster.routing.call_cipher import CallCipher, join_request
from toolway.errors import ConfigError
from toolway.gateway.sealing import Sealer

pytestmark = [
    pytest.mark.anyio,
    OLD_WORDS,
    pytest.mark.skipif(program() is None, reason="nats-server is not installed"),
]
# A server for each test, because an attack opens its circuit breaker. By the node that owns it.
SERVERS = {node: [f"{node}-{number}" for number in range(14)] for node in ("one", "two")}
SECRET = "a-secret-argument"
FORGED = b"FORGED-ANSWER"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def web() -> AsyncIterator[FullHttp]:
    made = FullHttp("legacy")
    async with made:
        yield made


@pytest.fixture(scope="module")
async def shared(web: FullHttp, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    servers = {name: {"url": web.url, "nodeLabels": [node]} for node, names in SERVERS.items() for name in names}
    async with cluster(tmp_path_factory.mktemp("cluster"), servers, hidden=("two",)) as made:
        yield made


@pytest.fixture
async def nodes(shared: Cluster, web: FullHttp) -> Cluster:
    await shared.settle()
    web.server.stats.effects.clear()
    return shared


@pytest.fixture
async def foreign_client(nodes: Cluster) -> AsyncIterator[Client]:
    """A NATS client that is not a node."""
    client = await nats.connect(nodes.nats)
    yield client
    await client.close()


def server_of(nodes: Cluster, name: str) -> tuple[str, Node, Node]:
    """A server that the node of this name owns and no test used, that node, and the other one."""
    server = SERVERS[name].pop()
    return server, nodes.owner(server), nodes.other(server)


def over_nats(nodes: Cluster) -> tuple[str, Node, Node]:
    return server_of(nodes, "two")


def over_http(nodes: Cluster) -> tuple[str, Node, Node]:
    return server_of(nodes, "one")


def call_subject(owner: Node) -> str:
    assert owner.replica.member is not None
    return f"{owner.replica.bus.subject_prefix}.call.{owner.id}.{owner.replica.member.epoch}"


async def call(node: Node, server: str, tool: str, arguments: dict[str, Any] | None = None, ms: int = 5000) -> Answer:
    async with node.raw(f"server/{server}", TOKEN) as raw:
        return await raw.call(tool, arguments, meta={"toolway/timeoutMs": ms})


def text_of(answer: Answer) -> str:
    return str(answer.result["content"][0]["text"])


# -- over NATS --------------------------------------------------------------------------------------------------------


@pytest.mark.attack("B5")
@pytest.mark.parametrize("change", ["words", "a bit"])
async def test_altered_call_is_not_executed(nodes: Cluster, web: FullHttp, foreign_client: Client, change: str) -> None:
    server, owner, sender = over_nats(nodes)
    subject, taken = call_subject(owner), asyncio.Event()

    async def alter(message: Msg) -> None:
        """Take the call before its owner, and hand it on with other arguments."""
        if not message.data.startswith((b"Q", b"M")):
            return
        data = message.data.replace(b'"call":"asked"', b'"call":"other"')
        if change == "a bit":
            data = data[:-1] + bytes([data[-1] ^ 1])
        taken.set()
        await foreign_client.publish(subject, data, message.reply)

    joined = await foreign_client.subscribe(subject, "owner", alter)
    await foreign_client.flush()
    try:
        answer = await call(sender, server, "counter", {"call": "asked"})
        for _ in range(40):
            if taken.is_set():
                break
            answer = await call(sender, server, "counter", {"call": "asked"})
        assert taken.is_set()
    finally:
        await joined.unsubscribe()
        await foreign_client.flush()
    assert not [effect for effect in web.server.stats.effects if "other" in str(effect)]
    if "error" in answer.last:
        assert answer.error["data"]["executed"] in ("no", "unknown")


@pytest.mark.attack("B5")
async def test_forged_answer_is_ignored(nodes: Cluster, foreign_client: Client) -> None:
    server, owner, sender = over_nats(nodes)

    async def forge(message: Msg) -> None:
        id_ = message.reply.rpartition(".")[2]
        if id_.isdigit():
            result = {"content": [{"type": "text", "text": FORGED.decode()}], "resultType": "complete"}
            body = json.dumps({"jsonrpc": "2.0", "id": int(id_), "result": result}).encode()
            for frame in (body, b"S" + body, b"N" + body, b"P%d\n%b" % (len(body), body)):
                await foreign_client.publish(message.reply, frame)

    await foreign_client.subscribe(call_subject(owner), cb=forge)
    await foreign_client.flush()
    for _ in range(5):
        assert text_of(await call(sender, server, "sleep", {"seconds": 0.1})) == "slept 0.1 s"


@pytest.mark.attack("B5")
async def test_replayed_answer_of_another_call_is_ignored(nodes: Cluster, foreign_client: Client) -> None:
    server, owner, sender = over_nats(nodes)
    answers: list[bytes] = []

    async def record(message: Msg) -> None:
        answers.append(message.data)

    async def replay(message: Msg) -> None:
        for frame in answers[:20]:
            await foreign_client.publish(message.reply, frame)

    recording = await foreign_client.subscribe(f"{owner.replica.bus.subject_prefix}.reply.>", cb=record)
    await foreign_client.flush()
    assert text_of(await call(sender, server, "echo", {"text": "first"})) == "first"
    await foreign_client.flush()
    assert answers
    await recording.unsubscribe()
    await foreign_client.subscribe(call_subject(owner), cb=replay)
    await foreign_client.flush()
    for _ in range(3):
        assert text_of(await call(sender, server, "sleep", {"seconds": 0.1})) == "slept 0.1 s"


@pytest.mark.attack("B5")
async def test_arguments_and_results_are_encrypted_between_nodes(nodes: Cluster, foreign_client: Client) -> None:
    heard = bytearray()

    async def record_message(message: Msg) -> None:
        heard.extend(message.subject.encode() + (message.reply or "").encode() + message.data)

    await foreign_client.subscribe(">", cb=record_message)
    await foreign_client.flush()
    for server, _, sender in (over_nats(nodes), over_http(nodes)):
        assert text_of(await call(sender, server, "echo", {"text": SECRET})) == SECRET
    await foreign_client.flush()
    _, by_http, _ = over_http(nodes)
    on_the_way = bytes(heard + by_http.tap.sent + by_http.tap.answered)
    assert b".call." in on_the_way and b"Upgrade: toolway" in on_the_way  # they were the right wires
    for secret in (SECRET.encode(), b"echo", TOKEN.encode()):
        assert secret not in on_the_way


@pytest.mark.attack("B5")
async def test_forged_no_responder_message_does_not_repeat_a_call(
    nodes: Cluster, web: FullHttp, foreign_client: Client
) -> None:
    server, owner, sender = over_nats(nodes)

    async def deny(message: Msg) -> None:
        await foreign_client.publish(message.reply, b"", headers={"Status": "503"})

    denying = await foreign_client.subscribe(call_subject(owner), cb=deny)
    await foreign_client.flush()
    answers = [await call(sender, server, "counter", {"call": f"c{number}"}) for number in range(3)]
    await denying.unsubscribe()
    done = [str(effect) for effect in web.server.stats.effects]
    assert len(done) == len(set(done)) <= 3
    for answer in answers:
        if "error" in answer.last:
            assert answer.error["data"]["executed"] == "unknown"


# -- over HTTP --------------------------------------------------------------------------------------------------------


class Impostor:
    """Process at the address of a node that records requests and sends the given answers."""

    def __init__(self, answer: bytes) -> None:
        self.port = 0
        self.got = bytearray()
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                self.got += data
                writer.write(self._answer)
        writer.close()


@asynccontextmanager
async def impostor(body: bytes = b'{"ok":true}') -> AsyncIterator[Impostor]:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    made = Impostor(head + body)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


@asynccontextmanager
async def redirected_to(node: Node, port: int) -> AsyncIterator[None]:
    """While open, all connections to a node's address end at another port."""
    node.tap.leads_to, before = port, node.tap.leads_to
    node.tap.cut()
    try:
        yield
    finally:
        node.tap.leads_to = before
        node.tap.cut()


def forget_peers(node: Node) -> None:
    """As if the node had just started: it has no connection to another one, and avoids none."""
    node.replica.context.peers._by_id.clear()


def check_learned_nothing(got: bytes) -> None:
    assert got  # it was asked
    for secret in (b"authorization", b"twn_", b"post ", SECRET.encode(), b"counter"):
        assert secret not in got.lower()


@pytest.mark.attack("B4")
async def test_process_at_a_former_node_address_learns_no_call(nodes: Cluster, web: FullHttp) -> None:
    server, owner, sender = over_http(nodes)
    assert (await call(sender, server, "echo", {"text": "before"})).result
    async with impostor() as there, redirected_to(owner, there.port):
        refused = await call(sender, server, "counter", {"call": SECRET}, ms=600)
        assert refused.error["data"]["executed"] == "no"
        check_learned_nothing(bytes(there.got))
    forget_peers(sender)
    assert not web.server.stats.effects
    assert text_of(await call(sender, server, "echo", {"text": "after"})) == "after"


@pytest.mark.attack("B4")
@pytest.mark.parametrize("passes_on", [False, True])
async def test_process_at_a_planted_address_learns_no_call(
    nodes: Cluster, web: FullHttp, monkeypatch: pytest.MonkeyPatch, passes_on: bool
) -> None:
    """Even if the challenge is passed on to the node itself: its proof names its own address."""
    server, owner, sender = over_http(nodes)
    context = sender.replica.context
    get_node = context.get_node
    async with tap() as mine, impostor() as there:
        mine.leads_to = owner.port if passes_on else there.port

        def rewritten(id_: str) -> Any:
            found = get_node(id_)
            address = f"http://127.0.0.1:{mine.port}"
            return found and replace(found, info=replace(found.info, address=address))

        monkeypatch.setattr(context, "get_node", rewritten)
        forget_peers(sender)
        refused = await call(sender, server, "counter", {"call": SECRET}, ms=600)
        assert refused.error["data"]["executed"] == "no"
        check_learned_nothing(bytes(mine.sent))
    monkeypatch.undo()
    forget_peers(sender)
    assert not web.server.stats.effects
    assert text_of(await call(sender, server, "echo", {"text": "after"})) == "after"


class TamperingProxy:
    """Attacker between two nodes that forwards everything, but changes answers to calls."""

    def __init__(self, port: int, change: Callable[[bytes], bytes]) -> None:
        self.port = 0
        self._behind = port
        self._change = change

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._behind)
        with suppress(OSError):
            while request := await reader.read(65536):
                back.write(request)
                answer = await there.read(65536)
                writer.write(self._change(answer) if request.startswith(b"POST") else answer)
        back.close()
        writer.close()


@asynccontextmanager
async def between(node: Node, change: Callable[[bytes], bytes]) -> AsyncIterator[None]:
    made = TamperingProxy(node.port, change)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    try:
        async with redirected_to(node, server.sockets[0].getsockname()[1]):
            yield
    finally:
        server.close()


def response(status: bytes, body: bytes, kind: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\nretry-after: 0\r\ncontent-length: %d\r\n\r\n"
    return head % (status, kind, len(body)) + body


RESULT = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"%b"}],"resultType":"complete"}}' % FORGED
CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "another answer": lambda answer: response(b"200 OK", RESULT),
    "another answer, as if sealed": lambda answer: response(b"200 OK", RESULT, b"application/octet-stream"),
    "a changed bit": lambda answer: answer[:-1] + bytes([answer[-1] ^ 1]),
    "not started": lambda answer: response(b"503 Service Unavailable", b'{"error":{}}'),
    "not let in": lambda answer: response(b"401 Unauthorized", b"{}"),
    "not here": lambda answer: response(
        b"200 OK", b'{"jsonrpc":"2.0","id":1,"error":{"code":-31016,"message":"moved","data":{"executed":"no"}}}'
    ),
}


@pytest.mark.attack("B5")
@pytest.mark.parametrize("what", CHANGES)
async def test_altered_answer_is_unknown_and_the_call_not_repeated(nodes: Cluster, web: FullHttp, what: str) -> None:
    server, owner, sender = over_http(nodes)
    async with between(owner, CHANGES[what]):
        answer = await call(sender, server, "counter", {"call": "once"}, ms=3000)
    assert FORGED.decode() not in json.dumps(answer.last)
    assert len(web.server.stats.effects) == 1
    assert answer.error["data"]["executed"] == "unknown"


@pytest.mark.attack("B5")
@pytest.mark.parametrize("over_link", [False, True])
async def test_recorded_call_is_not_executed_again(nodes: Cluster, web: FullHttp, over_link: bool) -> None:
    server, owner, sender = over_http(nodes)
    http = owner.gateway.http_server
    accept = http.accept_upgrade
    http.accept_upgrade = accept if over_link else None
    forget_peers(sender)
    owner.tap.sent.clear()
    owner.tap.cut()
    try:
        assert (await call(sender, server, "counter", {"call": "once"})).result
    finally:
        http.accept_upgrade = accept
        forget_peers(sender)
    recorded = bytes(owner.tap.sent)
    sent = recorded[recorded.index(b"GET " if over_link else b"POST ") :]
    for data in (sent, sent[:-1] + bytes([sent[-1] ^ 1])):
        reader, writer = await asyncio.open_connection("127.0.0.1", owner.port)
        writer.write(data)
        answer = await reader.read(65536)
        if over_link:
            while await reader.read(65536):
                pass  # the node ends the connection: the records were sealed for another link
        else:
            assert answer.startswith(b"HTTP/1.1 200 OK")  # it is sealed, and says that it was used
        writer.close()
    assert len(web.server.stats.effects) == 1


# -- call tokens ------------------------------------------------------------------------------------------------------


class Clocks:
    """A node that receives calls, and one that sends them, whose clock is ahead."""

    def __init__(self, ahead: float) -> None:
        self.time = 1000.0
        self.sender = Sealer(b"k" * 32, lambda: self.time + ahead)
        own = Sealer(b"k" * 32, lambda: self.time)
        self.verifier = CallTokenVerifier(
            "owner", own, lambda tenant, server, index: 1, lambda: self.time, lambda: self.time
        )

    def new_call(self) -> bytes:
        key = new_call_key()
        content = CallToken("owner", "t", "s", 0, 1, "p", "c", "id", key=key, use_id=new_use_id())
        sealed = CallCipher(bytes.fromhex(key)).seal_request(b"{}")
        return join_request(issue_call_token(self.sender, content), sealed)

    def show(self, data: bytes) -> str | None:
        opened = self.verifier.open_call(data)
        assert isinstance(opened, OpenedCall)
        return opened.rejection


@pytest.mark.attack("W7")
@pytest.mark.parametrize("ahead", [-2.0, 0.0, 2.0, MAX_CLOCK_SKEW_S - 0.1])
@pytest.mark.parametrize("start", [0.0, 7.0, 14.9, 19.9])
def test_call_token_is_used_once_despite_clock_differences(ahead: float, start: float) -> None:
    clocks = Clocks(ahead)
    clocks.time += start
    data = clocks.new_call()
    assert clocks.show(data) is None
    while clocks.time < 1000.0 + start + 3 * (CALL_TOKEN_LIFETIME_S + MAX_CLOCK_SKEW_S):
        assert clocks.show(clocks.new_call()) is None  # others are accepted, and make it forget the oldest
        assert clocks.show(data) in ("replayed", "expired")
        clocks.time += 0.7


@pytest.mark.attack("W7")
def test_call_token_too_far_in_the_future_is_rejected() -> None:
    clocks = Clocks(MAX_CLOCK_SKEW_S + 0.1)
    assert clocks.show(clocks.new_call()) == "ahead"


# -- NATS without authentication --------------------------------------------------------------------------------------

ENVIRON = {"TOOLWAY_CLUSTER_KEY": "0" * 64, "TOOLWAY_DATABASE": "sqlite:////tmp/record"}


@pytest.mark.attack("B5")
@pytest.mark.parametrize(
    "urls", ["nats://nats.example:4222", "nats://10.0.0.7:4222", "nats://127.0.0.1:4222,tls://nats.example:4222"]
)
def test_remote_nats_without_credentials_is_rejected(urls: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_options(Flags(cluster=urls), ENVIRON)
    assert refused.value.code == "E-NATS-AUTH" and "--insecure-nats" in refused.value.hint
    assert refused.value.detail


@pytest.mark.parametrize(
    "urls", ["nats://127.0.0.1:4222", "nats://localhost:4222", "nats://[::1]:4222", "nats://u:p@a:4222", "nats://t@a:1"]
)
def test_local_nats_or_nats_with_credentials_is_accepted(urls: str) -> None:
    assert read_options(Flags(cluster=urls), ENVIRON) is not None


def test_insecure_nats_flag_allows_nats_without_credentials() -> None:
    assert read_options(Flags(cluster="nats://nats.example", insecure_nats=True), ENVIRON) is not None
    assert read_options(Flags(cluster="nats://nats.example"), {**ENVIRON, "TOOLWAY_INSECURE_NATS": "1"}) is not None
