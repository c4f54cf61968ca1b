"""Tools by name: `server.tool`, the name for models, or the name of the tool alone if one server has it."""

from __future__ import annotations

import asyncio

import pytest

from toolway import Hub, SyncHub
from toolway.errors import AccessDenied, CallError, CallTimeout, NotFound, ServerUnavailable
from toolway.testing import FakeHttp, fake_server

pytestmark = pytest.mark.anyio


@pytest.mark.promise("D9")
async def test_unique_bare_tool_name_is_called() -> None:
    async with FakeHttp(tools=2) as one, FakeHttp() as two, Hub({"one": one.url, "two": two.url}) as hub:
        result = await hub.call_tool("tool_0001", {"text": "hi"})  # at once: no list is known yet
        assert (result.server, result.name, result.text) == ("one", "tool_0001", "hi")
        assert (await hub.call_tool("one.tool_0001")).server == "one"


@pytest.mark.promise("D9")
async def test_ambiguous_bare_name_lists_its_tools() -> None:
    async with FakeHttp() as one, FakeHttp() as two, Hub({"one": one.url, "two": two.url}, catalog_storage=None) as hub:
        for attempt in (hub.call_tool("echo"), hub.find_tool("echo")):
            with pytest.raises(NotFound) as caught:
                await attempt
            error = caught.value
            assert (error.code, error.executed, error.detail) == ("E-TOOL-AMBIGUOUS", "no", "one.echo, two.echo")
            assert "one.echo" in error.hint
        hub.set_denied_tools("one", ["echo"])  # denied tools do not count
        assert (await hub.call_tool("echo", {"text": "x"})).server == "two"
        hub.set_denied_tools("two", ["ech*"])
        with pytest.raises(AccessDenied) as denied:
            await hub.call_tool("echo")
        assert denied.value.code == "E-TOOL-DENIED"
        assert "echo" not in one.stats.calls and two.stats.calls["echo"] == 1


@pytest.mark.promise("D9")
async def test_bare_name_does_not_wait_for_down_or_disabled_server() -> None:
    servers = {
        "good": fake_server(tools=1),
        "broken": {"command": "/nonexistent/server"},
        "off": {**fake_server(tools=1), "enabled": False},
    }
    async with Hub(servers, catalog_storage=None) as hub, asyncio.timeout(30):
        assert (await hub.call_tool("tool_0001", {"text": "x"})).server == "good"


async def test_unknown_bare_name_is_not_found() -> None:
    async with FakeHttp() as one, Hub({"one": one.url}, catalog_storage=None) as hub:
        for name in ("one_echoo", "ech.o", ""):
            with pytest.raises(NotFound) as caught:
                await hub.call_tool(name)
            assert caught.value.code == "E-NOT-FOUND" and caught.value.executed == "no"


async def test_bare_name_waits_at_most_half_the_timeout() -> None:
    async with FakeHttp(tools=1) as one:
        servers = {"one": one.url, "silent": {**fake_server("silent"), "startTimeout": "60s"}}
        async with Hub(servers, catalog_storage=None) as hub:
            assert (await hub.call_tool("tool_0001", {"text": "x"}, timeout=10)).server == "one"


@pytest.mark.promise("E4")
async def test_tool_is_found_by_each_of_its_names() -> None:
    async with FakeHttp(tools=1) as one, Hub({"one": one.url}, catalog_storage=None) as hub:
        for name in ("one.tool_0001", "one__tool_0001", "tool_0001"):
            tool = await hub.find_tool(name)
            assert (tool.server, tool.name, tool.qualified_name) == ("one", "tool_0001", "one.tool_0001")
        for name in ("one.nothing", "nothing", "two.tool_0001"):
            with pytest.raises(NotFound):
                await hub.find_tool(name)


@pytest.mark.promise("E4")
async def test_finding_tool_of_down_server_gives_the_cause() -> None:
    async with Hub({"broken": {"command": "/nonexistent/server"}}, catalog_storage=None) as hub:
        with pytest.raises(CallError) as caught:
            await hub.find_tool("broken.x", timeout=10)
        assert isinstance(caught.value, ServerUnavailable | CallTimeout)


@pytest.mark.promise("E3", "E5")
async def test_added_server_has_tools_after_wait_ready() -> None:
    async with FakeHttp(tools=2) as one, Hub({}, catalog_storage=None) as hub:
        await hub.add_server("one", {"url": one.url, "disabledTools": ["tool_0002"]})
        await hub.wait_ready("one", timeout=30)
        known = {tool.qualified_name: tool.server for tool in hub.known_tools()}
        assert known["one.tool_0001"] == "one" and "one.tool_0002" not in known


def test_sync_hub_finds_tools() -> None:
    with SyncHub({"pipe": fake_server(tools=2)}, catalog_storage=None) as hub:
        assert hub.find_tool("tool_0001").server == "pipe"
        hub.set_denied_tools("pipe", ["tool_0001"])
        with pytest.raises(AccessDenied):
            hub.call_tool("tool_0001")
        assert hub.call_tool("tool_0002", {"text": "x"}).text == "x"
