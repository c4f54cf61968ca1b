"""Cold start of a gateway with 18 stdio servers, and its tool list on a later start.

Measured is the first result of the fastest server: alone, with 17 other servers that start as fast, and with 17 that
import the SDK first, as a server made with it does. Then the gateway starts again with its stored catalog, and all
pages of the tool list are requested at once. A hub in a separate process does the same. All processes may use both
cores, as on a laptop.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench import machine
from bench.growth import wait_listed
from bench.install import ROOT
from bench.journal import Row
from bench.launch import LaunchContext, Server
from bench.measure import gateway, servers, started, wait_until_ready
from bench.peers import get_peer
from bench.plan import MANY, Case, Pace, ServerGroup
from bench.single_request import list_pages, tool_names

_FIRST = Case("echo", "modern", 1)
_STARTS = (ServerGroup("stdio"), ServerGroup("stdio", MANY), ServerGroup("stdio", MANY, slow=True))

#: Prints the time from entering the hub until all tools are known from the stored catalog.
_HUB = """
import asyncio, json, sys, time
from toolway import Hub

async def main():
    began = time.perf_counter()
    async with Hub(sys.argv[1], catalog_storage=sys.argv[2]) as hub:
        if sys.argv[3] == "fill":
            await hub.list_tools()
        found = len(hub.known_tools())
        print(json.dumps({"seconds": time.perf_counter() - began, "items": found}))

asyncio.run(main())
"""


def cold(pace: Pace) -> Iterator[Row]:
    toolway = get_peer("toolway")
    for turn in range(pace.turns):
        for behind in _STARTS:
            with servers(behind, "any") as upstreams, gateway(toolway, upstreams, "any") as one:
                yield {**_row("toolway", str(behind), "cold start", turn), "seconds": wait_until_ready(one, _FIRST)}
    with servers(ServerGroup("stdio", MANY), "any") as upstreams:
        for turn in range(pace.turns):
            yield from _stored_list_of_gateway(upstreams, turn)
            yield from _stored_list_of_hub(upstreams, turn)


def _stored_list_of_gateway(upstreams: tuple[Server, ...], turn: int) -> Iterator[Row]:
    toolway = get_peer("toolway")
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        launch = toolway.launch(LaunchContext(upstreams, machine.free_port(), Path(name), toolway.home))
        with started(launch, Path(name), "any") as one:
            wait_listed(one, MANY * ServerGroup("stdio").tools)
        with started(launch, Path(name), "any") as one:
            listed = list_pages(one.launch.endpoint)
    seconds, items = sum(page.seconds for page in listed), len(tool_names(listed))
    yield {**_row("toolway", "18 stdio", "kept list", turn), "seconds": seconds, "items": items}


def _stored_list_of_hub(upstreams: tuple[Server, ...], turn: int) -> Iterator[Row]:
    entries = {one.name: {"command": one.command[0], "args": list(one.command[1:])} for one in upstreams}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        file = Path(name) / "servers.json"
        file.write_text(json.dumps({"mcpServers": entries}))
        words = [sys.executable, "-c", _HUB, str(file), str(Path(name) / "catalog")]
        output = ""
        for mode in ("fill", "read"):
            command = machine.pin_to_core([*words, mode], machine.core_for("any"))
            output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    yield {**_row("hub", "18 stdio", "kept list", turn), **json.loads(output)}


def _row(peer: str, behind: str, work: str, turn: int) -> Row:
    return {"peer": peer, "behind": behind, "work": work, "era": "modern", "connections": 1, "turn": turn}
