"""Process that executes workflow runs until it is killed or all runs have ended.

    python -m tests.workflows.kill_runner FOLDER RUNS

At its first start it creates the runs, each with a key, so that a second start finds the same ones. It settles what a
run asks by reading the effects of the server, as a person would.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.workflows.effect_server import read_effects
from toolway import Hub, Server
from toolway.types import Json
from toolway.workflows import Workflows
from toolway.workflows.journal import FINAL_STATES

SERVER_FILE = Path(__file__).with_name("effect_server.py")


def definition() -> Json:
    """Return a workflow of ten steps: three reads, one idempotent, four unsafe (two verified), two with a key."""

    def step(name: str, tool: str, **keys: object) -> Json:
        params = {"id": f"${{inputs.run}}/{name}", "delay": 0.01, "delay_after": 0.02}
        return {"name": name, "tool": f"s.{tool}", "params": params, **keys}

    def verified(name: str) -> Json:
        verify = {
            "tool": "s.list",
            "params": {"id": f"${{inputs.run}}/{name}"},
            "happened": "reply.data.items.size() > 0",
            "after": "200ms",
        }
        return step(name, "pay", on_unknown={"verify": verify}, timeout="2s")

    return {
        "name": "kills",
        "steps": [
            step("r1", "read"),
            step("u1", "pay"),
            step("k1", "pay_once", key="honoured"),
            verified("v1"),
            step("r2", "read"),
            step("i1", "put"),
            step("u2", "pay"),
            step("k2", "pay_once", key="honoured"),
            verified("v2"),
            step("r3", "read"),
        ],
    }


async def main(folder: Path, count: int) -> None:
    server = Server(
        command=sys.executable,
        args=(str(SERVER_FILE), str(folder / "effects")),
        idempotency_meta_key="key",
    )
    async with Hub({"s": server}) as hub, Workflows(hub, folder / "runs.db") as workflows:
        for number in range(count):
            await workflows.start(definition(), {"run": f"run{number}"}, key=f"run{number}")
        while True:
            records = await workflows.list_runs(None, count)
            for record in records:
                if not workflows.is_asking(record):
                    continue
                for question in record.asks:
                    with (folder / "asked").open("a") as file:
                        file.write(f"{record.input['run']}/{question['path']}\n")
                    effects = {each["id"] for each in read_effects(folder / "effects")}
                    happened = f"{record.input['run']}/{question['path']}" in effects
                    await workflows.settle(record.id, question["path"], happened=happened)
            if all(record.state in FINAL_STATES for record in records):
                break
            await asyncio.sleep(0.1)
        states = {record.state for record in records}
        (folder / "ended").write_text(" ".join(sorted(states)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
