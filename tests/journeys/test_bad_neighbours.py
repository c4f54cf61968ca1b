"""One hanging, one crashing, one late and one slow server: what everything else waits for, as real processes.

`make long-tests ARGS=timing` holds the strict times: two seconds the first time, half a second later, on top of the
time that the same command takes with the good server alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.edge_lab import TOKEN, Edge
from tests.timing import within
from toolway import Hub
from toolway.gateway.gateway import Gateway
from toolway.gateway.principals import FileApiKeyStore
from toolway.hub.core import HubCore
from toolway.testing import fake_server

FIRST_S = 2.0
LATER_S = 0.5
# Four more processes are started, on two cores, and their ends are waited for: not a wait for an answer.
START_S = 1.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def servers() -> dict[str, Any]:
    good = fake_server()
    words = " ".join([good["command"], *good["args"]])
    return {
        "good": good,
        "hang": {"command": "sleep", "args": ["1000"]},
        "crash": {"command": "sh", "args": ["-c", "exit 3"]},
        "late": {"url": f"http://127.0.0.1:{free_port()}/mcp"},
        "slow": {"command": "sh", "args": ["-c", f"sleep 60; exec {words}"]},
    }


BAD = {"hang", "crash", "late", "slow"}


def run(file: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], float]:
    began = time.monotonic()
    command = [sys.executable, "-m", "toolway.cli", *words, "--config", str(file)]
    result = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    return result, time.monotonic() - began


@pytest.mark.user_trial("1")
@pytest.mark.parametrize(
    ("words", "known"),
    [
        (("ls",), "good"),
        (("tools",), "good.echo"),
        (("tools", "cost"), "good"),
        (("search", "echo"), "good.echo"),
        (("prompts",), "good.greet"),
        (("resources",), "fake://text"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_commands_name_each_bad_server_once_and_show_the_rest(
    words: tuple[str, ...], known: str, tmp_path: Path
) -> None:
    every, alone = tmp_path / "every.json", tmp_path / "alone.json"
    every.write_text(json.dumps({"mcpServers": servers()}))
    alone.write_text(json.dumps({"mcpServers": {"good": fake_server()}}))
    _, base = run(alone, *words)
    for bound in (FIRST_S, LATER_S):
        result, took = run(every, *words)
        assert known in result.stdout
        if words != ("ls",):  # it has a row for each server
            lines = result.stderr.splitlines()
            assert {name: sum(line.startswith((f"{name}:", f"{name} is")) for line in lines) for name in BAD} == (
                dict.fromkeys(BAD, 1)
            ), result.stderr
        assert took <= within(base + bound + START_S), f"{took:.2f} s, and {base:.2f} s with the good server alone"


@pytest.mark.anyio
@pytest.mark.user_trial("1")
async def test_library_and_gateway_lists_do_not_wait_for_bad_servers(tmp_path: Path) -> None:
    async def take(work: Callable[[], Awaitable[Any]], bound: float) -> Any:
        began = time.monotonic()
        found = await work()
        assert time.monotonic() - began <= within(bound)
        return found

    async with Hub(servers()) as hub:
        assert {tool.server for tool in await take(hub.list_tools, FIRST_S + START_S)} == {"good"}
        assert {tool.server for tool in await take(hub.list_tools, LATER_S)} == {"good"}
        assert await take(lambda: hub.search_tools("echo"), LATER_S)
    keyring = FileApiKeyStore(tmp_path / "keys.json", TOKEN)
    async with HubCore(servers(), catalog_storage=None) as core:
        gateway = Gateway(core, b"k" * 32, keyring)
        edge = Edge(core, gateway, keyring, await gateway.listen("127.0.0.1", 0), {})
        for bound in (FIRST_S + START_S, LATER_S):
            assert {name.partition("__")[0] for name in await take(edge.tools, bound)} == {"good"}
        hurry = asyncio.Event()
        hurry.set()
        await gateway.drain(hurry, 0, 0)
