"""A call at a gateway that does not own its server is what it is at the owner: who asks, what comes first, how
long it may take, how it ends. Over HTTP, and over NATS where the owner has no address."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.cluster.node.hop_lab import TOKEN, Cluster
from tests.gateway.bridge_lab import OLD_WORDS, Answer, pipe_entry, until
from tests.gateway.full_server import FullHttp
from tests.timing import within
from toolway.events import CallFinished
from toolway.gateway.mcp.errors import KEY_MISMATCH, OUTCOME_UNKNOWN, UNAVAILABLE

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("forgets"), OLD_WORDS]
Json = dict[str, Any]
BROKEN = ("broken",)
WITHIN = 10_000  # milliseconds: calls do not wait for a server that asks for a longer pause


def servers_with(url: str) -> Json:
    return {
        "full": pipe_entry("legacy"),
        "modern": pipe_entry("modern"),
        "broken": {"command": "/nonexistent/server"},
        "web": {"url": url},
        "busy": {"url": url},
    }


async def both(nodes: Cluster, server: str, token: str, name: str, arguments: Json | None = None) -> list[Answer]:
    """The same call at the owner of a server, and at another gateway."""
    found = []
    for node in (nodes.owner(server), nodes.other(server)):
        async with node.raw(f"server/{server}", token) as raw:
            found.append(await raw.call(name, arguments, meta={"toolway/timeoutMs": WITHIN}))
    return found


def content_of(answer: Answer) -> Json:
    found: Json = answer.result["structuredContent"]
    return found


# -- the caller------------------------------------------------------------------------------------------------------


async def test_each_caller_has_its_own_process_at_any_gateway(nodes: Cluster) -> None:
    mine, yours = await nodes.key("mine"), await nodes.key("yours")
    pids = [
        {content_of(answer)["pid"] for answer in await both(nodes, "full", token, "pid")} for token in (mine, yours)
    ]
    assert [len(found) for found in pids] == [1, 1] and pids[0] != pids[1]
    shared = {content_of(answer)["pid"] for answer in await both(nodes, "full", TOKEN, "pid")}
    assert len(shared) == 1 and shared.isdisjoint(pids[0] | pids[1])  # the owner shares a process with no other caller


async def test_parallel_calls_through_both_gateways_are_not_mixed_up(nodes: Cluster) -> None:
    """A context that is mixed up shows in the process that answers."""
    tokens = {name: await nodes.key(name) for name in ("a", "b", "c")}
    home = {name: content_of((await both(nodes, "full", token, "pid"))[0])["pid"] for name, token in tokens.items()}

    async def ask(name: str, number: int) -> tuple[str, int, str]:
        node = nodes.nodes[number % 2]
        async with node.raw("server/full", tokens[name]) as raw:
            pid = content_of(await raw.call("pid"))["pid"]
            return name, pid, content_of(await raw.call("echo", {"text": f"{name} {number}"}))["text"] + f" {number}"

    found = await asyncio.gather(*(ask(name, number) for number in range(12) for name in tokens))
    assert all(pid == home[name] and text.startswith(name) for name, pid, text in found)


async def test_scoped_key_has_the_same_access_at_any_gateway(nodes: Cluster) -> None:
    token = await nodes.key("narrow", access=["server/web"])
    for node in nodes.nodes:
        async with node.raw("server/web", token) as raw:
            assert content_of(await raw.call("echo", {"text": "hi"}))["text"] == "hi"
        async with node.raw("server/full", token) as raw:
            assert (await raw.call("echo", {"text": "hi"})).status == 404
        async with node.raw("", token) as raw:
            assert (await raw.call("full__echo", {"text": "hi"})).error["code"] == -32602


# -- notifications while it runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["full", "modern"])
async def test_progress_and_logs_reach_only_their_client(nodes: Cluster, server: str) -> None:
    async with nodes.other(server).raw(f"server/{server}", TOKEN) as raw:
        one, two = await asyncio.gather(
            *(raw.call("progress", {"n": 3, "seconds": 0.05}, meta={"progressToken": name}) for name in ("x", "y"))
        )
        for answer, name in ((one, "x"), (two, "y")):
            told = [message["params"] for message in answer.messages[:-1]]
            assert [(each["progressToken"], each["progress"]) for each in told] == [(name, n) for n in (1, 2, 3)]
        wants = {"io.modelcontextprotocol/logLevel": "info"}
        logged = (await raw.call("log", meta=wants)).messages[:-1]
        levels = [each["params"]["level"] for each in logged if each["method"] == "notifications/message"]
        assert levels and "debug" not in levels
        quiet = await raw.call("log")
        assert len(quiet.messages) == 1  # without a level, the server sends no log messages


async def test_leaving_client_cancels_at_the_server(nodes: Cluster, web: FullHttp) -> None:
    async with nodes.other("web").raw("server/web", TOKEN) as raw:
        leaving = asyncio.create_task(raw.call("hold"))
        before = web.server.stats.calls.get("hold", 0)
        await until(lambda: web.server.stats.calls.get("hold", 0) > before)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await until(lambda: web.server.stats.cancelled)


@pytest.mark.parametrize("server", ["full", "web", "modern"])
@pytest.mark.parametrize("back", ["same", "another"])
async def test_elicitation_answer_is_accepted_at_any_gateway(nodes: Cluster, server: str, back: str) -> None:
    """An older server holds its question open at the owner, where the call is parked; a modern one keeps nothing."""
    token = await nodes.key("asked")
    for first in nodes.nodes:
        second = first if back == "same" else next(node for node in nodes.nodes if node is not first)
        async with first.raw(f"server/{server}", token) as raw, second.raw(f"server/{server}", token) as later:
            asked = (await raw.call("elicit", {"rounds": 2})).result
            for name in ("Ada", "Bob"):
                assert asked["resultType"] == "input_required", asked
                (key,) = asked["inputRequests"]
                answers = {key: {"action": "accept", "content": {"name": name}}}
                again = await later.call(
                    "elicit", {"rounds": 2}, inputResponses=answers, requestState=asked["requestState"]
                )
                asked = again.result
            assert [each["content"]["name"] for each in asked["structuredContent"]["answers"]] == ["Ada", "Bob"]


async def test_parked_call_is_bound_to_its_caller_at_any_gateway(nodes: Cluster) -> None:
    mine, yours = await nodes.key("mine"), await nodes.key("yours")
    async with nodes.other("full").raw("server/full", mine) as raw:
        asked = (await raw.call("elicit")).result
        (key,) = asked["inputRequests"]
        given = {
            "inputResponses": {key: {"action": "accept", "content": {"name": "Eve"}}},
            "requestState": asked["requestState"],
        }
        for node in nodes.nodes:
            async with node.raw("server/full", yours) as stranger:
                assert (await stranger.call("elicit", **given)).error["code"] == -32602
        assert "Eve" in (await raw.call("elicit", **given)).result["content"][0]["text"]
        # An answer is given once.
        again = await raw.call("elicit", **given)
        assert again.error["code"] == -32602 and "executed" in again.error["data"]


@pytest.mark.parametrize("server", ["full", "modern"])
async def test_client_without_elicitation_gets_the_same_everywhere(nodes: Cluster, server: str) -> None:
    found = []
    for node in (nodes.owner(server), nodes.other(server)):
        async with node.raw(f"server/{server}", TOKEN) as raw:
            answer = (await raw.call("elicit", capabilities={})).last
            found.append(comparable(answer["error"]) if "error" in answer else answer["result"]["content"])
    assert found[0] == found[1]


# -- how it ends ------------------------------------------------------------------------------------------------------


def comparable(error: Json) -> Json:
    """What an error says, without what is of one call alone."""
    data: Json = error.get("data") or {}
    facts: Json = data.get("toolway", data)
    names = ("executed", "certainty", "retryable", "attempts", "upstream", "code", "fix", "retryAfterMs")
    told = {name: facts.get(name) for name in names}
    if told["retryAfterMs"] is not None:
        told["retryAfterMs"] = round(told["retryAfterMs"] / 10_000)  # it is less with every moment
    return {"code": error["code"], **told}


async def test_errors_are_equal_at_both_gateways(nodes: Cluster) -> None:
    for server, name, arguments in (
        ("full", "crash", {}),  # may have run
        ("full", "add", {"a": 1}),  # the server's own error
        ("web", "bad", {"mode": "status=500"}),
        ("web", "bad", {"mode": "html"}),
        ("web", "bad", {"mode": "reset_before_response"}),
    ):
        here, there = [answer.error for answer in await both(nodes, server, TOKEN, name, arguments)]
        assert comparable(here) == comparable(there), arguments
        assert there["message"] == here["message"]
    wrong = [answer.result for answer in await both(nodes, "full", TOKEN, "add", {"a": "x"})]
    assert wrong[0]["content"] == wrong[1]["content"] and {each["isError"] for each in wrong} == {True}


async def test_retry_after_is_equal_at_both_gateways(nodes: Cluster) -> None:
    """The server refuses the first call; the next ones are not sent to it."""
    asked = {"mode": "status=429", "retry_after": "60"}
    async with nodes.other("busy").raw("server/busy", TOKEN) as raw:
        first = comparable((await raw.call("bad", asked, meta={"toolway/timeoutMs": WITHIN})).error)
    assert (first["executed"], first["certainty"], first["retryAfterMs"]) == ("no", "C1", 6), first
    here, there = [comparable(answer.error) for answer in await both(nodes, "busy", TOKEN, "bad", asked)]
    assert here == there and (there["certainty"], there["retryAfterMs"]) == ("C0", 6)


async def test_unstartable_server_is_reported_by_every_gateway(nodes: Cluster) -> None:
    async def why(at: int) -> Json:
        async with nodes.nodes[at].raw("server/broken", TOKEN) as raw:
            return (await raw.call("anything", meta={"toolway/timeoutMs": 4000})).error

    errors = [await why(0), await why(1)]
    assert {error["code"] for error in errors} <= {UNAVAILABLE, -32602}
    assert all(error["data"]["executed"] == "no" for error in errors)


async def test_tool_error_and_big_number_arrive_unchanged(nodes: Cluster) -> None:
    here, there = [answer.result for answer in await both(nodes, "full", TOKEN, "fail", {"text": "no"})]
    assert here == there and there["isError"]
    here, there = [answer.result for answer in await both(nodes, "modern", TOKEN, "odd")]
    assert here == there and there["structuredContent"]["vast"] == 2**70


async def test_client_timeout_applies_at_the_owner(nodes: Cluster, web: FullHttp) -> None:
    loop = asyncio.get_running_loop()
    async with nodes.other("web").raw("server/web", TOKEN) as raw:
        began = loop.time()
        error = (await raw.call("hold", meta={"toolway/timeoutMs": 700})).error
        took = loop.time() - began
    assert error["code"] == OUTCOME_UNKNOWN and error["data"]["executed"] == "unknown"
    assert 0.6 < took < within(3.0)
    await until(lambda: web.server.stats.cancelled)  # and the server need not continue


async def test_idempotency_key_has_one_effect_through_all_gateways(nodes: Cluster, web: FullHttp) -> None:
    key = {"toolway/idempotencyKey": f"once-{nodes.nodes[0].id}"}

    async def call(node: Any, nonce: str) -> Answer:
        async with node.raw("server/web", TOKEN) as raw:
            answer: Answer = await raw.call("counter", {"nonce": nonce}, meta=key)
            return answer

    first = await call(nodes.other("web"), "n")
    again = [await call(node, "n") for node in nodes.nodes]
    assert len(web.server.stats.effects) == 1
    assert all(answer.result["content"] == first.result["content"] for answer in again)
    for node in nodes.nodes:
        assert (await call(node, "another")).error["code"] == KEY_MISMATCH
    assert len(web.server.stats.effects) == 1


async def test_idempotency_keys_of_two_callers_are_separate(nodes: Cluster, web: FullHttp) -> None:
    key = {"toolway/idempotencyKey": f"shared-{nodes.nodes[0].id}"}
    for name in ("mine", "yours"):
        token = await nodes.key(name)
        for node in nodes.nodes:
            async with node.raw("server/web", token) as raw:
                assert "result" in (await raw.call("counter", {"nonce": "n"}, meta=key)).last
    assert len(web.server.stats.effects) == 2


async def test_call_has_one_id_at_both_gateways(nodes: Cluster) -> None:
    ends: dict[str, list[CallFinished]] = {"owner": [], "other": []}

    async def watch(name: str, hub: Any) -> None:
        async for fact in hub.events(CallFinished):
            ends[name].append(fact)

    hubs = {"owner": nodes.owner("full").hub, "other": nodes.other("full").hub}
    watching = [asyncio.create_task(watch(name, hub)) for name, hub in hubs.items()]
    await asyncio.sleep(0)
    try:
        async with nodes.other("full").raw("server/full", TOKEN) as raw:
            await raw.call("echo", {"text": "seen"})
        await until(lambda: ends["owner"] and ends["other"])
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    assert [fact.id for fact in ends["owner"]] == [fact.id for fact in ends["other"]]


async def test_server_sees_the_same_client_info_from_both_gateways(nodes: Cluster) -> None:
    """Nothing of ours stays in what the server reads."""
    here, there = await both(nodes, "modern", TOKEN, "declared")
    told = [content_of(answer) for answer in (here, there)]
    assert told[0]["capabilities"] == told[1]["capabilities"]
    assert not [key for key in told[1]["meta"] if key.startswith("toolway/")], told[1]["meta"]
    assert told[0]["meta"].keys() == told[1]["meta"].keys()


async def test_prompts_resources_and_lists_work_at_every_gateway(nodes: Cluster) -> None:
    asked: list[tuple[str, Json]] = [
        ("prompts/get", {"name": "ask"}),
        ("resources/read", {"uri": "full://ask"}),
    ]
    for node in nodes.nodes:
        async with node.raw("server/full", TOKEN) as raw:
            for method, params in asked:
                assert (await raw.ask(method, params)).result["resultType"] == "input_required", method
            for method, word in (("tools/list", "tools"), ("prompts/list", "prompts"), ("resources/list", "resources")):
                assert (await raw.ask(method)).result[word]
            assert (await raw.ask("server/discover")).result["capabilities"]
