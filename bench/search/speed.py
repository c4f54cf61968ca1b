"""Cost of the tool search: time of a query, of the first search, memory, and pauses of the event loop.

    python -m bench.search.speed [TOOLS…]                        default: 504, 5000 and 50000 tools
    python -m bench.search.speed gateway [TOOLS [TOOLS_A_SERVER]]  the same inside a gateway: `search_tools` of a client

A pause of the loop is the time of one callback. On a machine that is not quiet, another program that takes the
processor makes it longer. So the CPU time of the longest callback is printed next to it.
"""

from __future__ import annotations

import asyncio
import gc
import re
import resource
import sys
import time
from typing import Any

from bench.search.ours import Searched
from bench.search.sets import load
from toolway.config.server_entry import parse_entry
from toolway.gateway.gateway import Gateway
from toolway.gateway.mcp.context import RequestContext
from toolway.gateway.principals import LOCAL_ADMIN
from toolway.hub.core import HubCore

ROUNDS = 15  # of all queries: some of them run while no other program slows the processor down
SERVER_TOOLS = 12  # tools of a server, as in the 42 servers of the corpus


def make_tools(count: int) -> list[dict[str, Any]]:
    """Return tools of all public sets, spread over servers; repeated under other names if there are too few."""
    every = [tool for name in ("livemcpbench", "sealtools", "metatool") for tool in load(name)["tools"]]
    made = []
    for number in range(count):
        tool, again = every[number % len(every)], number // len(every)
        name = f"{tool['name'][:100]}{f'_{again}' if again else ''}"
        made.append({**tool, "id": str(number), "server": f"server{number // SERVER_TOOLS}", "name": name})
    return made


async def longest_pause(stop: asyncio.Event) -> float:
    """Return the longest time, in ms, by which a timer of 1 ms was late until `stop`."""
    worst = 0.0
    while not stop.is_set():
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        worst = max(worst, (time.perf_counter() - began) * 1000 - 1)
    return worst


