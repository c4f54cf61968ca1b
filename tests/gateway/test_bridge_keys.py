"""Idempotency keys, caches and deadlines with input requests: these are not outcomes, and take their own time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.bridge_lab import Json, full, lab
from tests.gateway.full_server import FullHttp
from toolway.config.server_entry import parse_entry
from toolway.hub.hub import Hub

pytestmark = pytest.mark.anyio

KEYED = {"toolway/idempotencyKey": "k1"}
ANSWER = {"action": "accept", "content": {"name": "Ada"}}


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_keyed_call_asks_for_input_and_is_then_replayed(era: str) -> None:
    async with full(era, "http") as found, found.raw() as raw:
        asked = (await raw.call("elicit", meta=KEYED)).result
        assert asked["resultType"] == "input_required"
        retry = {"requestState": asked["requestState"], "inputResponses": dict.fromkeys(asked["inputRequests"], ANSWER)}
        done = (await raw.call("elicit", meta=KEYED, **retry)).result
        assert json.loads(done["content"][0]["text"]) == ANSWER
        calls = found.fakes["full"].stats.calls["elicit"]
        again = (await raw.call("elicit", meta=KEYED)).result
        assert again["content"] == done["content"] and found.fakes["full"].stats.calls["elicit"] == calls
        other = await raw.call("elicit", {"rounds": 2}, meta=KEYED)
        assert other.error["code"] == -31008


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_input_requests_and_their_results_are_not_cached(era: str) -> None:
    async with FullHttp(era) as fake:
        tools = {"elicit": {"effect": "read", "cache": "60s"}, "echo": {"effect": "read", "cache": "60s"}}
        async with lab({"full": {"url": fake.url, "tools": tools}}) as found, found.raw() as raw:
            for _ in range(2):
                asked = (await raw.call("elicit")).result
                assert asked["resultType"] == "input_required"
                responses = dict.fromkeys(asked["inputRequests"], ANSWER)
                await raw.call("elicit", requestState=asked["requestState"], inputResponses=responses)
            assert fake.stats.calls["elicit"] == (4 if era == "modern" else 2)
            for _ in range(2):
                await raw.call("echo", {"text": "kept"}, capabilities={})
            assert fake.stats.calls["echo"] == 1


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_callback_time_counts_separately_and_holds_no_slot(era: str) -> None:
    began = asyncio.Event()

    async def slow(server: str, params: Any) -> Json:
        began.set()
        await asyncio.sleep(3.3)
        return ANSWER

    async with FullHttp(era) as fake:
        server = parse_entry({"url": fake.url, "timeout": "3s", "limits": {"maxConcurrent": 1, "queue": 0}})
        async with Hub({"full": server}, elicitation_callback=slow) as hub:
            asking = asyncio.create_task(hub.call_tool("full.elicit"))
            await began.wait()
            assert (await hub.call_tool("full.echo", {"text": "in between"})).text == "in between"
            assert json.loads((await asking).text) == ANSWER
