"""What a cluster costs by the number of its servers and replicas, with real nodes, PostgreSQL and NATS.

    python scripts/cluster_growth.py [--servers 1000,10000,50000] [--replicas 3,50,500] [--seconds 20] [--write]
    python scripts/cluster_growth.py --short
    python scripts/cluster_growth.py --kept --write        the page, from what was measured before

The nodes are gateway nodes (lease, places, news, changes), many in a process; no server is started. Where there are
more than a hundred, each of them does everything less often, and rates and durations are put right: a machine of two
cores has no time for five hundred nodes. Prints the figures of each pair, and keeps them in build/cluster-growth.jsonl,
so the grid can be measured in parts: it takes an hour. `--write` puts the newest of all pairs that are kept into
docs/cluster/sizing.md. Fails where something that is done again and again grows with servers × replicas.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `tests`, which is not a package of ours

from tests.cluster.growth import gateway, page, saved_results
from tests.cluster.growth.engines import engines
from tests.cluster.growth.measurement import measure
from tests.faults.cluster.engines import missing_engines


async def main() -> int:
    parser = argparse.ArgumentParser(description="What a cluster costs by the number of its servers and replicas.")
    parser.add_argument("--servers", type=_numbers, default=(1_000, 10_000, 50_000), metavar="N,N")
    parser.add_argument("--replicas", type=_numbers, default=(3, 50, 500), metavar="N,N")
    parser.add_argument("--seconds", type=float, default=20.0, help="of quiet that are measured (20)")
    parser.add_argument("--short", action="store_true", help="300 servers and 3 and 12 replicas, for a few seconds")
    parser.add_argument("--write", action="store_true", help="put the figures into docs/cluster/sizing.md")
    parser.add_argument("--kept", action="store_true", help="measure nothing: the figures that were kept before")
    options = parser.parse_args()
    if missing := missing_engines():
        print(f"nothing was measured: {missing}")
        return 1
    servers, replicas, seconds = options.servers, options.replicas, options.seconds
    if options.short:
        servers, replicas, seconds = (300,), (3, 12), 4.0
    if options.kept:
        replicas = ()
    found = []
    async with engines() as running:
        for count in replicas:
            for some in servers:
                found.append(await measure(running, some, count, seconds))
                print(found[-1], flush=True)
                if not options.short:
                    saved_results.keep(found[-1])
    if options.write or options.kept:
        found = saved_results.all()
    text = page.tables(found, [gateway.measure(some) for some in sorted({each.servers for each in found})])
    print(text)
    if options.write:
        page.write(text)
    wrong = page.broken(found)
    print("\n".join(wrong) or "nothing that is done again and again grows with servers × replicas")
    return 1 if wrong else 0


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    sys.exit(asyncio.run(main()))