class LoopWatch:
    """Measures the longest callback of the event loop, by wall clock and by CPU time."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0  # ms
        run = asyncio.events.Handle._run

        def timed(handle: Any) -> None:
            wall, cpu = time.perf_counter(), time.thread_time()
            run(handle)
            self.wall = max(self.wall, (time.perf_counter() - wall) * 1000)
            self.cpu = max(self.cpu, (time.thread_time() - cpu) * 1000)

        asyncio.events.Handle._run = timed  # type: ignore[assignment]  # only for this measurement

    def reset(self) -> str:
        """Return the measurements since the last reset, and reset them."""
        said = f"longest callback {self.wall:.1f} ms ({self.cpu:.1f} ms CPU)"
        self.wall = self.cpu = 0.0
        return said


async def measure_gateway(count: int, tools_a_server: int) -> None:
    """Measure searches at `/mcp/search` of a gateway whose servers have listed this many tools."""
    queries = [query["text"] for query in load("livemcpbench-agents")["queries"]]
    tools: dict[str, list[dict[str, Any]]] = {}
    for number, tool in enumerate(make_tools(count)):
        properties = {name: {"type": "string", "description": text} for name, text in tool.get("params", ())}
        name = re.sub(r"[^A-Za-z0-9_./-]", "_", tool["name"])[:110] + f"_{number}"
        schema = {"type": "object", "properties": properties}
        listed = tools.setdefault(f"server{number // tools_a_server}", [])
        listed.append({"name": name, "description": tool.get("description", ""), "inputSchema": schema})
    servers: dict[str, Any] = {name: {"command": "true", "lazy": True} for name in tools}
    async with HubCore({name: parse_entry(entry) for name, entry in servers.items()}, catalog_storage=None) as hub:
        for name, listed in tools.items():
            hub.lists.catalog.replace(name, "tools", listed)
        gateway = Gateway(hub, b"k" * 32, None)
        view = gateway.router.view_for(LOCAL_ADMIN, "search")
        assert view is not None
        context = RequestContext(LOCAL_ADMIN, view, "search", "modern", {})
        for _ in range(10):  # the tasks of the servers begin
            await asyncio.sleep(0)
        gc.collect()
        gc.freeze()  # as `toolway serve` does after the start
        watch = LoopWatch()

        async def search(text: str) -> float:
            params = {"name": "search_tools", "arguments": {"query": text}}
            began = time.perf_counter()
            await gateway._dispatcher.dispatch(context, "tools/call", params)
            return (time.perf_counter() - began) * 1000

        await asyncio.sleep(0)
        watch.reset()
        print(f"{count:6} tools of {len(tools)} servers at /mcp/search")
        cpu = time.process_time()
        first = await search(queries[0]) / 1000
        cpu = time.process_time() - cpu
        await asyncio.sleep(0)  # lets its last callback end
        print(f"  first search      {first:.2f} s ({cpu:.2f} s CPU), {watch.reset()}")
        for query in queries:
            await search(query)
            await asyncio.sleep(0)  # one search per callback
        print(f"  {len(queries)} searches      {watch.reset()}")
        name, listed = next(iter(tools.items()))
        hub.lists.catalog.replace(name, "tools", listed[:-1])
        await asyncio.sleep(0)
        watch.reset()
        print(f"  a list changes    {await search(queries[0]):.1f} ms, {watch.reset()}", flush=True)
        times, cheapest, loops = [], dict.fromkeys(queries, 1e9), []
        for query in queries * ROUNDS:
            await asyncio.sleep(0)
            cpu = time.process_time()
            await search(query)
            times.append((time.process_time() - cpu) * 1000)
            cheapest[query] = min(cheapest[query], times[-1])
            loops.append(_time_loop())
        loops.sort()
        print(f"  a search          {_percentiles(times)} (CPU)")
        print(f"  cheapest of {ROUNDS:2}    {_percentiles(list(cheapest.values()))} (CPU), at full speed")
        print(f"  speed             {loops[0] / loops[len(loops) // 2]:.0%} of the full speed, by a fixed loop")


def _time_loop() -> float:
    """Return the CPU time of a fixed loop: how fast the processor is now. Neighbours on its core halve its speed."""
    cpu = time.process_time()
    sum(range(10_000))
    return time.process_time() - cpu


def _percentiles(times: list[float]) -> str:
    times = sorted(times)
    return f"p50 {times[len(times) // 2]:.2f} ms, p99 {times[int(len(times) * 0.99)]:.2f} ms"


async def measure(count: int) -> None:
    queries = [query["text"] for query in load("livemcpbench-agents")["queries"]]
    searched = Searched(make_tools(count))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stop = asyncio.Event()
    watching = asyncio.create_task(longest_pause(stop))
    await asyncio.sleep(0.05)
    began = time.perf_counter()
    await searched.search.search_async(queries[0])
    first = time.perf_counter() - began
    for query in queries[:60]:
        await searched.search.search_async(query)
    stop.set()
    pause = await watching
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024

    times = []
    for query in queries * 2:
        cpu = time.thread_time()
        searched.search.search(query)
        times.append((time.thread_time() - cpu) * 1000)
    times.sort()
    p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
    print(
        f"{count:6} tools: first search {first:.2f} s, query p50 {p50:.2f} ms, p99 {p99:.2f} ms (CPU), "
        f"longest pause of the loop {pause:.1f} ms, +{memory:.0f} MB",
        flush=True,
    )


def _sizes(words: list[str]) -> tuple[int, int]:
    """Return the number of tools, and that of each server, from the command line."""
    return int(words[0]) if words else 50_000, int(words[1]) if len(words) > 1 else SERVER_TOOLS


if __name__ == "__main__":
    if sys.argv[1:2] == ["gateway"]:
        asyncio.run(measure_gateway(*_sizes(sys.argv[2:])))
        sys.exit()
    for size in map(int, sys.argv[1:] or ["504", "5000", "50000"]):
        asyncio.run(measure(size))
