"""The cost of a number of servers on a number of nodes, when idle and when something happens."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

from sqlalchemy import insert, text

from tests.cluster.db.encryption_keys import an_integrity
from tests.cluster.growth.engines import Engines, fresh_database
from tests.cluster.growth.node import TENANT
from toolway.cluster.db.catalog import ListStore, StoredList
from toolway.cluster.db.engine import open_engine, upgrade_schema
from toolway.cluster.db.instances import DesiredInstances, apply_desired_instances
from toolway.cluster.db.tables import ServerRow
from toolway.cluster.lease_clock import DEFAULT_LEASE_SETTINGS

ROOT: Final = Path(__file__).resolve().parent.parent.parent.parent
FULL_SPEED: Final = 100  # nodes; of more, each does everything less often, and what is measured is put right
SETTLE: Final = 2400.0  # seconds at the most
_numbers = count()


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one node, where nothing else is said; a second, where it is a rate."""

    servers: int
    replicas: int
    start_seconds: float  # from the first node to the moment when every server has an owner
    memory_mb: float
    cpu_ms: float
    renewals: float
    statements: float
    messages_sent: float
    messages_heard: float
    connections: float
    most_held: int  # servers of the node that has most
    record_transactions: float  # of all nodes
    record_rows: float  # of all nodes
    record_cpu: float  # cores
    nats_messages: float  # in and out, of all nodes
    nats_cpu: float  # cores
    lost_seconds: float  # from the death of a node to the moment when all that it had has an owner; nan: it had none
    lost_statements: float  # of each other node, on top of the usual ones
    change_seconds: float  # until every node knows of a server's new lists
    change_statements: float  # of each node, on top of the usual ones
    lag: float  # seconds by which a loop was late, at the most


