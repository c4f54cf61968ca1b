"""Limits of Toolway's workflow engine: speed without calls, waiting runs, a large journal, take-over after a death.

python -m bench.workflows.limits [--quick]         # prints a table of targets
python -m bench.workflows.limits idle FILE SECONDS # a process that executes the runs of a journal; used by the above
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from bench.formatting import markdown
from bench.install import ROOT
from bench.workflows.compare import effect_server
from bench.workflows.node import CLUSTER_KEY, TENANT, open_journal
from bench.workflows.steps import measure_postgresql, measure_sqlite
from tests.telemetry.postgres_server import binaries, postgres_server
from toolway import Hub
from toolway.cluster.db.engine import open_engine, upgrade_schema
from toolway.cluster.db.run_journal import PostgresJournal
from toolway.cluster.lease_clock import DEFAULT_LEASE_SETTINGS as LEASE
from toolway.workflows import Workflows
from toolway.workflows.sqlite_journal import SqliteJournal

WAITING = 10_000
ROWS = 1_000_000
LOOKS = 200
TAKEOVER_RUNS = 40
_MEGABYTE = 1024 * 1024


class Limit(NamedTuple):
    """A measured figure and its target."""

    name: str
    wanted: str
    measured: str
    reached: bool


def measure_limits(quick: bool) -> Iterator[Limit]:
    """Measure everything; yield each figure as soon as it is known."""
    rows = ROWS // 10 if quick else ROWS
    yield from _speed("SQLite", 5000, lambda: measure_sqlite(100, 20 if quick else 50))
    yield from _waiting(5 if quick else 20)
    yield from _large_sqlite(rows)
    programs = binaries()
    if programs is None:
        return
    with postgres_server(programs, connections=60) as server:

        def database(name: str) -> str:
            with psycopg.connect(server, autocommit=True) as db:
                db.execute(f"CREATE DATABASE {name}".encode())
            return server.replace("/postgres?", f"/{name}?")

        url = database("steps")
        yield from _speed("PostgreSQL", 2500, lambda: asyncio.run(measure_postgresql(url, 100, 20 if quick else 50)))
        yield asyncio.run(_large_postgresql(database("large"), rows))
        yield asyncio.run(_take_over(database("death"), 1 if quick else 3))


def _speed(name: str, wanted: int, measure: Callable[[], tuple[float, float]]) -> Iterator[Limit]:
    rate, cpu = measure()
    title = f"unsafe steps a second, 100 runs at once, calls that do nothing, {name}"
    yield Limit(title, f"≥ {wanted:,}", f"{rate:,.0f} ({cpu:.3f} ms CPU a step)", rate >= wanted)


# -- waiting runs -----------------------------------------------------------------------------------------------------


def _waiting(seconds: int) -> Iterator[Limit]:
    with tempfile.TemporaryDirectory(prefix="toolway-bench-") as folder:
        empty, full = Path(folder) / "empty.db", Path(folder) / "full.db"
        asyncio.run(_create_waiting(empty, 0))
        asyncio.run(_create_waiting(full, WAITING))
        without, found = _idle(empty, seconds), _idle(full, seconds)
        memory = found["rss"] - without["rss"]
        share = found["cpu"] / seconds * 100
        cpu = f"{share:.2f} % (without runs {without['cpu'] / seconds * 100:.2f} %)"
        more = (found["open"] - without["open"]) * 1000
        yield Limit(
            f"memory of {WAITING:,} waiting runs", "≤ 5 MB", f"{memory / _MEGABYTE:.1f} MB", memory <= 5 * _MEGABYTE
        )
        yield Limit(f"CPU of a process with {WAITING:,} waiting runs", "≤ 0.5 % of a core", cpu, share <= 0.5)
        yield Limit(
            f"a restart with {WAITING:,} waiting runs takes longer by", "≤ 100 ms", f"{more:.0f} ms", more <= 100
        )
        with sqlite3.connect(full) as db:
            db.execute("UPDATE runs SET due = 0")
        taken, elapsed = asyncio.run(_take_all(full))
        title = f"{WAITING:,} runs due at once: all are taken within"
        yield Limit(title, "≤ 2 s", f"{elapsed:.2f} s", elapsed <= 2 and taken == WAITING)
        done, elapsed, lag = asyncio.run(_execute_all(full))
        title = f"delay of other work while {WAITING:,} runs due at once are executed, p99"
        figure = f"{lag * 1000:.0f} ms ({elapsed:.1f} s for all)"
        yield Limit(title, "≤ 50 ms", figure, lag <= 0.05 and done == WAITING)


async def _create_waiting(file: Path, count: int) -> None:
    """Execute runs until each of them waits for a day."""
    body = {"name": "waiting", "steps": [{"name": "day", "wait": "1d"}]}
    async with Hub({}) as hub, Workflows(hub, file) as workflows:
        for first in range(0, count, 1000):
            await asyncio.gather(*(workflows.start(body, key=str(first + number)) for number in range(1000)))
        for _ in range(600):
            if len(await workflows.list_runs("waiting", count + 1)) == count:
                break
            await asyncio.sleep(0.2)


def _idle(file: Path, seconds: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.workflows.limits", "idle", str(file), str(seconds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=seconds + 120)
    found: dict[str, float] = json.loads(done.stdout)
    return found


async def _be_idle(file: Path, seconds: float) -> None:
    """Open the engine on a journal, do nothing, print memory and CPU time."""
    began = time.perf_counter()
    async with Hub({}) as hub, Workflows(hub, file):
        opened = time.perf_counter() - began
        await asyncio.sleep(2.0)
        cpu = time.process_time()
        await asyncio.sleep(seconds)
        cpu = time.process_time() - cpu
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        print(json.dumps({"rss": pages * os.sysconf("SC_PAGE_SIZE"), "cpu": cpu, "open": opened}))


async def _take_all(file: Path) -> tuple[int, float]:
    journal = SqliteJournal(file)
    began = time.perf_counter()
    taken = len(await journal.take(time.time(), WAITING))
    elapsed = time.perf_counter() - began
    await journal.close()
    return taken, elapsed


async def _execute_all(file: Path) -> tuple[int, float, float]:
    """Execute the waiting runs, two days later. Return the runs that are done, the seconds, and the p99 of the delay.

    A task of the same event loop that wakes every 10 ms measures the delay.
    """
    delays: list[float] = []

    async def wake() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.01)
            delays.append(time.perf_counter() - began - 0.01)

    done, began = 0, time.perf_counter()
    async with Hub({}) as hub, Workflows(hub, file, clock=lambda: time.time() + 2 * 86_400):
        gc.collect()
        gc.freeze()  # as `toolway serve` does
        waking = asyncio.create_task(wake())
        while done < WAITING and time.perf_counter() - began < 120:
            await asyncio.sleep(0.5)
            done = await asyncio.to_thread(_count_done, file)
        waking.cancel()
    return done, time.perf_counter() - began, statistics.quantiles(delays, n=100)[98]


def _count_done(file: Path) -> int:
    with contextlib.closing(sqlite3.connect(file)) as db:
        found: int = db.execute("SELECT count(*) FROM runs WHERE state = 'done'").fetchone()[0]
        return found


# -- a large journal --------------------------------------------------------------------------------------------------


def _large_sqlite(rows: int) -> Iterator[Limit]:
    """Half of the runs have ended, half wait for a time in the next month."""
    with tempfile.TemporaryDirectory(prefix="toolway-bench-") as folder:
        file = Path(folder) / "runs.db"
        yield asyncio.run(_look_at_large_sqlite(file, rows))


async def _look_at_large_sqlite(file: Path, rows: int) -> Limit:
    await SqliteJournal(file).close()
    now = time.time()
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA synchronous=OFF")
        db.executemany(
            "INSERT INTO runs"
            " (id, workflow, definition, key, caller, state, asks, due, input, variables, created, life)"
            " VALUES (?, 'w', 'd', ?, '', ?, '[]', ?, '{}', '{}', ?, 0)",
            (
                (f"w-{n:012x}", str(n), "waiting" if n % 2 else "done", now + 3600 + n if n % 2 else None, now - n)
                for n in range(rows)
            ),
        )
    journal = SqliteJournal(file)

    async def look() -> None:
        assert not await journal.take(time.time(), 200)
        assert await journal.next_due()

    limit = await _time_looks(f"a look for due runs, {rows:,} runs in the journal, SQLite", look)
    await journal.close()
    return limit


async def _large_postgresql(url: str, rows: int) -> Limit:
    engine = open_engine(url)
    await upgrade_schema(engine)
    await engine.dispose()
    now = time.time()
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            "INSERT INTO runs (tenant, id, workflow, definition, key, caller, state, due, start, result, created)"
            " SELECT %s, 'w-' || n, 'w', 'd', n::text, '', CASE WHEN n %% 2 = 1 THEN 'waiting' ELSE 'done' END,"
            " CASE WHEN n %% 2 = 1 THEN %s + n END, '', '', %s - n FROM generate_series(1, %s) AS n",
            (TENANT, now + 3600, now, rows),
        )
        db.execute("VACUUM ANALYZE runs")
    async with open_journal(url, "node1") as journal:

        async def look() -> None:
            assert not await journal.take(time.time(), 200)
            assert await journal.next_due()

        limit = await _time_looks(f"a look for due runs, {rows:,} runs in the journal, PostgreSQL", look)
        await journal.close()
    return limit


async def _time_looks(name: str, look: Callable[[], Awaitable[None]]) -> Limit:
    times = []
    for number in range(LOOKS + 10):
        began = time.perf_counter()
        await look()
        if number >= 10:
            times.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.002)
    median, p99 = statistics.median(times), statistics.quantiles(times, n=100)[98]
    return Limit(name, "≤ 5 ms", f"{median:.2f} ms (p99 {p99:.2f} ms)", median <= 5)


# -- take-over --------------------------------------------------------------------------------------------------------


async def _take_over(url: str, deaths: int) -> Limit:
    """Kill a node that executes runs; measure for each of its runs when another node has taken it."""
    engine = open_engine(url)
    await upgrade_schema(engine)
    await engine.dispose()
    journal = PostgresJournal(url, TENANT, CLUSTER_KEY, lambda: None)
    workflows = Workflows.for_reading(journal)
    params = {"id": "${inputs.run}", "delay": 600}
    body = {"name": "long", "steps": [{"name": "look", "tool": "s.read", "params": params, "timeout": "20m"}]}
    for number in range(TAKEOVER_RUNS):
        await workflows.start(body, {"run": str(number)}, key=str(number))
    await journal.close()
    with effect_server() as effects, psycopg.connect(url, autocommit=True) as db:
        seconds = await asyncio.to_thread(_kill_nodes, db, url, effects, deaths)
    p99 = statistics.quantiles(seconds, n=100)[98] if len(seconds) > 1 else float("inf")
    title = f"take-over of {len(seconds)} runs after {deaths} deaths of nodes, p99, lease {LEASE.ttl:g} s"
    return Limit(
        title,
        f"≤ {LEASE.ttl + 2:g} s",
        f"{p99:.1f} s (median {statistics.median(seconds):.1f} s)",
        p99 <= LEASE.ttl + 2,
    )


def _kill_nodes(db: psycopg.Connection[Any], url: str, effects: str, deaths: int) -> list[float]:
    nodes: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str) -> None:
        command = [sys.executable, "-m", "bench.workflows.node", url, name, effects]
        nodes[name] = subprocess.Popen(command, cwd=ROOT)

    def owned() -> dict[str, str]:
        return dict(db.execute("SELECT id, node FROM runs WHERE node IS NOT NULL").fetchall())

    def has_lease(node: str) -> bool:
        return db.execute("SELECT 1 FROM nodes WHERE id = %s", (node,)).fetchone() is not None

    seconds: list[float] = []
    try:
        start("node0")
        for death in range(deaths):
            victim, heir = f"node{death}", f"node{death + 1}"
            _wait_until(lambda: len(owned()) == TAKEOVER_RUNS)
            start(heir)
            _wait_until(functools.partial(has_lease, heir))
            nodes[victim].kill()
            died = time.monotonic()
            left = set(owned())
            while left and time.monotonic() - died < 60:
                taken = {id for id, node in owned().items() if node != victim} & left
                seconds += [time.monotonic() - died] * len(taken)
                left -= taken
                time.sleep(0.02)
            seconds += [60.0] * len(left)
    finally:
        for process in nodes.values():
            process.kill()
            process.wait()
    return seconds


def _wait_until(condition: Callable[[], Any], limit: float = 60.0) -> None:
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the nodes do not execute the runs")
        time.sleep(0.1)


def table(limits: list[Limit]) -> str:
    rows = [[each.name, each.wanted, each.measured, "yes" if each.reached else "**no**"] for each in limits]
    return markdown(["", "target", "measured", "reached"], rows)


def main() -> None:
    if sys.argv[1:2] == ["idle"]:
        asyncio.run(_be_idle(Path(sys.argv[2]), float(sys.argv[3])))
        return
    found = []
    for limit in measure_limits("--quick" in sys.argv):
        print(limit, flush=True)
        found.append(limit)
    print(table(found))


if __name__ == "__main__":
    main()
