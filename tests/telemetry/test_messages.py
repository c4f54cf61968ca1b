"""Messages to and from each server and its uptime: in the status and in the metrics."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mcp.server.mcpserver import MCPServer

from tests.gateway.edge_lab import edge
from tests.gateway.program import until
from toolway import Hub, Server
from toolway.telemetry.metrics import Metrics
from toolway.testing import FakeHttp, fake_server

pytestmark = [pytest.mark.anyio, pytest.mark.promise("D21")]


async def counted(hub: Hub, calls: int) -> tuple[int, int]:
    """Return the messages sent and received during some calls."""
    await hub.list_tools(server="s")
    for fetch in (hub.list_prompts, hub.list_resources, hub.list_resource_templates):  # fetched in the background
        await fetch(server="s")
    before = hub.status()["s"]
    for _ in range(calls):
        await hub.call_tool("s.echo", {"text": "x"})
    after = hub.status()["s"]
    return after.messages_sent - before.messages_sent, after.messages_received - before.messages_received


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_messages_of_a_process_are_counted(era: str) -> None:
    async with Hub({"s": fake_server(era=era)}) as hub:
        assert await counted(hub, 3) == (3, 3)


@pytest.mark.parametrize("answer", ["json", "sse"])
async def test_messages_of_an_http_server_are_counted(answer: str) -> None:
    async with FakeHttp(answer=answer) as server, Hub({"s": server.url}) as hub:
        assert await counted(hub, 3) == (3, 3)


async def test_messages_of_a_legacy_sse_server_are_counted() -> None:
    async with FakeHttp(transport="sse") as server, Hub({"s": Server(url=server.url, sse=True)}) as hub:
        assert await counted(hub, 3) == (3, 3)


async def test_messages_of_a_server_object_are_counted() -> None:
    server = MCPServer("s")

    @server.tool()
    def echo(text: str) -> str:
        return text

    async with Hub({"s": server}) as hub:
        assert await counted(hub, 3) == (3, 3)


async def test_restart_keeps_message_counters() -> None:
    async with Hub({"s": fake_server()}) as hub:
        await counted(hub, 3)
        before = hub.status()["s"]
        hub.restart_server("s")
        await until(lambda: hub.status()["s"].pid not in (None, before.pid), 20)
        await hub.wait_ready("s")
        after = hub.status()["s"]
        assert after.messages_sent > before.messages_sent and after.messages_received > before.messages_received


async def test_metrics_show_messages_and_uptime(tmp_path: Path) -> None:
    async with edge(tmp_path, metrics=Metrics()) as found:
        await found.call("a__echo", {"text": "x"})
        text = (await found.ask("GET", "/metrics")).body.decode()
    value = {
        name: float(each[1])
        for name in ("messages_sent_total", "messages_received_total", "uptime_seconds")
        if (each := re.search(rf'^toolway_server_{name}{{server="a"}} (\S+)$', text, re.MULTILINE)) is not None
    }
    assert value["messages_sent_total"] >= 3 and value["messages_received_total"] >= 3
    assert 0 < value["uptime_seconds"] < 600