class Process:
    """A process with some nodes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._turn = asyncio.Lock()
        self.nodes = 0

    @classmethod
    async def start(cls, *told: Any) -> Process:
        words = [sys.executable, "-m", "tests.cluster.growth.worker"]
        pipe = asyncio.subprocess.PIPE
        made = cls(await asyncio.create_subprocess_exec(*words, cwd=ROOT, stdin=pipe, stdout=pipe, limit=2**20))
        made._send(told)
        return made

    async def ask(self, *words: Any) -> Any:
        async with self._turn:
            self._send(words)
            assert self._process.stdout is not None
            return json.loads(await self._process.stdout.readline())

    def _send(self, words: Sequence[Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")

    async def add(self, ids: list[str]) -> None:
        self.nodes = await self.ask("start", ids)

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


class Cell:
    def __init__(self, engines: Engines, servers: int, replicas: int) -> None:
        self._engines = engines
        self._servers = servers
        self._replicas = replicas
        self._processes: list[Process] = []
        self._victim: Process | None = None
        self._slow = max(1.0, replicas / FULL_SPEED)
        self._empty = 0  # bytes of all processes before there are nodes
        self._usual = 0.0  # statements of a node a second, while nothing happens
        self._engine = open_engine(engines.database)

    async def measure(self, seconds: float) -> Figures:
        await upgrade_schema(self._engine)
        await self._start_nodes()
        await self._until(lambda found: found["seen"] == self._replicas)
        began = time.monotonic()
        await self._declare()
        await self._until(lambda found: found["held"] == self._servers)
        start = (time.monotonic() - began) / self._slow
        await self._until_quiet()
        quiet = await self._quiet(seconds)
        self._usual = quiet["statements"]
        return Figures(self._servers, self._replicas, start, **quiet, **await self._change(), **await self._lose_one())

    async def close(self) -> None:
        await self._engine.dispose()
        for process in self._all():
            await process.kill()

    # -- the ground ---------------------------------------------------------------------------------------------------

    async def _declare(self) -> None:
        names = [f"server-{number}" for number in range(self._servers)]
        for some in range(0, len(names), 1000):
            these = names[some : some + 1000]
            rows = [{"tenant": TENANT, "name": name, "definition": {}, "revision": 0} for name in these]
            async with self._engine.begin() as db:
                await db.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))  # others are busy, too
                await db.execute(insert(ServerRow), rows)
                await apply_desired_instances(db, TENANT, {name: DesiredInstances() for name in these})

    async def _start_nodes(self) -> None:
        """One of them in its own process: it will be killed."""
        capacity = self._servers  # room is not what is measured
        rest = self._replicas - 1
        share = max(1, -(-rest // (os.cpu_count() or 1)))
        where = (self._engines.database, self._engines.nats, capacity, self._slow)
        self._victim = await Process.start(*where)
        self._processes = [await Process.start(*where) for _ in range(-(-rest // share))]
        self._empty = await self._memory()
        ids = [f"node-{number}" for number in range(self._replicas)]
        await self._victim.add([ids.pop()])
        while ids:
            some = [[ids.pop() for _ in range(min(len(ids), 5, share - process.nodes))] for process in self._processes]
            await asyncio.gather(*(p.add(mine) for p, mine in zip(self._processes, some, strict=True) if mine))

    async def _until_quiet(self) -> None:
        """Nothing has moved for a while: longer than a lease, for which a place that another should own is kept where
        that other may have died."""
        took = -1
        async with asyncio.timeout(SETTLE):
            while (found := (await self._counted()).get("took", 0)) != took:
                took = found
                await asyncio.sleep(1.2 * DEFAULT_LEASE_SETTINGS.ttl * self._slow)

    async def _until(self, reached: Callable[[dict[str, Any]], bool], seconds: float = SETTLE) -> dict[str, Any]:
        async with asyncio.timeout(seconds):
            while not reached(found := await self._counted()):
                await asyncio.sleep(0.2)
        return found

    # -- what is measured ---------------------------------------------------------------------------------------------

    async def _quiet(self, seconds: float) -> dict[str, Any]:
        before, engines_before, at = await self._counted(), self._engines.counted(), time.monotonic()
        await asyncio.sleep(seconds * self._slow)
        after, engines_after = await self._counted(), self._engines.counted()
        took = (time.monotonic() - at) / self._slow

        def rate(key: str) -> float:
            return float(after.get(key, 0) - before.get(key, 0)) / took / self._replicas

        def engine(key: str) -> float:
            return (engines_after[key] - engines_before[key]) / took

        return {
            "memory_mb": (await self._memory() - self._empty) / self._replicas / 1e6,
            "cpu_ms": rate("cpu") * 1000,
            "renewals": rate("renewal"),
            "statements": rate("statements"),
            "messages_sent": engine("messages_in") / self._replicas,
            "messages_heard": rate("heard"),
            "connections": engines_after["connections"] / self._replicas,
            "most_held": after["most_held"],
            "record_transactions": engine("transactions"),
            "record_rows": engine("rows"),
            "record_cpu": engine("postgres_cpu"),
            "nats_messages": engine("messages_in") + engine("messages_out"),
            "nats_cpu": engine("nats_cpu"),
            "lag": after["lag"],
        }

    async def _change(self) -> dict[str, Any]:
        """The lists of one server change."""
        before = await self._counted()
        listed = StoredList("", "modern", {}, {"tools": [{"name": "echo"}]}, fence=2**50)
        at = time.time()
        assert await ListStore(self._engine, an_integrity()).put(TENANT, "server-0", listed) is not None
        after = await self._until(lambda found: found["listed"] == self._replicas, 30 * self._slow)
        return {
            "change_seconds": (after["listed_at"] - at) / self._slow,
            "change_statements": self._beyond_usual(before, after, self._replicas),
        }

    async def _lose_one(self) -> dict[str, Any]:
        assert self._victim is not None
        victim, self._victim = self._victim, None
        had = (await victim.ask("counted"))["held"]
        before, at = await self._counted(), time.monotonic()
        await victim.kill()
        after = await self._until(lambda found: found["held"] == self._servers, 120 * self._slow)
        return {
            "lost_seconds": (time.monotonic() - at) / self._slow if had else math.nan,
            "lost_statements": self._beyond_usual(before, after, self._replicas - 1),
        }

    def _beyond_usual(self, before: dict[str, Any], after: dict[str, Any], nodes: int) -> float:
        """Statements of a node that it would not have made anyway."""
        each = float(after["statements"] - before["statements"]) / nodes
        return max(0.0, each - self._usual * float(after["at"] - before["at"]) / self._slow)

    async def _memory(self) -> int:
        return sum(await asyncio.gather(*(process.ask("memory") for process in self._all())))

    async def _counted(self) -> dict[str, Any]:
        """The sum over all nodes."""
        answers = await asyncio.gather(*(process.ask("counted") for process in self._all()))
        total = {key: sum(answer.get(key, 0) for answer in answers) for key in {k for a in answers for k in a}}
        total["most_held"] = max(answer["most_held"] for answer in answers)
        total["seen"] = min(answer["seen"] for answer in answers)
        total["listed_at"] = max(answer["listed_at"] for answer in answers)
        total["at"] = time.monotonic()
        total["lag"] = max(answer["lag"] for answer in answers)
        return total

    def _all(self) -> list[Process]:
        return [*self._processes, *([self._victim] if self._victim is not None else [])]


async def measure(engines: Engines, servers: int, replicas: int, seconds: float) -> Figures:
    with fresh_database(engines.database, f"growth{next(_numbers)}") as database:
        cell = Cell(replace(engines, database=database), servers, replicas)
        try:
            return await cell.measure(seconds)
        finally:
            await cell.close()
