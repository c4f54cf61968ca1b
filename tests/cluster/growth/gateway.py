"""What a gateway holds of every server of its tenant, wherever that runs: measured in its own process.

python -m tests.cluster.growth.gateway 10000
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from toolway.config.schema import Server
from toolway.hub.core import HubCore

ROOT: Final = Path(__file__).resolve().parent.parent.parent.parent
TOOLS: Final = 10  # of each server, with 400 characters of text each


@dataclass(frozen=True, slots=True)
class Held:
    servers: int
    hub_kb: float  # of a server that is not started
    lists_kb: float  # of its tools
    seconds: float  # of CPU, until all are known
    idle_ms: float  # of CPU a second, afterwards


def measure(servers: int) -> Held:
    words = [sys.executable, "-m", "tests.cluster.growth.gateway", str(servers)]
    done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=900)
    return Held(**json.loads(done.stdout))


async def _measure(servers: int) -> dict[str, Any]:
    tools = msgspec.json.encode([_tool(number) for number in range(TOOLS)])
    empty, began = _bytes(), time.process_time()
    async with HubCore({f"server-{number}": Server(command="cat", lazy=True) for number in range(servers)}) as hub:
        known = _bytes()
        for number in range(servers):
            hub.lists.import_lists(f"server-{number}", {"tools": msgspec.json.decode(tools)})
            if number % 100 == 0:
                await asyncio.sleep(0)
        full, took = _bytes(), time.process_time() - began
        before = time.process_time()
        await asyncio.sleep(3)
        idle = (time.process_time() - before) / 3
    return {
        "servers": servers,
        "hub_kb": (known - empty) / servers / 1000,
        "lists_kb": (full - known) / servers / 1000,
        "seconds": took,
        "idle_ms": idle * 1000,
    }


def _tool(number: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"query": {"type": "string", "description": "y" * 100}}}
    return {"name": f"tool-{number}", "description": "x" * 300, "inputSchema": schema}


def _bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_measure(int(sys.argv[1])))))
