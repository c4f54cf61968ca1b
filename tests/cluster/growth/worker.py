"""Some nodes in one process. It reads commands and writes its counts as lines of JSON on its pipes."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import sys
import time
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.cluster.growth.node import SimNode
from toolway.cluster import bus, member, placement
from toolway.cluster.db import engine, poll
from toolway.cluster.replication import change_feed

# The nodes of one process share what they hash about each other: what a node alone pays for it is measured by itself.
placement._score_all_slots = lru_cache(maxsize=1024)(placement._score_all_slots)


TRIES = 10


def _go_slowly(slow: float) -> None:
    """Let everything that is done again and again be done so many times less often: hundreds of nodes need more than
    the few cores of one machine, and what each of them costs does not depend on the hour."""
    for module, names in (
        (
            member,
            (
                "POLL_INTERVAL_S",
                "RESYNC_INTERVAL_S",
                "FORCED_RESYNC_S",
                "FIRST_CLAIM_DELAY_S",
                "OVERFLOW_INTERVAL_S",
                "CLAIM_STEP_S",
                "ORPHAN_CLAIM_STEP_S",
            ),
        ),
        (poll, ("EXPIRES_SOON_S",)),
        (change_feed, ("POLL_INTERVAL_S", "QUERY_TIMEOUT_S")),
        (bus, ("HEARTBEAT_INTERVAL_S",)),
        (engine, ("DATABASE_TIMEOUT_S", "IDLE_TRANSACTION_TIMEOUT_S", "PING_AFTER_IDLE_S")),
    ):
        for name in names:
            setattr(module, name, getattr(module, name) * slow)
    placement.claim_delay.__defaults__ = (placement.CLAIM_STEP_S * slow,)


class Worker:
    def __init__(self, database: str, nats: str, capacity: int, slow: float) -> None:
        _go_slowly(slow)
        self._slow = slow
        self._database = database
        self._nats = nats
        self._capacity = capacity
        self._nodes: list[SimNode] = []
        self._lag = 0.0

    async def start(self, ids: list[str]) -> Any:
        for id in ids:
            self._nodes.append(await self._started(id))
        return len(self._nodes)

    async def _started(self, id: str) -> SimNode:
        """A gateway that cannot start ends, and is started again."""
        for _ in range(TRIES):
            node = SimNode(id, self._database, self._capacity, self._slow)
            try:
                await node.start(self._nats)
                return node
            except Exception as exc:
                print(f"{id} did not start: {type(exc).__name__}", file=sys.stderr)
                await node.stop()
        raise RuntimeError(f"{id} did not start")

    async def counted(self) -> Any:
        total: Counter[str] = Counter()
        for node in self._nodes:
            total.update(node.count)
        return {
            **total,
            "held": sum(len(node.member.owned) for node in self._nodes),
            "most_held": max(len(node.member.owned) for node in self._nodes),
            "seen": min(len(node.member.nodes) for node in self._nodes),
            "listed_at": max(node.listed_at for node in self._nodes),
            "listed": sum(node.listed_at > 0 for node in self._nodes),
            "cpu": time.process_time(),
            "lag": self._lag,
        }

    async def memory(self) -> Any:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    async def forget_lists(self) -> Any:
        for node in self._nodes:
            node.listed_at = 0.0

    async def stop(self) -> Any:
        await asyncio.gather(*(node.stop() for node in self._nodes))

    async def watch(self) -> None:
        """How late the loop is: where it is much, what was measured says more of this machine than of a node."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.1)
            self._lag = max(self._lag, time.monotonic() - before - 0.1)


async def main() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    worker = Worker(*json.loads(await reader.readline()))
    watching = asyncio.create_task(worker.watch())
    while line := await reader.readline():
        name, *arguments = json.loads(line)
        answer = await getattr(worker, name)(*arguments)
        os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")
        if name == "stop":
            break
    watching.cancel()


if __name__ == "__main__":
    asyncio.run(main())
