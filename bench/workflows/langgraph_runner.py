"""Runs of the benchmark with LangGraph: a node for each step, the SQLite checkpointer, a thread for each run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from bench.workflows.runner import STEPS, EffectClient, execute, parse_options

OPTIONS = parse_options()
CLIENT = EffectClient(OPTIONS.url)


class State(TypedDict):
    """State of a graph."""

    run: str
    last: str


def node(step: str, tool: str) -> Callable[[State], Awaitable[dict[str, Any]]]:
    async def call(state: State) -> dict[str, Any]:
        await CLIENT.call(tool, state["run"], step, OPTIONS.delay)
        return {"last": step}

    return call


def build() -> StateGraph[Any, Any, Any, Any]:
    graph = StateGraph(State)
    before = START
    for step, tool in STEPS:
        graph.add_node(step, node(step, tool))
        graph.add_edge(before, step)
        before = step
    graph.add_edge(before, END)
    return graph


async def main() -> None:
    async with AsyncSqliteSaver.from_conn_string(str(OPTIONS.folder / "checkpoints.sqlite")) as saver:
        graph = build().compile(checkpointer=saver)

        async def execute_run(run: str) -> str:
            config: Any = {"configurable": {"thread_id": run}}
            exists = (await graph.aget_state(config)).created_at is not None
            # Without an input it continues from the last checkpoint, and does nothing if the graph has ended.
            state = await graph.ainvoke(None if exists else {"run": run, "last": ""}, config, durability="sync")
            return "done" if state["last"] == STEPS[-1][0] else "unfinished"

        await execute(OPTIONS, execute_run)


if __name__ == "__main__":
    asyncio.run(main())
