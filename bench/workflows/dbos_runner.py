"""Runs of the benchmark with DBOS: a workflow of steps, recovered by `DBOS.launch`."""

from __future__ import annotations

import asyncio

from dbos import DBOS, DBOSConfig, SetWorkflowID

from bench.workflows.runner import STEPS, EffectClient, execute, parse_options

OPTIONS = parse_options()
CLIENT = EffectClient(OPTIONS.url)


@DBOS.step()
async def call_tool(tool: str, run: str, step: str) -> bool:
    return bool((await CLIENT.call(tool, run, step, OPTIONS.delay))["ok"])


@DBOS.workflow()
async def pay(run: str) -> str:
    for step, tool in STEPS:
        await call_tool(tool, run, step)
    return "done"


async def execute_run(run: str) -> str:
    with SetWorkflowID(run):  # the same id is the same workflow
        handle = await DBOS.start_workflow_async(pay, run)
    return await handle.get_result()


async def main() -> None:
    database = OPTIONS.database or f"sqlite:///{OPTIONS.folder}/dbos.sqlite"
    config: DBOSConfig = {"name": "bench", "system_database_url": database, "log_level": "ERROR"}
    DBOS(config={**config, "run_admin_server": False})
    DBOS.launch()
    await execute(OPTIONS, execute_run)
    DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main())
