"""Calls of modern clients that wait for their answers while an older server holds its question open."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.bridge_lab import META, OLD_WORDS, Answer, Json, Raw, full, lab, made, pipe_entry, until
from tests.gateway.full_server import FullHttp
from toolway.gateway.mcp.pending_input import PendingCalls
from toolway.gateway.principals import FileApiKeyStore

pytestmark = [pytest.mark.anyio, OLD_WORDS]

#: Over a pipe they take turns, which takes its time.
CLIENTS = 200 if os.environ.get("TOOLWAY_LONG") else 50


def named(name: str) -> Json:
    return {"action": "accept", "content": {"name": name}}


async def begin(raw: Raw, **arguments: Any) -> Json:
    """The question of a call that asks."""
    result = (await raw.call("elicit", arguments)).result
    assert result["resultType"] == "input_required", result
    return result


async def continue_call(raw: Raw, asked: Json, answer: Json, **arguments: Any) -> Answer:
    responses = dict.fromkeys(asked["inputRequests"], answer)
    return await raw.call("elicit", arguments, requestState=asked["requestState"], inputResponses=responses)


def content_of(answer: Answer) -> Any:
    return json.loads(answer.result["content"][0]["text"])


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_many_suspended_clients_each_get_their_own_answer(transport: str) -> None:
    async with full("legacy", transport) as found, found.raw() as raw:

        async def one(number: int) -> None:
            asked = await begin(raw, nonce=str(number), rounds=2)
            again = await continue_call(raw, asked, named(f"first {number}"), nonce=str(number), rounds=2)
            everybody.release()
            await all_asked.wait()
            done = await continue_call(raw, again.result, named(f"second {number}"), nonce=str(number), rounds=2)
            assert done.result["structuredContent"]["nonce"] == str(number)
            assert [each["content"]["name"] for each in content_of(done)] == [f"first {number}", f"second {number}"]

        everybody, all_asked = asyncio.Semaphore(0), asyncio.Event()
        async with asyncio.timeout(120), asyncio.TaskGroup() as clients:
            for number in range(CLIENTS):
                clients.create_task(one(number))
            for _ in range(CLIENTS):
                await everybody.acquire()
            assert len(found.gateway.pending_calls) == CLIENTS
            all_asked.set()
        assert len(found.gateway.pending_calls) == 0


async def test_callers_with_their_own_processes_are_not_mixed_up(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "tw_owner")
    async with full("legacy", "stdio", keyring=keyring) as found:

        async def one(number: int) -> None:
            async with found.raw(token=made(keyring, str(number))) as raw:
                asked = await begin(raw, nonce=str(number))
                waiting.release()
                await all_asked.wait()
                assert content_of(await continue_call(raw, asked, named(str(number)), nonce=str(number))) == named(
                    str(number)
                )

        waiting, all_asked = asyncio.Semaphore(0), asyncio.Event()
        async with asyncio.timeout(60), asyncio.TaskGroup() as clients:
            for number in range(4):
                clients.create_task(one(number))
            for _ in range(4):
                await waiting.acquire()
            all_asked.set()


async def test_abandoned_input_request_cancels_call() -> None:
    async with full("legacy", "http", parking=PendingCalls(timeout=0.3)) as found, found.raw() as raw:
        asked = await begin(raw)
        await until(lambda: found.fakes["full"].stats.cancelled)
        assert len(found.gateway.pending_calls) == 0 and found.hub.servers.status()["full"].in_flight == 0
        late = await continue_call(raw, asked, named("late"))
        assert late.error["code"] == -32602 and late.error["data"]["executed"] == "unknown"


@pytest.mark.attack("held-26")
async def test_request_state_is_valid_once() -> None:
    async with full("legacy", "http") as found, found.raw() as raw:
        asked = await begin(raw, rounds=2)
        again = (await continue_call(raw, asked, named("one"), rounds=2)).result
        assert again["requestState"] != asked["requestState"]
        replayed = await continue_call(raw, asked, named("other"), rounds=2)
        assert replayed.error["code"] == -32602
        done = await continue_call(raw, again, named("two"), rounds=2)
        assert [each["content"]["name"] for each in content_of(done)] == ["one", "two"]
        assert (await continue_call(raw, again, named("three"), rounds=2)).error["code"] == -32602


@pytest.mark.attack("held-26")
async def test_request_state_is_valid_only_for_its_own_call(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "tw_owner")
    mine, other = made(keyring, "mine"), made(keyring, "other")
    async with (
        full("legacy", "http", keyring=keyring) as found,
        found.raw(token=mine) as raw,
        found.raw(token=other) as stranger,
        found.raw("", token=mine) as elsewhere,
    ):
        asked = await begin(raw, nonce="a")
        state = asked["requestState"]
        answers = {key: named("x") for key in asked["inputRequests"]}
        forged = state[:-3] + ("AAA" if state[-3:] != "AAA" else "BBB")
        tried = [
            await stranger.call("elicit", {"nonce": "a"}, requestState=state, inputResponses=answers),
            await elsewhere.call("full__elicit", {"nonce": "a"}, requestState=state, inputResponses=answers),
            await raw.call("elicit", {"nonce": "b"}, requestState=state, inputResponses=answers),
            await raw.call("sample", {"nonce": "a"}, requestState=state, inputResponses=answers),
            await raw.call("elicit", {"nonce": "a"}, requestState=forged, inputResponses=answers),
            await raw.call("elicit", {"nonce": "a"}, requestState="made up", inputResponses=answers),
            await raw.call("elicit", {"nonce": "a"}, requestState=7, inputResponses=answers),
        ]
        assert [each.error["code"] for each in tried] == [-32602] * len(tried)
        assert len(found.gateway.pending_calls) == 1
        assert content_of(await continue_call(raw, asked, named("mine"), nonce="a"))["content"]["name"] == "mine"


@pytest.mark.attack("held-26")
async def test_request_state_of_a_modern_server_is_bound_to_its_call(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "tw_owner")
    mine, other = made(keyring, "mine"), made(keyring, "other")
    async with (
        full("modern", "http", keyring=keyring) as found,
        found.raw(token=mine) as raw,
        found.raw(token=other) as stranger,
    ):
        asked = await begin(raw, nonce="a")
        before = found.fakes["full"].stats.calls["elicit"]
        assert (await continue_call(stranger, asked, named("x"), nonce="a")).error["code"] == -32602
        assert (await continue_call(raw, asked, named("x"), nonce="b")).error["code"] == -32602
        assert found.fakes["full"].stats.calls["elicit"] == before  # a refusal costs no contact
        assert content_of(await continue_call(raw, asked, named("mine"), nonce="a"))["content"]["name"] == "mine"


async def test_unanswered_input_request_is_asked_again() -> None:
    async with full("legacy", "http") as found, found.raw() as raw:
        asked = await begin(raw)
        again = await raw.call("elicit", requestState=asked["requestState"], inputResponses={"other": named("x")})
        assert again.result["inputRequests"] == asked["inputRequests"]
        assert content_of(await continue_call(raw, again.result, named("now")))["content"]["name"] == "now"


async def test_progress_goes_to_the_latest_request() -> None:
    async with full("legacy", "http") as found, found.raw() as raw:
        first = await raw.call("elicit", {"rounds": 1}, meta={"progressToken": "one", f"{META}logLevel": "info"})
        assert len(first.messages) == 1
        call = next(iter(found.gateway.pending_calls._calls.values())).call
        assert call.on_progress is not None and call.on_log is not None
        call.on_progress(0.1, None, None)  # no request waits, so it goes nowhere
        responses = dict.fromkeys(first.result["inputRequests"], named("x"))
        retry = {"requestState": first.result["requestState"], "inputResponses": responses}
        told: list[Json] = []
        body, fields = raw.modern(
            "tools/call",
            {"name": "elicit", "arguments": {"rounds": 1}, **retry},
            meta={"progressToken": "two", f"{META}logLevel": "error"},
        )
        ear = next(iter(found.gateway.pending_calls._calls.values())).forwarder
        turn_to = ear.attach

        def turned(*given: Any) -> None:
            turn_to(*given)
            ear.forward_progress(0.5, 1, "half")
            ear.forward_log("notifications/message", {"level": "info", "data": "too quiet"})
            ear.forward_log("notifications/message", {"level": "error", "data": "loud"})

        ear.attach = turned  # type: ignore[assignment,method-assign]  # as if the server had said it just then

        async def on_message(message: Json) -> None:
            told.append(message)

        await raw.post(body, fields, on_message)
        assert [each.get("method") for each in told] == ["notifications/progress", "notifications/message", None]
        assert told[0]["params"] == {"progressToken": "two", "progress": 0.5, "total": 1, "message": "half"}
        assert told[1]["params"]["data"] == "loud"


async def test_suspended_calls_are_bounded_with_half_per_caller(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "tw_owner")
    keys = [made(keyring, name) for name in ("a", "b", "c")]
    async with (
        full("legacy", "http", keyring=keyring, parking=PendingCalls(max_calls=4)) as found,
        found.raw(token=keys[0]) as a,
        found.raw(token=keys[1]) as b,
        found.raw(token=keys[2]) as c,
    ):
        asked = [await begin(a, nonce="1"), await begin(a, nonce="2")]
        crowded = await a.call("elicit", {"nonce": "3"})
        assert crowded.error["code"] == -31005 and crowded.error["data"]["executed"] == "unknown"
        assert crowded.status == 200  # nothing that invites to send it again
        await begin(b)
        await begin(b)
        assert (await c.call("elicit")).error["code"] == -31005
        await until(lambda: len(found.fakes["full"].stats.cancelled) == 2)
        assert content_of(await continue_call(a, asked[0], named("x"), nonce="1"))["content"]["name"] == "x"
        await begin(c)


async def test_client_time_counts_separately_and_holds_no_slot() -> None:
    async with FullHttp("legacy") as fake:
        entry = {"url": fake.url, "timeout": "1s", "limits": {"maxConcurrent": 1, "queue": 0}}
        async with lab({"full": entry}) as found, found.raw() as raw:
            asked = await begin(raw)
            await asyncio.sleep(1.3)
            assert (await raw.call("echo", {"text": "in between"})).result["content"][0]["text"] == "in between"
            assert content_of(await continue_call(raw, asked, named("late")))["content"]["name"] == "late"


async def test_restarted_modern_server_gets_the_answers() -> None:
    async with lab({"full": pipe_entry("modern")}) as found, found.raw() as raw:
        asked = await begin(raw)
        found.hub.servers.restart("full")
        assert content_of(await continue_call(raw, asked, named("after"))) == named("after")
