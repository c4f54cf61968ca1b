"""The first seconds of a gateway: a call waits for its own server, and for no other."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.gateway.edge_lab import TOKEN, Edge
from tests.timing import within
from toolway.gateway.gateway import Gateway
from toolway.gateway.gateway_options import LiveSettings
from toolway.gateway.principals import FileApiKeyStore
from toolway.gateway.tool_filter import ToolFilter
from toolway.hub.core import HubCore
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio


async def test_call_after_start_waits_only_for_its_own_server(tmp_path: Path) -> None:
    silent = {"command": "sleep", "args": ["60"]}
    keyring = FileApiKeyStore(tmp_path / "keys.json", TOKEN)
    async with HubCore({"quick": fake_server(), "a": silent, "z": silent}, catalog_storage=None) as hub:
        gateway = Gateway(hub, b"k" * 32, keyring)
        edge = Edge(hub, gateway, keyring, await gateway.listen("127.0.0.1", 0), {})
        began = time.monotonic()
        answer = await edge.call("quick__echo", {"text": "hello"})
        assert "hello" in str(answer["result"]["content"])
        unknown = await edge.call("quick__nothing")
        assert unknown["error"]["code"] == -32602
        assert time.monotonic() - began < within(8)  # lists of all are waited for 10 s
        hurry = asyncio.Event()
        hurry.set()
        await gateway.drain(hurry, 0, 0)


@pytest.mark.user_trial("1", "2")
async def test_lists_omit_bad_servers_and_calls_report_their_state(tmp_path: Path) -> None:
    servers = {
        "good": fake_server(),
        "hang": {"command": "sleep", "args": ["600"]},
        "gone": {"url": "http://127.0.0.1:9/mcp"},
        "off": {**fake_server(), "enabled": False},
    }
    keyring = FileApiKeyStore(tmp_path / "keys.json", TOKEN)
    async with HubCore(servers, catalog_storage=None) as hub:
        gateway = Gateway(hub, b"k" * 32, keyring, settings=LiveSettings(lambda: {"good": ToolFilter(("good.*",))}))
        edge = Edge(hub, gateway, keyring, await gateway.listen("127.0.0.1", 0), {})
        began = time.monotonic()
        assert {name.partition("__")[0] for name in await edge.tools()} == {"good"}
        assert time.monotonic() - began < within(6)  # it waited 10 s for the hanging one before
        for name, code, text in (
            ("gone__echo", "E-HTTP-CONNECT", "cannot connect"),
            ("hang__echo", "E-UNAVAILABLE", "starting"),
            ("off__echo", "E-UNAVAILABLE", "disabled"),
        ):
            error = (await edge.call(name))["error"]
            assert error["code"] == -31001 and error["data"]["code"] == code, error
            assert error["data"]["executed"] == "no" and text in error["message"]
            hidden = (await edge.call(name, token=edge.key("good"), path="/mcp/good"))["error"]
            assert hidden["code"] == -32602 and "Unknown tool" in hidden["message"]
        hurry = asyncio.Event()
        hurry.set()
        await gateway.drain(hurry, 0, 0)
