"""Cost of the tool search: time of a query, of the first search, memory, and pauses of the event loop.

python -m bench.search.speed [TOOLS…]     default: 504, 5000 and 50000 tools
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from typing import Any

from bench.search.ours import Searched
from bench.search.sets import load

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


if __name__ == "__main__":
    for size in map(int, sys.argv[1:] or ["504", "5000", "50000"]):
        asyncio.run(measure(size))
