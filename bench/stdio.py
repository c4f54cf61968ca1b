"""Cost of stdio servers in two checkouts: the start of a process, of a server, and one call. They run in turn.

    python -m bench.stdio --other CHECKOUT [--turns 20] [--starts 100] [--calls 2000]

Each turn is a new process of this interpreter with the source of one checkout, and the two begin in turn. A process is
started with the spawner alone. A server is the fake one of `toolway.testing`, from the hub's start to its tools.
Calls of its tool `echo` come one after the other. It prints both medians, and the median ratio per
turn (this checkout to the other one). It measures the CPU time of the hub's process, which other load affects least.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

PROGRAM: Final = """
import asyncio, json, os, sys, time
from toolway import Hub
from toolway.upstream.process.spawner import Spawner
starts, calls = int(sys.argv[1]), int(sys.argv[2])
fake = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"], "envPolicy": "inherit"}
fake["env"] = {"PYTHONPATH": os.environ["PYTHONPATH"]}

def close(pipe):
    os.close(pipe) if isinstance(pipe, int) else pipe.close()

async def start_processes(spawner):
    clock, cpu = [], time.process_time()
    for _ in range(starts):
        began = time.perf_counter()
        process = await spawner.start(["/bin/true"], {"PATH": os.environ["PATH"]}, None)
        clock.append(time.perf_counter() - began)
        await process.exited
        for pipe in (process.stdin, process.stdout, process.stderr):
            close(pipe)
    return sorted(clock)[starts // 2] * 1e6, (time.process_time() - cpu) / starts * 1e6

async def main():
    spawner = Spawner()
    await start_processes(spawner)
    spawn, spawn_cpu = await start_processes(spawner)
    await spawner.close()
    began = time.perf_counter()
    async with Hub({"mcpServers": {"fake": fake}}) as hub:
        await hub.list_tools()
        ready = time.perf_counter() - began
        for _ in range(calls // 5):
            await hub.call_tool("fake.echo", {"text": "x"})
        clock, cpu = time.perf_counter(), time.process_time()
        for _ in range(calls):
            await hub.call_tool("fake.echo", {"text": "x"})
        call_cpu, call = time.process_time() - cpu, time.perf_counter() - clock
    found = {"process, clock": spawn, "process, CPU": spawn_cpu, "server, clock": ready * 1e6}
    print(json.dumps({**found, "call, clock": call / calls * 1e6, "call, CPU": call_cpu / calls * 1e6}))

asyncio.run(main())
"""
TURN_TIMEOUT_S: Final = 300


def measure(checkout: Path, cache: str, starts: int, calls: int) -> dict[str, float]:
    """Return the microseconds of each item, in one process with the source of a checkout and bytecode in `cache`."""
    environ = {**os.environ, "PYTHONPATH": str(checkout / "src"), "PYTHONPYCACHEPREFIX": cache}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    words = [sys.executable, "-c", PROGRAM, str(starts), str(calls)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=TURN_TIMEOUT_S)
    if done.returncode != 0:
        raise SystemExit(f"{checkout}: {done.stderr}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, metavar="CHECKOUT", help="what this one is compared with")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--starts", type=int, default=100, help="of processes, in each turn")
    parser.add_argument("--calls", type=int, default=2000, help="in each turn")
    options = parser.parse_args()
    checkouts = (Path(__file__).resolve().parent.parent, options.other.resolve())
    turns: list[tuple[dict[str, float], dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as cache:
        for each in checkouts:
            measure(each, cache, 1, 10)  # writes the bytecode
        for number in range(options.turns):
            order = checkouts if number % 2 else checkouts[::-1]
            found = {each: measure(each, cache, options.starts, options.calls) for each in order}
            turns.append((found[checkouts[0]], found[checkouts[1]]))
    print(f"{options.turns} turns            other        this   ratio (lower to upper quarter)")
    for item in turns[0][0]:
        this, other = (statistics.median(turn[index][item] for turn in turns) for index in (0, 1))
        ratios = [turn[0][item] / turn[1][item] for turn in turns]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{item:16} {other:9.1f} µs {this:9.1f} µs   {middle:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
