"""Runs of the benchmark with DBOS: a workflow of steps, recovered by `DBOS.launch`.

With `--variant intent`, an intent step stands before each unsafe call, as in docs/howto/other-engines.md. The
effect server says how to resolve an unknown outcome, as an operator would.
"""

from __future__ import annotations

import asyncio
import uuid

from dbos import DBOS, DBOSConfig, SetWorkflowID

from bench.workflows.runner import STEPS, EffectClient, execute, parse_options

OPTIONS = parse_options()
CLIENT = EffectClient(OPTIONS.url)
LIFE = uuid.uuid4().hex  # of this process
ASKED = OPTIONS.folder / "asked"


@DBOS.step()
async def call_tool(tool: str, run: str, step: str) -> bool:
    return bool((await CLIENT.call(tool, run, step, OPTIONS.delay))["ok"])


@DBOS.workflow()
async def pay(run: str) -> str:
    for step, tool in STEPS:
        await call_tool(tool, run, step)
    return "done"


@DBOS.step()
async def begin() -> str:
    return LIFE


@DBOS.step()
async def call_once(life: str, tool: str, run: str, step: str) -> bool:
    """Call the tool, unless an earlier process may have done so. Return False if the outcome is unknown."""
    return life == LIFE and bool((await CLIENT.call(tool, run, step, OPTIONS.delay))["ok"])


@DBOS.step()
async def ask(run: str, step: str) -> bool:
    """Return whether the call ran."""
    with ASKED.open("a") as file:
        file.write(f"{run}/{step}\n")
    return f"{run}/{step}" in (await CLIENT.send("GET"))["effects"]


@DBOS.workflow()
async def pay_once(run: str) -> str:
    for step, tool in STEPS:
        if tool != "pay":
            await call_tool(tool, run, step)
            continue
        while not await call_once(await begin(), tool, run, step):
            if await ask(run, step):
                break
    return "done"


async def execute_run(run: str) -> str:
    with SetWorkflowID(run):  # the same id is the same workflow
        handle = await DBOS.start_workflow_async(pay_once if OPTIONS.variant == "intent" else pay, run)
    return await handle.get_result()


async def main() -> None:
    database = OPTIONS.database or f"sqlite:///{OPTIONS.folder}/dbos.sqlite"
    config: DBOSConfig = {"name": "bench", "system_database_url": database, "log_level": "ERROR"}
    DBOS(config={**config, "run_admin_server": False})
    DBOS.launch()
    await execute(OPTIONS, execute_run, lambda: len(set(ASKED.read_text().splitlines())) if ASKED.exists() else 0)
    DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main())
