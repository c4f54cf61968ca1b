"""`hub.server_info` is what a server says about itself, and a transport of the program's own reaches any server."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from mcp.server import MCPServer

from tests.gateway.bridge_lab import pipe_entry
from toolway import Hub, NotFound, ServerInfo, ServerUnavailable, SyncHub
from toolway.testing import fake_server
from toolway.types import Json

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.user_trial("25")
async def test_server_info_has_name_version_and_capabilities() -> None:
    server = MCPServer("weather", title="Weather of the world", version="1.2.3", instructions="Ask for one city.")
    servers = {"w": server, "legacy": pipe_entry("legacy"), "later": {**fake_server(), "lazy": True}}
    async with Hub(servers, catalog_storage=None) as hub:
        assert hub.server_info("later") is None  # it was not started
        await hub.wait_ready("w")
        await hub.wait_ready("legacy")
        found = hub.server_info("w")
        assert isinstance(found, ServerInfo)
        assert (found.server, found.name, found.version, found.title) == (
            "w",
            "weather",
            "1.2.3",
            "Weather of the world",
        )
        assert (found.era, found.protocol_version, found.instructions) == ("modern", "2026-07-28", "Ask for one city.")
        assert "tools" in found.capabilities
        legacy = hub.server_info("legacy")
        assert legacy is not None and (legacy.era, legacy.protocol_version) == ("legacy", "2025-11-25")
        assert "logging" in legacy.capabilities and legacy.extensions == {}
        with pytest.raises(NotFound, match="nobody"):
            hub.server_info("nobody")


def test_extensions_are_those_of_the_capabilities() -> None:
    declared: Json = {"io.modelcontextprotocol/tasks": {}}
    for capabilities, expected in (({"extensions": declared}, declared), ({"extensions": 7}, {}), ({}, {})):
        assert ServerInfo("s", "", "", "", "", "modern", dict(capabilities), "").extensions == expected


def test_sync_hub_has_server_info() -> None:
    with SyncHub({"fake": fake_server()}, catalog_storage=None) as hub:
        hub.wait_ready("fake")
        found = hub.server_info("fake")
        assert found is not None and found.name == "fake"


@pytest.mark.user_trial("25")
async def test_custom_transport_is_supervised(tmp_path: Path) -> None:
    server = runpy.run_path(str(ROOT / "examples/own_transport.py"))["SocketServer"]
    async with Hub({"shout": server(str(tmp_path / "nobody.sock"))}, catalog_storage=None) as hub:
        with pytest.raises(ServerUnavailable) as caught:
            await hub.call_tool("shout.shout", {"text": "x"}, timeout=20)
        assert caught.value.executed == "no" and "No such file" in str(caught.value)
