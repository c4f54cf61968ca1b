"""A client of the handshake era comes to another gateway with every request, and does not notice."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.cluster.node.hop_lab import TOKEN, Cluster, Node
from tests.gateway.bridge_lab import OLD_WORDS, Answer, Raw, events, pipe_entry, until
from tests.gateway.full_server import FullHttp
from toolway.cluster import sessions as shared
from toolway.cluster.node_auth import CallToken, issue_call_token, new_call_key, new_use_id
from toolway.gateway.mcp.errors import DENIED, MOVED, OUTCOME_UNKNOWN
from toolway.gateway.mcp.legacy_session import LegacySession

pytestmark = [pytest.mark.anyio, OLD_WORDS]
Json = dict[str, Any]


def servers_with(url: str) -> Json:
    return {"web": {"url": url}, "modern": pipe_entry("modern")}


class RoamingClient(Raw):
    """A session, wherever its client is at the moment."""

    def at(self, node: Node) -> RoamingClient:
        """The same client at this gateway from now on."""
        self.url = f"{node.base}/mcp/{self.url.partition('/mcp/')[2]}"
        return self


@asynccontextmanager
async def roaming_client(node: Node, endpoint: str = "server/web", token: str = TOKEN) -> AsyncIterator[RoamingClient]:
    async with node.raw(endpoint, token) as raw:
        found = RoamingClient(raw.http, raw.url)
        await found.initialize()
        yield found


def client_at(raw: RoamingClient, node: Node) -> RoamingClient:
    """Another connection of the same client, at this gateway."""
    other = RoamingClient(raw.http, raw.url).at(node)
    other.session, other.version, other.ids = raw.session, raw.version, raw.ids
    return other


async def ended(raw: RoamingClient) -> bool:
    return (await raw.request("ping")).status == 404


def call(name: str, arguments: Json | None = None, id_: str = "call") -> Json:
    params = {"name": name, "arguments": arguments or {}, "_meta": {"progressToken": "mine"}}
    return {"jsonrpc": "2.0", "id": id_, "method": "tools/call", "params": params}


async def test_session_continues_at_any_gateway(nodes: Cluster) -> None:
    for first, second in (nodes.nodes, nodes.nodes[::-1]):
        async with roaming_client(first) as raw:
            for node in (second, first, second):
                raw.at(node)
                assert (await raw.request("tools/list")).result["tools"]
                found = await raw.request("tools/call", {"name": "echo", "arguments": {"text": node.id}})
                assert found.result["content"][0]["text"] == node.id


@pytest.mark.parametrize("server", ["web", "modern"])
async def test_elicitation_answer_reaches_the_asking_gateway(nodes: Cluster, server: str) -> None:
    token = await nodes.key("asked")
    for asks, hears in (nodes.nodes, nodes.nodes[::-1]):
        async with roaming_client(asks, f"server/{server}", token) as raw:
            other = client_at(raw, hears)

            async def answer(message: Json, other: RoamingClient = other) -> None:
                if message.get("method") == "elicitation/create":
                    given = {"action": "accept", "content": {"name": "Ada"}}
                    reply = {"jsonrpc": "2.0", "id": message["id"], "result": given}
                    assert (await other.post(reply, other.headers())).status == 202

            async with asyncio.timeout(20):
                found = await raw.request("tools/call", {"name": "elicit", "arguments": {"rounds": 2}}, answer)
            assert found.result["content"][0]["text"].count("Ada") == 2


async def test_elicitation_answer_of_another_session_is_ignored(nodes: Cluster) -> None:
    mine, yours = await nodes.key("mine"), await nodes.key("yours")
    asks, hears = nodes.nodes
    async with roaming_client(asks, token=mine) as raw, roaming_client(hears, token=yours) as stranger:

        async def answer(message: Json) -> None:
            if message.get("method") == "elicitation/create":
                for who, name in ((stranger, "Eve"), (client_at(raw, hears), "Ada")):
                    given = {"action": "accept", "content": {"name": name}}
                    await who.post({"jsonrpc": "2.0", "id": message["id"], "result": given}, who.headers())

        async with asyncio.timeout(20):
            found = await raw.request("tools/call", {"name": "elicit"}, answer)
        assert "Ada" in found.result["content"][0]["text"] and "Eve" not in found.result["content"][0]["text"]


@pytest.mark.attack("W2")
async def test_dashboard_logout_applies_at_every_gateway(nodes: Cluster) -> None:
    here, there = nodes.nodes
    token = await nodes.key("an administrator", admin=True)
    async with here.raw() as raw:
        opened = await raw.http.post(f"{here.base}/dashboard/session", headers={"authorization": f"Bearer {token}"})
        sealed = opened.headers["set-cookie"].partition(";")[0].partition("=")[2]
        page = {"x-toolway-page": opened.json()["page"]}

        async def status(node: Node) -> int:
            cookie = {"cookie": f"toolway-{node.base.rpartition(':')[2]}={sealed}"}
            return (await raw.http.get(f"{node.base}/admin/servers", headers=page | cookie)).status_code

        assert (await status(here), await status(there)) == (200, 200)
        assert (await raw.http.delete(f"{here.base}/dashboard/session", headers=page)).status_code == 204
        assert await status(here) == 401
        digest = hashlib.sha256(page["x-toolway-page"].encode()).hexdigest()
        await until(lambda: digest in there.gateway.ended_sessions)
        assert await status(there) == 401
        # A node that was away reads it in the database.
        there.gateway.ended_sessions._until.clear()
        assert there.replica.sessions is not None
        there.replica.sessions.on_gap()
        await until(lambda: digest in there.gateway.ended_sessions)
        assert await status(there) == 401


async def test_log_level_applies_at_every_gateway(nodes: Cluster) -> None:
    here, there = nodes.nodes

    async def levels(raw: RoamingClient) -> list[str]:
        said = (await raw.request("tools/call", {"name": "log"})).messages[:-1]
        return [each["params"]["level"] for each in said]

    async with roaming_client(here, "server/modern") as raw:
        other = client_at(raw, there)
        await other.request("ping")  # it was there before
        assert (await raw.request("logging/setLevel", {"level": "error"})).result == {}
        await until_level(other, there, "error")
        assert await levels(other) == ["error"] and await levels(raw) == ["error"]
        await other.request("logging/setLevel", {"level": "debug"})
        await until_level(raw, here, "debug")
        assert await levels(raw) == ["debug", "info", "error"]


def find_session(node: Node, raw: RoamingClient) -> LegacySession | None:
    """What is of the session at a gateway."""
    return node.gateway.legacy_sessions._sessions.get(raw.session or "")


async def until_level(raw: RoamingClient, node: Node, level: str) -> None:
    """News take a moment."""
    await until(lambda: (found := find_session(node, raw)) is not None and found.log_level == level)


async def until_quiet(node: Node) -> None:
    await until(lambda: not node.gateway.legacy_sessions.has_active_requests)


class Stream:
    """The open stream of a session."""

    def __init__(self, raw: RoamingClient) -> None:
        self._raw = raw
        self.heard: list[Json] = []
        self.over = False
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async with self._raw.http.stream("GET", self._raw.url, headers=self._raw.headers()) as response:
            assert response.status_code == 200
            async for _, message in events(response):
                self.heard.append(message)
        self.over = True

    def updated(self) -> list[str]:
        return [each["params"]["uri"] for each in self.heard if each["method"] == "notifications/resources/updated"]

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def until_listens(node: Node, raw: RoamingClient) -> None:
    def listens() -> bool:
        found = find_session(node, raw)
        return found is not None and found.stream is not None and found.subscriber is not None

    await until(listens)


async def until_wants(node: Node, raw: RoamingClient, uris: set[str]) -> None:
    await until(lambda: (found := find_session(node, raw)) is not None and set(found.subscribed_uris) == uris)


@pytest.mark.parametrize("first", ["the stream", "the wish"])
async def test_subscription_update_arrives_where_the_stream_is(nodes: Cluster, first: str) -> None:
    uri = "full://ask"
    for wishes, hears in (nodes.nodes, nodes.nodes[::-1]):
        async with roaming_client(wishes) as raw:
            other = client_at(raw, hears)
            if first == "the wish":
                await raw.request("resources/subscribe", {"uri": uri})
            stream = Stream(other)
            try:
                await until_listens(hears, other)
                if first == "the stream":
                    await raw.request("resources/subscribe", {"uri": uri})

                async def touched(raw: RoamingClient = raw, stream: Stream = stream) -> bool:
                    await raw.request("tools/call", {"name": "touch", "arguments": {"uri": uri}})
                    return bool(stream.updated())

                async with asyncio.timeout(20):
                    while not await touched():
                        await asyncio.sleep(0.1)
                assert set(stream.updated()) == {uri}
                await raw.request("resources/unsubscribe", {"uri": uri})
                await until_wants(hears, raw, set())
                await asyncio.sleep(0.3)  # what was on its way
                before = len(stream.updated())
                await touched()
                await asyncio.sleep(0.3)
                assert len(stream.updated()) == before
            finally:
                await stream.close()


async def test_concurrent_subscriptions_at_several_gateways_are_kept(nodes: Cluster) -> None:
    here, there = nodes.nodes
    async with roaming_client(here) as raw:
        other = client_at(raw, there)
        found = (await other.request("resources/list")).result["resources"]
        mine, yours = [resource["uri"] for resource in found[:2]]
        both = (
            raw.request("resources/subscribe", {"uri": mine}),
            other.request("resources/subscribe", {"uri": yours}),
        )
        await asyncio.gather(*both)
        for node in nodes.nodes:
            await until_wants(node, raw, {mine, yours})


async def test_newest_stream_replaces_the_one_at_another_gateway(nodes: Cluster) -> None:
    here, there = nodes.nodes
    async with roaming_client(here) as raw:
        old = Stream(raw)
        await until_listens(here, raw)
        new = Stream(client_at(raw, there))
        try:
            await until_listens(there, raw)
            await until(lambda: old.over)
            assert not new.over
        finally:
            await old.close()
            await new.close()


@pytest.mark.parametrize("seen", [True, False])
async def test_ended_session_is_over_at_every_gateway(nodes: Cluster, seen: bool) -> None:
    here, there = nodes.nodes
    async with roaming_client(here) as raw:
        other = client_at(raw, there)
        if seen:
            assert not await ended(other)
        assert (await raw.http.delete(raw.url, headers=raw.headers())).status_code == 204
        async with asyncio.timeout(10):
            while not await ended(other):
                await asyncio.sleep(0.02)
        assert await ended(raw)
        assert (await other.http.delete(other.url, headers=other.headers())).status_code == 404


async def test_missed_session_end_is_read_from_the_database(nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """No messages arrive, and the gateway knows that it gets none."""
    here, there = nodes.nodes
    assert there.replica.sessions is not None
    monkeypatch.setitem(there.replica.change_feed._message_handlers, shared.SESSION_MESSAGE_KIND, lambda news: None)
    async with roaming_client(here) as raw:
        other = client_at(raw, there)
        assert not await ended(other)
        await raw.http.delete(raw.url, headers=raw.headers())
        assert not await ended(other)  # no message
        there.replica.sessions.on_gap()
        assert await ended(other)


async def test_sessions_continue_while_the_database_is_down(nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*given: Any) -> Any:
        raise OSError("no record")

    here, there = nodes.nodes
    for node in nodes.nodes:
        assert node.replica.sessions is not None
        monkeypatch.setattr(node.replica.sessions._store, "load_many", fails)
        monkeypatch.setattr(node.replica.sessions._store, "update", fails)
    async with roaming_client(here, "server/modern") as raw:
        assert not await ended(client_at(raw, there))
        assert (await raw.request("logging/setLevel", {"level": "error"})).result == {}
        monkeypatch.setattr(there.replica.sessions, "_database_retry_at", 0.0)


async def test_request_is_cancelled_from_another_gateway(nodes: Cluster, web: FullHttp) -> None:
    here, there = nodes.nodes
    web.server.stats.cancelled.clear()
    async with roaming_client(here) as raw:
        before = web.server.stats.calls.get("hold", 0)
        held = asyncio.create_task(raw.post(call("hold"), raw.headers()))
        await until(lambda: web.server.stats.calls.get("hold", 0) > before)
        other = client_at(raw, there)
        notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "call"}}
        assert (await other.post(notice, other.headers())).status == 202
        async with asyncio.timeout(10):
            found: Answer = await held
        assert not found.messages
        await until(lambda: web.server.stats.cancelled)


async def break_off(raw: RoamingClient, name: str, arguments: Json) -> str:
    """Call, and leave after the first event; its id."""
    async with raw.http.stream(
        "POST", raw.url, content=json.dumps(call(name, arguments)), headers=raw.headers()
    ) as got:
        async for id_, _ in events(got):
            assert id_ is not None
            return id_
    raise AssertionError("nothing came")


async def resumed(raw: RoamingClient, last: str) -> list[Json]:
    fields = {**raw.headers(), "last-event-id": last}
    async with asyncio.timeout(30), raw.http.stream("GET", raw.url, headers=fields) as response:
        assert response.status_code == 200
        return [message async for _, message in events(response)]


@pytest.mark.parametrize("when", ["while it runs", "after its end"])
async def test_broken_stream_resumes_at_another_gateway(nodes: Cluster, when: str) -> None:
    for here, there in (nodes.nodes, nodes.nodes[::-1]):
        async with roaming_client(here) as raw:
            last = await break_off(raw, "progress", {"n": 4, "seconds": 0.2})
            if when == "after its end":
                await until_quiet(here)
            rest = await resumed(client_at(raw, there), last)
            assert [each["params"]["progress"] for each in rest[:-1]] == [2, 3, 4]
            assert rest[-1]["id"] == "call" and rest[-1]["result"]["content"][0]["text"] == "4 steps"


async def test_stream_resumes_only_for_its_own_session(nodes: Cluster) -> None:
    here, there = nodes.nodes
    async with roaming_client(here) as raw, roaming_client(there) as stranger:
        last = await break_off(raw, "progress", {"n": 2, "seconds": 0.1})
        await until_quiet(here)
        for who, event in ((stranger, last), (client_at(raw, there), "0badcafe.1-1"), (client_at(raw, there), "x.y-z")):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await resumed(who, event)
        assert (await resumed(client_at(raw, there), last))[-1]["id"] == "call"


async def test_large_answer_is_resumed_whole(nodes: Cluster) -> None:
    """Larger than what NATS takes at once, and than what is passed on in notes."""
    here, there = nodes.nodes
    async with roaming_client(here) as raw:
        await raw.request("ping")
        session = find_session(here, raw)
        assert session is not None
        tape = session.replay_buffers.create()
        text = "ä" * 500_000
        tape.append(json.dumps({"jsonrpc": "2.0", "id": "call", "result": {"text": text}}).encode(), last=True)
        found = await resumed(client_at(raw, there), f"{tape.name}-0")
        assert [each["id"] for each in found] == ["call"] and found[0]["result"]["text"] == text


async def test_message_posted_elsewhere_reaches_its_sse_stream(nodes: Cluster) -> None:
    """`/sse` of 2024-11-05."""
    here, there = nodes.nodes
    mine, yours = await nodes.key("mine"), await nodes.key("yours")
    async with here.raw("", mine) as raw, there.raw("", yours) as stranger:
        async with raw.http.stream("GET", f"{here.base}/sse", headers={"accept": "text/event-stream"}) as response:
            lines = response.aiter_lines()
            path = (await _data(lines)).strip()

            async def post(who: Raw, node: Node, body: Json) -> int:
                sent = await who.http.post(f"{node.base}{path}", json=body, headers=who.headers())
                return int(sent.status_code)

            hello = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
            for number, node in enumerate((there, here, there)):
                body = {"jsonrpc": "2.0", "id": number, "method": "initialize", "params": hello}
                assert await post(raw, node, body) == 202
                assert json.loads(await _data(lines))["id"] == number
            assert await post(raw, there, call("web__echo", {"text": "far"})) == 202
            assert json.loads(await _data(lines))["result"]["content"][0]["text"] == "far"
            for node in nodes.nodes:
                assert await post(stranger, node, call("web__echo")) == 404
        await until(lambda: not here.gateway.legacy_sse._streams)
        for node in nodes.nodes:
            assert await post(raw, node, call("web__echo")) == 404


async def _data(lines: AsyncIterator[str]) -> str:
    async with asyncio.timeout(20):
        async for line in lines:
            if line.startswith("data:"):
                return line[5:]
    raise AssertionError("the stream ended")


@pytest.mark.parametrize("shared_nodes", ["http"], indirect=True)
async def test_node_request_is_accepted_from_nodes_only_and_once(nodes: Cluster) -> None:
    here, there = nodes.nodes
    assert here.replica.member is not None and here.replica.member.epoch is not None
    key, fence = new_call_key(), here.replica.member.epoch
    held = nodes.held("web")

    def shown(node: str, server: str, fence: int) -> str:
        token = CallToken(
            node, "default", server, 0, fence, "local", "", "", sender=there.id, key=key, use_id=new_use_id()
        )
        return issue_call_token(here.replica.sealer, token)

    body: Json = {"jsonrpc": "2.0", "id": 1, "method": "toolway/node-request", "params": {"do": "answer"}}

    async def bring(token: str, shown: str) -> tuple[int, Json]:
        return await here.bring(token, shown, key, body)

    token, once = there.credential_for(here), shown(here.id, "", fence)
    assert await bring(token, once) == (200, {"jsonrpc": "2.0", "id": 1, "result": {}})
    assert (await bring(token, once))[1]["error"]["code"] == OUTCOME_UNKNOWN
    for wrong, code in (
        (shown(here.id, "", fence + 1), MOVED),
        (shown(here.id, "web", held.fence), DENIED if held.node == here.id else MOVED),
    ):
        assert (await bring(token, wrong))[1]["error"]["code"] == code
    for stranger in ("", "junk", shown(there.id, "", fence)):
        assert (await bring(token, stranger))[0] == 403
    assert (await bring(TOKEN, shown(here.id, "", fence)))[0] == 404
