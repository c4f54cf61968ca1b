"""Delay until a change at one node is known to all nodes, and accuracy of a rate limit across nodes.

    python scripts/cluster_change_feed.py [--times 50]

Three real `toolway serve --cluster`, three NATS servers, one PostgreSQL. Fails if a documented limit is exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `tests`, which is not a package of ours

from tests.faults.cluster.change_feed import Span, breaker, missed, new_tool, revocation, spending
from tests.faults.cluster.cluster import Cluster, cluster
from tests.faults.cluster.engines import missing_engines
from tests.faults.cluster.node_process import TOKEN
from toolway.testing import FakeHttp

RATES = (("20/s", 10.0, 0.01), ("600/min", 30.0, 0.01), ("60/min", 30.0, 0.05), ("5/min", 20.0, 0.2))
IN_FORCE = 1.0  # seconds, with NATS
WITHOUT = 2.5  # seconds, without
MISSED = 1.5  # seconds after it continues
LISTED = 3.0  # seconds: an owner asks for a list at most once a second
GATEWAYS = 3


def _line(what: str, seconds: Sequence[float]) -> str:
    middle = statistics.median(seconds)
    return f"  {what:<34} {1000 * middle:7.0f} ms in the middle, {1000 * max(seconds):7.0f} ms at the most"


def _spans(title: str, spans: Sequence[Span], limit: float) -> bool:
    print(f"{title}, {len(spans)} times")
    print(_line("a new key opens all three", [each.opened for each in spans]))
    print(_line("a revoked key opens none", [each.revoked for each in spans]))
    print(_line("its stream at another has ended", [each.stream for each in spans]), flush=True)
    return max(max(each.revoked, each.stream) for each in spans) < limit


async def _keys(made: Cluster, times: int) -> bool:
    well = _spans("keys, with NATS", [await revocation(made.replicas, each) for each in range(times)], IN_FORCE)
    late = [await missed(made.replicas, each) for each in range(max(3, times // 10))]
    print(_line("one that stood still in between", late), flush=True)
    well &= max(late) < MISSED
    for node in made.nats:
        await node.kill()
    spans = [await revocation(made.replicas, each) for each in range(max(3, times // 5))]
    well &= _spans("keys, without NATS", spans, WITHOUT)
    lists = [await new_tool(made.replicas, "s00", TOKEN) for _ in range(max(3, times // 10))]
    print(_line("a new tool is listed by all three", lists), flush=True)
    well &= max(lists) < LISTED + 1
    for node in made.nats:
        await node.start()
    return well


async def _servers(made: Cluster, web: FakeHttp, times: int) -> bool:
    print(f"servers, {times} times")
    lists = [await new_tool(made.replicas, "s00", TOKEN) for _ in range(times)]
    print(_line("a new tool is listed by all three", lists), flush=True)
    opened = []
    for _ in range(times):
        await web.stop()
        opened.append(await breaker(made.replicas, "web", "echo", TOKEN))
        await web.start()
        await made.replicas[0].request("POST", "/admin/breakers/web/reset")
        await asyncio.sleep(1.5)
    print(_line("what one leaves alone, all do", opened), flush=True)
    return max(lists) < LISTED and max(opened) < IN_FORCE


def _entry(web: FakeHttp) -> Mapping[str, Any]:
    return {"web": {"url": web.url, "maxRetries": 0}}


async def _rates(made: Cluster, short: bool) -> bool:
    well = True
    print("one key at three gateways: calls let through, calls the rate allows, and how far apart")
    for rate, seconds, pause in RATES[:1] if short else RATES:
        spent = await spending(made.replicas, "s00__echo", rate, seconds, pause)
        calls, unit = int(rate.partition("/")[0]), {"s": 1.0, "min": 60.0}[rate.partition("/")[2]]
        promised = calls * (1 + spent.seconds / unit)
        most = promised + max(GATEWAYS, calls / 4)
        well &= spent.passed <= most + 1
        share = 100 * (spent.passed / promised - 1)
        print(f"  {rate:<9} {spent.passed:5} of {promised:7.1f}  {share:+5.1f} %   refused {spent.refused}", flush=True)
    return well


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    missing = missing_engines()
    if missing is not None:
        print(missing)
        return 1
    times = 5 if options.short else options.times
    with tempfile.TemporaryDirectory(prefix="toolway-change-feed-") as folder:
        async with FakeHttp(name="web") as web, cluster(Path(folder), 3, apart=False, more=_entry(web)) as made:
            well = await _rates(made, options.short)
            well &= await _servers(made, web, max(3, times // 5))
            well &= await _keys(made, times)
    print("all promises were kept" if well else "A PROMISE WAS BROKEN")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
