"""Runs of the benchmark with Prefect: a flow of tasks with stored results; an unfinished flow is run again."""

from __future__ import annotations

import asyncio

from prefect import flow, get_client, task
from prefect.cache_policies import INPUTS
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateName

from bench.workflows.runner import STEPS, EffectClient, execute, parse_options

OPTIONS = parse_options()
CLIENT = EffectClient(OPTIONS.url)
PAGE = 200


@task(persist_result=True, cache_policy=INPUTS)
async def call_tool(tool: str, run: str, step: str) -> bool:
    return bool((await CLIENT.call(tool, run, step, OPTIONS.delay))["ok"])


@flow(flow_run_name="{run}", persist_result=True)
async def pay(run: str) -> str:
    for step, tool in STEPS:
        await call_tool(tool, run, step)
    return "done"


async def completed_runs() -> set[str]:
    """Return the names of the flow runs that the server knows as completed."""
    wanted = FlowRunFilter(state=FlowRunFilterState(name=FlowRunFilterStateName(any_=["Completed"])))
    names: list[str] = []
    async with get_client() as client:
        while found := await client.read_flow_runs(flow_run_filter=wanted, limit=PAGE, offset=len(names)):
            names.extend(each.name for each in found)
    return set(names)


async def main() -> None:
    completed = set() if OPTIONS.seconds else await completed_runs()

    async def execute_run(run: str) -> str:
        return "done" if run in completed else str(await pay(run))

    await execute(OPTIONS, execute_run)


if __name__ == "__main__":
    asyncio.run(main())
