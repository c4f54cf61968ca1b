"""Changes of lists, resources and tasks reach their subscribers, in every combination of eras."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from tests.gateway.bridge_lab import ALL_WAYS, META, OLD_WORDS, Json, Raw, events, full, lab, pipe_entry, until
from tests.gateway.full_server import TASKS_KEY, VAST
from toolway.hub.hub import Hub

pytestmark = [pytest.mark.anyio, OLD_WORDS]

WITH_TASKS: Json = {"extensions": {TASKS_KEY: {}}}


class StreamRecorder:
    """What came on a stream."""

    def __init__(self) -> None:
        self.messages: list[Json] = []

    def of(self, method: str) -> list[Json]:
        return [each["params"] for each in self.messages if each.get("method") == method]


@asynccontextmanager
async def listening(raw: Raw, wanted: Json, capabilities: Json | None = None) -> AsyncIterator[StreamRecorder]:
    """A modern client that listens, from when it is acknowledged."""
    body, fields = raw.modern("subscriptions/listen", {"notifications": wanted}, capabilities)
    async with _reading(raw, "POST", fields, json.dumps(body)) as heard:
        await until(lambda: heard.messages)
        first = heard.messages[0]
        assert first.get("method") == "notifications/subscriptions/acknowledged", first
        yield heard
        assert all(m["params"]["_meta"][f"{META}subscriptionId"] == body["id"] for m in heard.messages)


@asynccontextmanager
async def streaming(raw: Raw) -> AsyncIterator[StreamRecorder]:
    """A handshake client with its GET stream."""
    await raw.initialize()
    async with _reading(raw, "GET", raw.headers(), None) as heard:
        yield heard


@asynccontextmanager
async def _reading(raw: Raw, method: str, fields: dict[str, str], content: str | None) -> AsyncIterator[StreamRecorder]:
    heard, opened = StreamRecorder(), asyncio.Event()

    async def read() -> None:
        async with raw.http.stream(method, raw.url, content=content, headers=fields) as response:
            opened.set()
            async for _, message in events(response):
                heard.messages.append(message)

    reading = asyncio.create_task(read())
    try:
        async with asyncio.timeout(30):
            await opened.wait()
        yield heard
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


@asynccontextmanager
async def recorded_stream(raw: Raw, era: str, uri: str | None = None) -> AsyncIterator[StreamRecorder]:
    """A client of either era that subscribes to all lists and one resource."""
    if era == "legacy":
        async with streaming(raw) as heard:
            if uri is not None:
                assert (await raw.request("resources/subscribe", {"uri": uri})).result == {}
            yield heard
        return
    wanted: Json = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
    if uri is not None:
        wanted["resourceSubscriptions"] = [uri]
    async with listening(raw, wanted) as heard:
        assert heard.messages[0]["params"]["notifications"] == wanted
        yield heard


@ALL_WAYS
async def test_list_changes_are_notified(client_era: str, server_era: str, transport: str) -> None:
    async with full(server_era, transport) as lab, lab.raw() as raw, recorded_stream(raw, client_era) as heard:
        await Hub._from_core(lab.hub).call_tool("full.change_tools")
        await Hub._from_core(lab.hub).call_tool("full.change", {"kind": "prompts"})
        await Hub._from_core(lab.hub).call_tool("full.change", {"kind": "resources"})
        for kind in ("tools", "prompts", "resources"):
            await until(partial(heard.of, f"notifications/{kind}/list_changed"))
        listed = await (raw.request if client_era == "legacy" else raw.ask)("tools/list")
        assert "extra_1" in {tool["name"] for tool in listed.result["tools"]}


@ALL_WAYS
async def test_resource_updates_are_notified(client_era: str, server_era: str, transport: str) -> None:
    updated = "notifications/resources/updated"
    async with (
        full(server_era, transport) as lab,
        lab.raw() as raw,
        recorded_stream(raw, client_era, "fake://text") as heard,
    ):
        await Hub._from_core(lab.hub).call_tool("full.touch", {"uri": "fake://bytes"})  # not subscribed
        await Hub._from_core(lab.hub).call_tool("full.touch", {"uri": "fake://text"})
        await until(lambda: heard.of(updated))
        assert [params["uri"] for params in heard.of(updated)] == ["fake://text"]
        if client_era == "legacy":
            assert (await raw.request("resources/unsubscribe", {"uri": "fake://text"})).result == {}
            await asyncio.sleep(0.2)
            await Hub._from_core(lab.hub).call_tool("full.touch", {"uri": "fake://text"})
            await asyncio.sleep(0.2)
            assert len(heard.of(updated)) == 1


async def test_client_gets_only_requested_notifications() -> None:
    async with (
        full("modern", "http") as lab,
        lab.raw() as raw,
        listening(raw, {"promptsListChanged": True}) as few,
        listening(raw, {}) as none,
    ):
        await Hub._from_core(lab.hub).call_tool("full.change_tools")
        await Hub._from_core(lab.hub).call_tool("full.change", {"kind": "prompts"})
        await until(lambda: few.of("notifications/prompts/list_changed"))
        await asyncio.sleep(0.2)
        assert len(few.messages) == 2 and len(none.messages) == 1


async def test_two_streams_share_one_subscription_and_end_alone() -> None:
    wanted = {"resourceSubscriptions": ["fake://text"]}
    async with full("legacy", "http") as lab, lab.raw() as raw:
        server = lab.fakes["full"].server
        async with listening(raw, wanted) as one:
            async with listening(raw, wanted):
                assert [*server.watched.values()] == [{"fake://text"}]
            await asyncio.sleep(0.2)
            assert [*server.watched.values()] == [{"fake://text"}]
            assert one.messages[0]["params"]["notifications"] == {"resourceSubscriptions": ["fake://text"]}
        await until(lambda: [*server.watched.values()] == [set()])


async def test_server_that_lost_its_session_is_resubscribed() -> None:
    async with full("legacy", "http") as lab, lab.raw() as raw:
        fake = lab.fakes["full"]
        async with listening(raw, {"resourceSubscriptions": ["fake://text"]}) as heard:
            fake.drop_sessions()
            fake.server.watched.clear()
            await Hub._from_core(lab.hub).call_tool("full.echo", {"text": "the session is renewed by the next call"})
            await until(lambda: {"fake://text"} in fake.server.watched.values())
            await until(lambda: heard.of("notifications/resources/updated"))  # changes in between are unknown


async def test_subscribed_server_is_not_stopped_when_idle() -> None:
    entry = pipe_entry("legacy", idleTimeout="0.3s", lazy=True)
    async with lab({"full": entry}) as found, found.raw() as raw:
        async with listening(raw, {"resourceSubscriptions": ["fake://text"]}) as heard:
            await asyncio.sleep(1)
            assert found.hub.servers.status()["full"].state == "ready"
            await Hub._from_core(found.hub).call_tool("full.touch", {"uri": "fake://text"})
            await until(lambda: heard.of("notifications/resources/updated"))
        await until(lambda: found.hub.servers.status()["full"].state == "idle")


# -- tasks ------------------------------------------------------------------------------------------------------------


@pytest.mark.user_trial("34")
@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_tasks_have_our_own_ids(transport: str) -> None:
    async with full("modern", transport) as lab, lab.raw() as raw:
        begun = (await raw.call("start_task", capabilities=WITH_TASKS)).result
        task = begun["taskId"]
        assert begun["resultType"] == "task" and begun["status"] == "working" and "task-1" not in task
        assert begun["x-vendor"]["kept"] is True

        async def ask(method: str, **more: Any) -> Json:
            return (await raw.ask(method, {"taskId": task, **more}, capabilities=WITH_TASKS)).result

        got = await ask("tasks/get")
        assert (got["taskId"], got["status"], got["resultType"]) == (task, "working", "complete")
        await ask("tasks/update", inputResponses={"one": {"action": "accept"}})
        assert (await ask("tasks/get"))["answers"] == {"one": {"action": "accept"}}
        await ask("tasks/cancel")
        assert (await ask("tasks/get"))["status"] == "cancelled"


async def test_task_of_another_caller_is_unknown() -> None:
    async with full("modern", "http") as lab, lab.raw() as raw, lab.raw("") as elsewhere:
        task = (await raw.call("start_task", capabilities=WITH_TASKS)).result["taskId"]
        for stranger, name in itertools.product((elsewhere,), (task, "task-1", task[:-2] + "AA")):
            refused = await stranger.ask("tasks/get", {"taskId": name}, capabilities=WITH_TASKS)
            assert refused.error["code"] == -32602 and "Unknown task" in refused.error["message"]
        forged = await raw.ask("tasks/get", {"taskId": "task-1"}, capabilities=WITH_TASKS)
        assert forged.error["code"] == -32602
        assert lab.fakes["full"].stats.requests.get("tasks/get") is None


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_task_subscriber_gets_status_updates(transport: str) -> None:
    async with full("modern", transport) as lab, lab.raw() as raw:
        mine = (await raw.call("start_task", capabilities=WITH_TASKS)).result["taskId"]
        other = (await raw.call("start_task", capabilities=WITH_TASKS)).result["taskId"]
        async with listening(raw, {"taskIds": [mine, "task-2"]}, WITH_TASKS) as heard:
            assert heard.messages[0]["params"]["notifications"] == {"taskIds": [mine]}
            await Hub._from_core(lab.hub).call_tool("full.finish_task", {"task": "task-2"})
            await Hub._from_core(lab.hub).call_tool("full.finish_task", {"task": "task-1"})
            await until(lambda: heard.of("notifications/tasks"))
            told = heard.of("notifications/tasks")
            assert [(each["taskId"], each["status"], each["result"]["big"]) for each in told] == [
                (mine, "completed", VAST)
            ]
        assert other != mine


async def test_only_a_client_with_tasks_can_subscribe_to_them() -> None:
    async with full("modern", "http") as lab, lab.raw() as raw:
        refused = await raw.ask("subscriptions/listen", {"notifications": {"taskIds": ["x"]}}, capabilities={})
        assert refused.status == 400 and refused.error["code"] == -32021
        assert refused.error["data"]["requiredCapabilities"] == WITH_TASKS


async def test_endpoint_announces_tasks_of_its_servers() -> None:
    async with full("modern", "http") as lab, lab.raw("") as raw, lab.raw() as alone:
        for each in (raw, alone):
            found = (await each.ask("server/discover")).result["capabilities"]
            assert found["extensions"] == {TASKS_KEY: {}}
            assert "extensions" not in (await each.initialize()).result["capabilities"]
