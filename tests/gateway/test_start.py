"""The first seconds of a gateway: a call waits for its own server, and for no other."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.gateway.edge_lab import TOKEN, Edge
from tests.timing import within
from toolway.gateway.gateway import Gateway
from toolway.gateway.principals import FileApiKeyStore
from toolway.hub.core import HubCore
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio


async def test_a_call_right_after_the_start_waits_only_for_the_server_it_names(tmp_path: Path) -> None:
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
