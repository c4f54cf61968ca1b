"""Subscribed changes are notified at every gateway, whichever owns the server; and tasks are found from all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.cluster.node.hop_lab import TOKEN, Cluster, Node
from tests.gateway.bridge_lab import EVERYTHING, OLD_WORDS, Answer, Raw, events, pipe_entry, until
from tests.gateway.full_server import TASKS_KEY

pytestmark = [pytest.mark.anyio, OLD_WORDS]
Json = dict[str, Any]
TASKS: Json = {**EVERYTHING, "extensions": {TASKS_KEY: {}}}


def servers_with(url: str) -> Json:
    return {"full": pipe_entry("legacy"), "modern": pipe_entry("modern")}


@asynccontextmanager
async def listening(node: Node, server: str, token: str, wanted: Json) -> AsyncIterator[list[Json]]:
    """The messages a modern client gets; the first is what the gateway acknowledged."""
    heard: list[Json] = []

    async def listen(raw: Raw) -> None:
        body, fields = raw.modern("subscriptions/listen", {"notifications": wanted}, TASKS)
        async with raw.http.stream("POST", raw.url, content=json.dumps(body), headers=fields) as response:
            async for _, message in events(response):
                heard.append(message)

    async with node.raw(f"server/{server}", token) as raw:
        task = asyncio.create_task(listen(raw))
        try:
            await until(lambda: heard)
            assert heard[0]["method"] == "notifications/subscriptions/acknowledged", heard
            yield heard
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def methods(heard: list[Json]) -> list[str]:
    return [message["method"] for message in heard[1:]]


async def call(node: Node, server: str, token: str, name: str, **arguments: Any) -> Answer:
    async with node.raw(f"server/{server}", token) as raw:
        return await raw.call(name, arguments, capabilities=TASKS)


@pytest.mark.parametrize("server", ["full", "modern"])
async def test_list_change_is_notified_at_every_gateway(nodes: Cluster, server: str) -> None:
    wanted = {"toolsListChanged": True}
    one, two = nodes.nodes
    async with listening(one, server, TOKEN, wanted) as first, listening(two, server, TOKEN, wanted) as second:
        name = (await call(nodes.other(server), server, TOKEN, "change_tools")).result["structuredContent"]["added"]
        for heard in (first, second):
            await until(lambda heard=heard: "notifications/tools/list_changed" in methods(heard))  # type: ignore[misc]
    for node in nodes.nodes:
        assert (await call(node, server, TOKEN, name, text="new")).result["content"][0]["text"] == "new"


@pytest.mark.parametrize("server", ["full", "modern"])
@pytest.mark.parametrize("who", ["the owner", "a key"])
async def test_resource_update_reaches_its_subscriber_at_any_gateway(nodes: Cluster, server: str, who: str) -> None:
    """A server of the handshake era has a process for each caller, which reports its own resources."""
    token = TOKEN if who == "the owner" else await nodes.key("mine")
    stranger = await nodes.key("yours")
    uri = "full://ask"
    wanted = {"resourceSubscriptions": [uri]}
    for node in (nodes.owner(server), nodes.other(server)):
        async with listening(node, server, token, wanted) as heard:
            assert heard[0]["params"]["notifications"] == wanted
            if server == "full":
                await call(node, server, stranger, "touch", uri=uri)
                await asyncio.sleep(0.3)
                assert methods(heard) == []  # another's process is another's
            for at in nodes.nodes:
                before = len(heard)
                await call(at, server, token, "touch", uri=uri)
                await until(lambda heard=heard, before=before: len(heard) > before)  # type: ignore[misc]
            assert set(methods(heard)) == {"notifications/resources/updated"}


async def test_task_is_found_and_notified_at_every_gateway(nodes: Cluster) -> None:
    mine, yours = await nodes.key("mine"), await nodes.key("yours")
    for begins in nodes.nodes:
        task = (await call(begins, "modern", mine, "start_task")).result["taskId"]
        for node in nodes.nodes:
            async with node.raw("server/modern", mine) as raw:
                found = await raw.ask("tasks/get", {"taskId": task}, capabilities=TASKS)
                assert found.result["status"] == "working" and found.result["taskId"] == task
            async with node.raw("server/modern", yours) as raw:
                assert (await raw.ask("tasks/get", {"taskId": task}, capabilities=TASKS)).error["code"] == -32602
        for node in nodes.nodes:
            async with listening(node, "modern", mine, {"taskIds": [task]}) as heard:
                assert heard[0]["params"]["notifications"] == {"taskIds": [task]}
                own = await names_of_tasks(nodes, mine)
                await call(node, "modern", mine, "finish_task", task=own[-1])
                await until(lambda heard=heard: "notifications/tasks" in methods(heard))  # type: ignore[misc]
                assert heard[1]["params"]["taskId"] == task


async def names_of_tasks(nodes: Cluster, token: str) -> list[str]:
    """As the server calls them: they are counted."""
    seen = (await call(nodes.owner("modern"), "modern", token, "stats")).result["structuredContent"]["calls"]
    return [f"task-{number}" for number in range(1, seen["start_task"] + 1)]
