"""Runs of the benchmark with Temporal: a worker and its client. With `--variant once` an activity has one attempt."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RetryPolicy, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from bench.workflows.runner import STEPS, EffectClient, execute, parse_options

QUEUE = "bench"
TIMEOUT = datetime.timedelta(seconds=5)


class Activities:
    """Activities with their client."""

    def __init__(self, url: str, delay: float) -> None:
        self._client = EffectClient(url)
        self._delay = delay

    @activity.defn(name="call_tool")
    async def call_tool(self, tool: str, run: str, step: str) -> bool:
        return bool((await self._client.call(tool, run, step, self._delay))["ok"])


@workflow.defn(name="pay")
class Pay:
    """Workflow of the steps."""

    @workflow.run
    async def run(self, run: str, once: bool) -> str:
        for step, tool in STEPS:
            attempts: dict[str, Any] = {"retry_policy": RetryPolicy(maximum_attempts=1)} if once else {}
            await workflow.execute_activity(
                "call_tool", args=[tool, run, step], start_to_close_timeout=TIMEOUT, **attempts
            )
        return "done"


async def main() -> None:
    options = parse_options()
    client = await Client.connect(options.database)
    activities = Activities(options.url, options.delay)

    async def execute_run(run: str) -> str:
        try:
            handle = await client.start_workflow(
                Pay.run,
                args=[run, options.variant == "once"],
                id=run,
                task_queue=QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            )
        except WorkflowAlreadyStartedError:  # it has ended
            handle = client.get_workflow_handle_for(Pay.run, run)
        try:
            return str(await handle.result())
        except WorkflowFailureError:
            return "failed"

    async with Worker(client, task_queue=QUEUE, workflows=[Pay], activities=[activities.call_tool]):
        await execute(options, execute_run)


if __name__ == "__main__":
    asyncio.run(main())
