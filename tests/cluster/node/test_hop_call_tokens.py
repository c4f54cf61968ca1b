"""What a node must show to bring a call, and what it opens with it: that call, once, and nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import nats
import pytest
from msgspec.structs import replace

from tests.cluster.node.hop_lab import KEY, TOKEN, Cluster, Node, cluster
from tests.cluster.node.nats_lab import RecordingSink
from tests.gateway.bridge_lab import EVERYTHING, META, MODERN, OLD_WORDS, pipe_entry
from tests.gateway.edge_lab import ROUTES
from tests.gateway.full_server import FullHttp
from toolway.cluster.nats_rpc.rpc_client import NatsRpc
from toolway.cluster.node_auth import (
    CallToken,
    issue_call_token,
    issue_node_credential,
    new_call_key,
    new_use_id,
)
from toolway.cluster.routing.call_cipher import CallCipher, ForwardedRequest
from toolway.gateway.mcp.errors import DENIED, MOVED, OUTCOME_UNKNOWN
from toolway.gateway.sealing import Sealer
from toolway.upstream.transport import JSONRPCError, TransportError

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("forgets"), OLD_WORDS]
Json = dict[str, Any]
CALL_KEY = new_call_key()
BY_HTTP = pytest.mark.parametrize("shared_nodes", ["http"], indirect=True)


def servers_with(url: str) -> Json:
    return {"web": {"url": url}, "full": pipe_entry("legacy")}


def right(nodes: Cluster) -> CallToken:
    """What would be taken, for a call of `web`."""
    held, sender = nodes.held("web"), nodes.other("web")
    place = held.instance
    who = ("key-1", "key:key-1", "call-1")
    own = {"sender": sender.id, "key": CALL_KEY, "use_id": new_use_id()}
    return CallToken(held.node, place.tenant, place.server, place.index, held.fence, *who, **own)


def sealed(what: CallToken, key: bytes = KEY, ago: float = 0.0) -> str:
    return issue_call_token(Sealer(key, lambda: time.time() - ago), what)


META_OF_A_CALL = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": EVERYTHING}
PARAMS: Json = {"name": "counter", "arguments": {}, "_meta": META_OF_A_CALL}


async def bring(nodes: Cluster, shown: str) -> Json:
    """An effect asked for by a node, with what it shows; the JSON-RPC answer, or nothing where it gets none."""
    owner, sender = nodes.owner("web"), nodes.other("web")
    if owner.replica.options.advertise_url:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": PARAMS}
        status, answer = await owner.bring(sender.credential_for(owner), shown, CALL_KEY, message)
        return answer if status == 200 else {}
    return await bring_by_nats(nodes, owner, shown)


async def bring_by_nats(nodes: Cluster, owner: Node, shown: str) -> Json:
    calls = NatsRpc((nodes.nats,), "", owner.replica.bus.subject_prefix, "stranger")
    assert owner.replica.member is not None and owner.replica.member.epoch is not None
    try:
        link = calls.create_transport(owner.id, owner.replica.member.epoch)
        await link.open(RecordingSink())
        cipher = CallCipher(bytes.fromhex(CALL_KEY))
        try:
            return {
                "result": await link.request(ForwardedRequest("tools/call", PARAMS, call_token=shown, cipher=cipher))
            }
        except JSONRPCError as exc:
            return {"error": {"code": exc.code, "data": exc.data}}
        except TransportError:  # no answer
            return {}
    finally:
        await calls.close()


UNANSWERED = 0  # no reply can be sealed without the key of the call
WRONG: dict[str, tuple[int, Callable[[Cluster], str]]] = {
    "nothing": (UNANSWERED, lambda nodes: ""),
    "junk": (UNANSWERED, lambda nodes: "junk"),
    "of another cluster": (UNANSWERED, lambda nodes: sealed(right(nodes), key=b"x" * 32)),
    "too old": (DENIED, lambda nodes: sealed(right(nodes), ago=16.0)),
    "another key": (DENIED, lambda nodes: sealed(replace(right(nodes), key=new_call_key()))),
    "changed": (UNANSWERED, lambda nodes: sealed(right(nodes))[:-2] + "AA"),
    "a credential": (
        UNANSWERED,
        lambda nodes: issue_node_credential(Sealer(KEY, time.time), "a", "b").removeprefix("twn_"),
    ),
    "for another node": (UNANSWERED, lambda nodes: sealed(replace(right(nodes), target_node=nodes.other("web").id))),
    "an old fence": (MOVED, lambda nodes: sealed(replace(right(nodes), fence=right(nodes).fence - 1))),
    "a fence to come": (MOVED, lambda nodes: sealed(replace(right(nodes), fence=right(nodes).fence + 1))),
    "another instance": (MOVED, lambda nodes: sealed(replace(right(nodes), index=1))),
    "another tenant": (MOVED, lambda nodes: sealed(replace(right(nodes), tenant="acme"))),
}


def _full(nodes: Cluster) -> CallToken:
    """Good, but for `full`, whichever node owns that."""
    return replace(right(nodes), server="full", fence=nodes.held("full").fence)


@pytest.mark.parametrize("what", WRONG)
async def test_invalid_call_token_is_rejected(nodes: Cluster, web: FullHttp, what: str) -> None:
    code, shown = WRONG[what]
    answer = await bring(nodes, shown(nodes))
    if what == "another key" and answer.keys() == set():
        code = UNANSWERED  # the answer is sealed with that key
    if code == UNANSWERED:
        assert answer == {}
    else:
        assert (answer["error"]["code"], answer["error"]["data"]["executed"]) == (code, "no")
    assert not web.server.stats.effects


@pytest.mark.attack("held-76")
async def test_call_token_is_accepted_once(nodes: Cluster, web: FullHttp) -> None:
    shown = sealed(right(nodes))
    found = await asyncio.gather(*(bring(nodes, shown) for _ in range(8)))
    assert sum("result" in answer for answer in found) == 1
    assert {answer["error"]["code"] for answer in found if "error" in answer} == {OUTCOME_UNKNOWN}
    assert (await bring(nodes, shown))["error"]["code"] == OUTCOME_UNKNOWN
    assert len(web.server.stats.effects) == 1


@BY_HTTP
async def test_call_token_grants_a_client_nothing(nodes: Cluster, web: FullHttp) -> None:
    """A client is identified by its own token; a call token adds nothing."""
    owner = nodes.owner("web")
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": PARAMS}
    for mine in (await nodes.key("mine"), TOKEN):
        assert await owner.bring(mine, sealed(right(nodes)), CALL_KEY, message) == (404, {})
    assert not web.server.stats.effects


async def test_callers_token_is_never_sent_to_another_node(nodes: Cluster) -> None:
    """Everything that nodes send each other is looked at, on the wire."""
    heard = bytearray()

    async def record_message(message: Any) -> None:
        heard.extend(message.subject.encode() + (message.reply or "").encode() + message.data)

    listener = await nats.connect(nodes.nats)
    try:
        await listener.subscribe(">", cb=record_message)
        await listener.flush()
        token = await nodes.key("mine")
        owner = nodes.owner("web")
        async with nodes.other("web").raw("server/web", token) as raw:
            answer = await raw.call("echo", {"text": "words of the call"})
            assert answer.result["content"][0]["text"] == "words of the call"
        await listener.flush()
    finally:
        await listener.close()
    sent = bytes(owner.tap.sent if owner.replica.options.advertise_url else heard)
    assert b"GET /node/link" in sent or b".call." in sent  # it was the right wire
    assert b"words of the call" not in sent
    for secret in (token, TOKEN, KEY.hex()):
        assert secret.encode() not in sent + bytes(heard)


# -- the credential of a node, over HTTP ------------------------------------------------------------------------------


@BY_HTTP
async def test_invalid_node_credential_gets_401(nodes: Cluster, web: FullHttp) -> None:
    owner, sender = nodes.owner("web"), nodes.other("web")
    ours = Sealer(KEY, time.time)
    wrong = {
        "for another node": sender.credential_for(sender),
        "of another cluster": issue_node_credential(Sealer(b"x" * 32, time.time), sender.id, owner.id),
        "too old": issue_node_credential(Sealer(KEY, lambda: time.time() - 25 * 3600), sender.id, owner.id),
        "a pass": "twn_" + sealed(right(nodes)),
        "without its prefix": sender.credential_for(owner).removeprefix("twn_"),
        "a session": "twn_" + ours.seal("session", [sender.id, owner.id], 60.0),
        "odd": "twn_" + ours.seal("node", {"to": owner.id}, 60.0),
        "nothing": "twn_",
    }
    for what, token in wrong.items():
        async with owner.raw("server/web", token) as raw:
            assert (await raw.http.post(owner.base + "/node", content=b"x")).status_code == 401, what
    assert not web.server.stats.effects


@BY_HTTP
@pytest.mark.attack("held-77")
async def test_node_credential_opens_the_node_route_only(nodes: Cluster, web: FullHttp) -> None:
    owner, sender = nodes.owner("web"), nodes.other("web")
    token = sender.credential_for(owner)
    more = [("GET", "/metrics"), ("GET", "/login/web"), ("POST", "/login/web"), ("DELETE", "/mcp/server/web")]
    async with owner.raw("", token) as raw:
        for method, path in (*ROUTES, *more):
            path = path.replace("server/a", "server/web")
            for session in (None, "a-session"):
                raw.session = session
                answer = await raw.http.request(method, owner.base + path, headers=raw.headers(), content=b"{}")
                assert answer.status_code in (400, 403, 404, 405), (method, path, answer.status_code)
                assert "result" not in answer.text
        raw.session = None
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "n", "version": "1"}}
        hello = {"jsonrpc": "2.0", "method": "initialize", "params": client}
        for path in ("/mcp/server/web", "/mcp"):
            begun = await raw.http.post(owner.base + path, json={**hello, "id": 1}, headers=raw.headers())
            assert begun.status_code == 403 and "mcp-session-id" not in begun.headers
    # Even a call without an effect needs a call token.
    async with owner.raw("server/web", token) as raw:
        for method in ("tools/list", "server/discover", "prompts/list", "subscriptions/listen"):
            asked = await raw.http.post(raw.url, json={"jsonrpc": "2.0", "id": 1, "method": method})
            assert asked.status_code == 403
    assert "result" in await bring(nodes, sealed(right(nodes))) and len(web.server.stats.effects) == 1


@BY_HTTP
async def test_call_reaching_the_wrong_process_is_not_executed_there(nodes: Cluster, web: FullHttp) -> None:
    """An address may lead to another gateway than it did: a balancer, a port that was given again."""
    owner, sender = nodes.owner("web"), nodes.other("web")
    owner.tap.cut()
    owner.tap.wrong = [sender.port] * 3
    async with sender.raw("server/web", TOKEN) as raw:
        assert (await raw.call("counter")).result["content"][0]["text"] == "1"
    assert len(web.server.stats.effects) == 1 and not owner.tap.wrong


# -- names ------------------------------------------------------------------------------------------------------------

FORKED = """
import os
from toolway.cluster.options import ClusterOptions
options = ClusterOptions(nats_urls=("nats://h",), database_url="d", tenant_key=b"k" * 32, node_name="same")
for _ in range(6):
    if os.fork() == 0:
        os.write(1, options.new_id().encode() + b"\\n")
        os._exit(0)
for _ in range(6):
    os.wait()
"""


def test_forked_processes_have_separate_node_ids() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.split())) == 6 and all(id.startswith("same-") for id in done.stdout.split())


@pytest.mark.parametrize("hidden", [True, False])
async def test_two_nodes_with_one_name_execute_each_call_once(tmp_path: Any, web: FullHttp, hidden: bool) -> None:
    async with FullHttp("legacy") as fake:
        servers = {f"s{number}": {"url": fake.url} for number in range(4)}
        names = ("same", "same")
        async with cluster(tmp_path, servers, names=names, hidden=names if hidden else ()) as made:
            one, two = made.nodes
            assert one.id != two.id and one.replica.bus.subject_prefix == two.replica.bus.subject_prefix

            async def call(node: Node, server: str) -> int:
                async with node.raw(f"server/{server}", TOKEN) as raw:
                    return int((await raw.call("counter")).result["content"][0]["text"])

            found = await asyncio.gather(*(call(node, server) for server in servers for node in made.nodes * 3))
            assert sorted(found) == list(range(1, 25)) and len(fake.server.stats.effects) == 24
