"""Process that executes workflow runs until it is killed or all runs have ended.

    python -m tests.workflows.kill_runner FOLDER RUNS             # a journal in the folder
    python -m tests.workflows.kill_runner FOLDER RUNS URL NODE    # a node of a cluster, with the journal in PostgreSQL

At its first start it creates the runs, each with a key, so a second start finds the same ones. It settles what a
run asks by reading the effects of the server, as a user would. A node executes the runs that others create.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from tests.workflows.effect_server import read_effects
from toolway import Hub, Server
from toolway.cluster.lease_clock import LeaseSettings
from toolway.types import Json
from toolway.workflows import Workflows
from toolway.workflows.journal import FINAL_STATES

SERVER_FILE = Path(__file__).with_name("effect_server.py")
CLUSTER_KEY = b"k" * 32
LEASE = LeaseSettings(ttl=6.0, renew_interval=1.0, hold=4.5)


SURE_S = 20.0  # a server executes no call that was given up longer ago
CALL_TIMEOUT = "60s"  # long: kills are tested, not time limits on a busy machine


def definition(sure: float) -> Json:
    """Return a workflow of ten steps: three reads, one idempotent, four unsafe (two verified), two with a key.

    That `v1` did not run counts only if the process of the server has ended; for `v2` the server may take `sure`
    seconds.
    """

    def step(name: str, tool: str, **keys: object) -> Json:
        params = {"id": f"${{inputs.run}}/{name}", "delay": 0.01, "delay_after": 0.02}
        return {"name": name, "tool": f"s.{tool}", "params": params, **keys}

    def verified(name: str, **keys: object) -> Json:
        verify = {
            "tool": "s.list",
            "params": {"id": f"${{inputs.run}}/{name}"},
            "happened": "reply.data.items.size() > 0",
            **keys,
        }
        return step(name, "pay", on_unknown={"verify": verify}, timeout=CALL_TIMEOUT)

    return {
        "name": "kills",
        "steps": [
            step("r1", "read"),
            step("u1", "pay"),
            step("k1", "pay_once", key="honored"),
            verified("v1"),
            step("r2", "read"),
            step("i1", "put"),
            step("u2", "pay"),
            step("k2", "pay_once", key="honored"),
            verified("v2", after=sure),
            step("r3", "read"),
        ],
    }


async def start_runs(workflows: Workflows, count: int) -> None:
    """Start the runs, each with a key: those that exist are found."""
    body = definition(SURE_S if count > 50 else 2.0)
    for number in range(count):
        await workflows.start(body, {"run": f"run{number}"}, key=f"run{number}")


async def settle_until_ended(workflows: Workflows, folder: Path, count: int, patience: float = 0.0) -> None:
    """Answer what the runs ask, until all have ended. Write what was asked, and the states at the end.

    That a call did not run is said `patience` seconds after the question, of a call that timed out `SURE_S`.
    """
    seen: dict[str, float] = {}
    while True:
        records = [each for state in ("asks", "stuck") for each in await workflows.list_runs(state, count)]
        effects = {each["id"] for each in read_effects(folder / "effects")} if records else set()
        for record in records:
            if not workflows.is_asking(record):
                continue
            for question in record.asks:
                name = f"{record.input['run']}/{question['path']}"
                is_timeout = "timed out" in question["title"]
                since = time.monotonic() - seen.setdefault(name, time.monotonic())
                if name not in effects and since < (SURE_S if is_timeout else patience):
                    continue
                with (folder / ("timed_out" if is_timeout else "asked")).open("a") as file:
                    file.write(f"{name}\n")
                await workflows.settle(record.id, question["path"], happened=name in effects)
        if not records and all(each.state in FINAL_STATES for each in await workflows.list_runs(None, count)):
            break
        await asyncio.sleep(0.3)
    ended = await workflows.list_runs(None, count)
    failed = {record.input["run"]: (record.error or {}).get("code", "") for record in ended if record.state == "failed"}
    (folder / "failed").write_text(json.dumps(failed))
    (folder / "ended").write_text(" ".join(sorted({record.state for record in ended})))


def effect_server(folder: Path) -> Server:
    """Return the server that writes its effects to the folder."""
    return Server(command=sys.executable, args=(str(SERVER_FILE), str(folder / "effects")), idempotency_meta_key="key")


async def main(folder: Path, count: int) -> None:
    async with Hub({"s": effect_server(folder)}) as hub, Workflows(hub, folder / "runs.db") as workflows:
        await start_runs(workflows, count)
        await settle_until_ended(workflows, folder, count)


async def execute_as_node(folder: Path, url: str, id: str) -> None:
    """Execute runs of the shared journal, under a lease, until the file `ended` exists."""
    from toolway._os import boot_time
    from toolway.cluster.db.engine import open_engine
    from toolway.cluster.db.integrity import Integrity
    from toolway.cluster.db.nodes import NodeInfo, NodeStore
    from toolway.cluster.db.run_journal import PostgresJournal
    from toolway.cluster.lease import Lease
    from toolway.cluster.queries import QueryRunner

    engine = open_engine(url)
    lease = Lease(
        NodeInfo(id, "", "1"),
        NodeStore(engine, Integrity(CLUSTER_KEY), LEASE),
        QueryRunner(LEASE.hold - LEASE.renew_interval),
        boot_time,
        LEASE,
        on_acquired=lambda: None,
        on_lost=lambda: None,
        load=lambda: 0,
    )
    renewing = asyncio.create_task(lease.run())

    def identity() -> tuple[str, int] | None:
        return (id, lease.epoch) if lease.epoch is not None else None

    journal = PostgresJournal(url, "default", CLUSTER_KEY, identity, LEASE)
    async with Hub({"s": effect_server(folder)}) as hub, Workflows(hub, journal):
        while not (folder / "ended").exists():
            await asyncio.sleep(0.2)
    renewing.cancel()
    await lease.release()
    await engine.dispose()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if len(sys.argv) == 3:
        asyncio.run(main(folder, int(sys.argv[2])))
    else:
        asyncio.run(execute_as_node(folder, sys.argv[3], sys.argv[4]))
