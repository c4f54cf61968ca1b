"""Runs of the benchmark with Toolway: a journal in SQLite or PostgreSQL, or a Temporal server (`--variant temporal`).

If a run asks about an outcome, the answer comes from the effect server, as from an operator who checks it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from bench.workflows.runner import STEPS, EffectClient, execute, parse_options
from toolway import Hub, Server
from toolway.workflows import Workflows
from toolway.workflows.journal import FINAL_STATES

NODE = "node1"


def definition(delay: float) -> dict[str, Any]:
    """Return the workflow. After a crash, `credit` is verified with the server, and the other payments ask."""
    steps: list[dict[str, Any]] = []
    for name, tool in STEPS:
        params = {"id": f"${{inputs.run}}/{name}", "delay": delay}
        steps.append({"name": name, "tool": f"s.{tool}", "params": params})
        if tool == "pay_once":
            steps[-1]["key"] = "honored"
        if name == "credit":
            verify = {
                "tool": "s.find",
                "params": {"id": f"${{inputs.run}}/{name}"},
                "happened": "reply.data.found > 0",
                "after": "1s",
            }
            steps[-1] |= {"on_unknown": {"verify": verify}, "timeout": "2s"}
    return {"name": "pay", "steps": steps}


@contextlib.asynccontextmanager
async def open_workflows(options: argparse.Namespace, hub: Hub) -> AsyncIterator[Any]:
    if options.variant == "temporal":
        from temporalio.client import Client

        from toolway.workflows.temporal import TemporalWorkflows

        async with TemporalWorkflows(hub, await Client.connect(options.database)) as workflows:
            yield workflows
    elif options.database:
        from bench.workflows.node import open_journal

        async with open_journal(options.database, NODE) as journal, Workflows(hub, journal) as workflows:
            yield workflows
    else:
        async with Workflows(hub, options.folder / "runs.db") as workflows:
            yield workflows


async def main() -> None:
    options = parse_options()
    client = EffectClient(options.url)
    asked: set[str] = set()
    asked_file = options.folder / "asked"
    if asked_file.exists():
        asked.update(asked_file.read_text().splitlines())
    body = definition(options.delay)
    server = Server(url=f"{options.url}/mcp", idempotency_meta_key="key")

    async with Hub({"s": server}) as hub, open_workflows(options, hub) as workflows:

        async def execute_run(name: str) -> str:
            run = await workflows.start(body, {"run": name}, key=name)
            async for record in workflows.watch(run.id):
                if record.state in FINAL_STATES:
                    return str(record.state)
                if workflows.is_asking(record):
                    effects = (await client.send("GET"))["effects"]
                    for question in record.asks:
                        id_ = f"{name}/{question['path']}"
                        if id_ not in asked:
                            asked.add(id_)
                            with asked_file.open("a") as file:
                                file.write(f"{id_}\n")
                        await workflows.settle(run.id, question["path"], happened=id_ in effects)
            return "lost"

        await execute(options, execute_run, lambda: len(asked))


if __name__ == "__main__":
    asyncio.run(main())
