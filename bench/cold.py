"""Cold starts of a gateway before 18 stdio servers, and its list when it has been there before.

The fastest server beside 17 that are as fast, and beside 17 that start like a program made with the SDK (they import
it first), against the same server alone. Afterwards the gateway is started once more with the lists it has kept, and
asked for all of them at once; so is a hub in a process of its own. All have both cores, as on a laptop.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench import machine
from bench.asking import pages, tool_names
from bench.growth import wait_listed
from bench.install import ROOT
from bench.journal import Row
from bench.launch import Place, Server
from bench.measure import gateway, servers, started, wait_until_good
from bench.peers import by_name
from bench.plan import MANY, Behind, Case, Pace

_FIRST = Case("echo", "modern", 1)
_STARTS = (Behind("stdio"), Behind("stdio", MANY), Behind("stdio", MANY, slow=True))

#: From the moment a program has the hub to the moment it has all tools, with what was kept.
_HUB = """
import asyncio, json, sys, time
from toolway import Hub

async def main():
    began = time.perf_counter()
    async with Hub(sys.argv[1], catalog_dir=sys.argv[2]) as hub:
        if sys.argv[3] == "fill":
            await hub.list_tools()
        found = len(hub.tools())
        print(json.dumps({"seconds": time.perf_counter() - began, "items": found}))

asyncio.run(main())
"""


def cold(pace: Pace) -> Iterator[Row]:
    toolway = by_name("toolway")
    for turn in range(pace.turns):
        for behind in _STARTS:
            with servers(behind, "any") as there, gateway(toolway, there, "any") as one:
                yield {**_place("toolway", str(behind), "cold start", turn), "seconds": wait_until_good(one, _FIRST)}
    with servers(Behind("stdio", MANY), "any") as there:
        for turn in range(pace.turns):
            yield from _kept_by_gateway(there, turn)
            yield from _kept_by_hub(there, turn)


def _kept_by_gateway(there: tuple[Server, ...], turn: int) -> Iterator[Row]:
    toolway = by_name("toolway")
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        launch = toolway.launch(Place(there, machine.free_port(), Path(name), toolway.home))
        with started(launch, Path(name), "any") as one:
            wait_listed(one, MANY * Behind("stdio").tools)
        with started(launch, Path(name), "any") as one:
            listed = pages(one.launch.door)
    seconds, items = sum(page.seconds for page in listed), len(tool_names(listed))
    yield {**_place("toolway", "18 stdio", "kept list", turn), "seconds": seconds, "items": items}


def _kept_by_hub(there: tuple[Server, ...], turn: int) -> Iterator[Row]:
    entries = {one.name: {"command": one.command[0], "args": list(one.command[1:])} for one in there}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        file = Path(name) / "servers.json"
        file.write_text(json.dumps({"mcpServers": entries}))
        words = [sys.executable, "-c", _HUB, str(file), str(Path(name) / "kept")]
        said = ""
        for how in ("fill", "read"):
            command = machine.pinned([*words, how], machine.core_of("any"))
            said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    yield {**_place("hub", "18 stdio", "kept list", turn), **json.loads(said)}


def _place(peer: str, behind: str, work: str, turn: int) -> Row:
    return {"peer": peer, "behind": behind, "work": work, "era": "modern", "connections": 1, "turn": turn}
