"""`toolway serve --stdio`: a client of either era at our own pipes."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
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
async def test_client_lists_calls_and_is_asked(era: str, command: list[str], tmp_path: Path) -> None:
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


async def test_both_eras_and_invalid_messages_work_on_one_pipe(command: list[str], tmp_path: Path) -> None:
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
        """The next message of this kind; earlier ones are collected in `told`."""
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
        assert {tool["name"] for tool in (await answer())["result"]["tools"]} >= {"old__echo", "new__echo"}
        write({"jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": {"level": "debug"}})
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
        for tagged in (True, False):  # the listener and the session are notified
            if not any(_is_change(message, tagged) for message in told):
                await answer(partial(_is_change, tagged=tagged))
    finally:
        process.stdin.close()
        async with asyncio.timeout(30):
            assert await process.wait() == 0


# -- no handshake, and the end of the input ----------------------------------------------------------------------------


def request(id_: int, method: str, **params: Any) -> Json:
    return {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}


def call(id_: int, name: str, **arguments: Any) -> Json:
    return request(id_, "tools/call", name=name, arguments=arguments)


def lines(*messages: Json) -> bytes:
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


def answers(output: bytes) -> dict[int, Json]:
    return {message["id"]: message for message in map(json.loads, output.splitlines())}


@pytest.mark.promise("C15")
async def test_all_piped_requests_are_answered_before_the_end(command: list[str], tmp_path: Path) -> None:
    asked = lines(
        request(1, "tools/list"),
        call(2, "old__echo", text="hi"),
        call(3, "new__progress", n=3, seconds=0.3),
        call(4, "old__elicit", rounds=1),
        request(5, "ping"),
        call(6, "nowhere__echo"),
    )
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment(tmp_path)
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate(asked.rstrip(b"\n"))  # the last line may lack its end
    assert process.returncode == 0
    found = answers(output)
    assert found.keys() == {1, 2, 3, 4, 5, 6}
    assert {tool["name"] for tool in found[1]["result"]["tools"]} >= {"old__echo", "new__echo"}
    assert found[2]["result"]["content"][0]["text"] == "hi"
    assert "result" in found[3]
    assert "not supported by this client" in json.dumps(found[4])  # the server gets this error
    assert found[5]["result"] == {}
    assert found[6]["error"]["code"] == -32602


@pytest.mark.promise("C15")
async def test_input_and_output_may_be_files(command: list[str], tmp_path: Path) -> None:
    asked, told = tmp_path / "asked", tmp_path / "told"
    asked.write_bytes(lines(request(1, "tools/list"), call(2, "new__echo", text="hi")))
    for target in (str(told), os.devnull):
        shell = f'exec "$@" < {shlex.quote(str(asked))} > {shlex.quote(target)}'
        process = await asyncio.create_subprocess_exec("sh", "-c", shell, "sh", *command, env=environment(tmp_path))
        async with asyncio.timeout(60):
            assert await process.wait() == 0
    found = answers(told.read_bytes())
    assert found[1]["result"]["tools"] and found[2]["result"]["content"][0]["text"] == "hi"


async def test_gateway_ends_at_once_when_no_call_is_running(command: list[str], tmp_path: Path) -> None:
    """A session, a subscription and a question to the client do not keep the gateway alive."""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {"elicitation": {}}, "clientInfo": {}}
    meta = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {}}
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment(tmp_path)
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(
        lines(
            request(1, "initialize", **hello),
            request(2, "subscriptions/listen", notifications={"toolsListChanged": True}, _meta=meta),
            call(3, "old__elicit", rounds=1),
        )
    )
    async with asyncio.timeout(60):
        while json.loads(await process.stdout.readline()).get("method") != "elicitation/create":
            pass
        process.stdin.close()
        assert await process.wait() == 0


async def test_closed_client_cancels_its_calls(command: list[str], tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment(tmp_path)
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(lines(request(1, "tools/list"), call(2, "new__hold")))
    async with asyncio.timeout(60):
        assert json.loads(await process.stdout.readline())["id"] == 1
        process.stdout._transport.close()  # type: ignore[attr-defined]
        process.stdin.close()
        assert await process.wait() == 0  # long before the deadline of the call


def _is_change(message: Json, tagged: bool) -> bool:
    if message.get("method") != "notifications/tools/list_changed":
        return False
    return ("_meta" in message["params"]) == tagged
