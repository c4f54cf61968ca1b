"""`toolway serve --stdio`: a client of either era at our own pipes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters

from tests.gateway.bridge_lab import META, MODERN, MODES, OLD_WORDS, Json, pipe_entry, text

pytestmark = [pytest.mark.anyio, OLD_WORDS]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    config = tmp_path / "mcp.json"
    servers = {"old": pipe_entry("legacy"), "new": pipe_entry("modern")}
    config.write_text(json.dumps({"mcpServers": servers}))
    return [sys.executable, "-m", "toolway.cli", "serve", "--stdio", "--config", str(config)]


def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "TOOLWAY_STATE": str(tmp_path / "state")}


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_client_lists_calls_and_is_asked(era: str, command: list[str], tmp_path: Path) -> None:
    heard: list[float] = []

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    server = StdioServerParameters(command=command[0], args=command[1:], env=environment(tmp_path))
    async with asyncio.timeout(60), Client(server, mode=MODES[era], elicitation_callback=elicit) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        for name in ("old", "new"):
            assert f"{name}__echo" in names
            assert text(await client.call_tool(f"{name}__echo", {"text": "hi"})) == "hi"
            assert text(await client.call_tool(f"{name}__elicit", {"rounds": 2})).count("Ada") == 2
            await client.call_tool(f"{name}__progress", {"n": 2, "seconds": 0.05}, progress_callback=on_progress)
    assert heard == [1, 2, 1, 2]


async def test_both_eras_on_one_pipe_and_what_is_no_message(command: list[str], tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment(tmp_path)
    )
    assert process.stdin is not None and process.stdout is not None
    reader = process.stdout

    def write(message: Json | bytes) -> None:
        assert process.stdin is not None
        process.stdin.write((message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n")

    told: list[Json] = []

    async def answer(wanted: Callable[[Json], bool] = lambda message: "id" in message) -> Json:
        """The next message of this kind; others that come before it are told."""
        async with asyncio.timeout(60):
            while True:
                found: Json = json.loads(await reader.readline())
                if wanted(found):
                    return found
                told.append(found)

    def modern(id_: object, method: str, **params: Any) -> Json:
        meta = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {}}
        return {"jsonrpc": "2.0", "id": id_, "method": method, "params": {**params, "_meta": meta}}

    try:
        write(b"no json")
        assert (await answer())["error"]["code"] == -32700
        write({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        assert "initialize" in (await answer())["error"]["message"]
        write(modern(2, "server/discover"))
        assert MODERN in (await answer())["result"]["supportedVersions"]
        write({"jsonrpc": "2.0", "id": 3, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}})
        assert (await answer())["result"]["protocolVersion"] == "2025-06-18"
        write({"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": {"name": "old__echo"}})
        assert (await answer())["id"] == 4
        write(modern("held", "tools/call", name="new__hold", arguments={}))
        write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "held"}})
        write(modern("listen", "subscriptions/listen", notifications={"toolsListChanged": True}))
        begun = await answer(lambda message: str(message.get("method")).endswith("acknowledged"))
        assert begun["params"]["_meta"][f"{META}subscriptionId"] == "listen"
        told.clear()
        write(modern(5, "tools/call", name="new__change_tools", arguments={}))
        assert (await answer())["id"] == 5
        for tagged in (True, False):  # the listening client is told, and so is the session
            if not any(_is_change(message, tagged) for message in told):
                await answer(partial(_is_change, tagged=tagged))
    finally:
        process.stdin.close()
        async with asyncio.timeout(30):
            assert await process.wait() == 0


def _is_change(message: Json, tagged: bool) -> bool:
    if message.get("method") != "notifications/tools/list_changed":
        return False
    return ("_meta" in message["params"]) == tagged
