"""Workflow files on a real Temporal server: the example, and a worker that is killed in an unsafe step.

Needs `pip install -r requirements/temporal.txt`; `make workflows ARGS=temporal` installs it.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("temporalio", reason="temporalio is not installed: make workflows ARGS=temporal")
pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
BINARY = shutil.which("temporal") or shutil.which("temporal", path=str(Path(sys.executable).parent))
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(BINARY is None, reason="the Temporal server is not installed: make workflows ARGS=temporal"),
    pytest.mark.timeout(300),
]

from temporalio.testing import WorkflowEnvironment  # noqa: E402 (after the skip)

from tests.parts.workflows.test_cli import Terminal  # noqa: E402 (after the skip)
from tests.workflows.effect_server import read_effects  # noqa: E402 (after the skip)
from tests.workflows.test_files import EXAMPLES, company  # noqa: E402 (after the skip)
from toolway import Hub  # noqa: E402 (after the skip)
from toolway.workflows import WorkflowError  # noqa: E402 (after the skip)
from toolway.workflows.temporal import TemporalWorkflows  # noqa: E402 (after the skip)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def temporal(anyio_backend: str) -> AsyncIterator[WorkflowEnvironment]:
    environment = await WorkflowEnvironment.start_local(dev_server_existing_path=BINARY)
    async with environment:
        yield environment


def address(temporal: WorkflowEnvironment) -> str:
    return str(temporal.client.service_client.config.target_host)


async def test_refund_example_runs(temporal: WorkflowEnvironment) -> None:
    async with Hub(company()) as hub, TemporalWorkflows(hub, temporal.client) as workflows:
        run = await workflows.start(EXAMPLES / "refund.yaml", {"order": "A-17"}, key="A-17", caller="ann")
        asked = await run.wait()
        assert asked.asks[0]["title"] == "Refund 120?"
        with pytest.raises(WorkflowError, match="may not answer"):
            await workflows.answer(run.id, None, {"yes": True}, by="ann", roles=("finance",))
        await workflows.answer(run.id, None, {"yes": True}, by="carl", roles=("finance",))
        assert await run.result() == {"refund": "R1"}
        again = await workflows.start(EXAMPLES / "refund.yaml", {"order": "A-17"}, key="A-17", caller="ann")
        assert (again.id, await again.result()) == (run.id, {"refund": "R1"})
        assert [each.id for each in await workflows.list_runs("done")] == [run.id]


async def test_commands_read_and_answer_temporal_runs(temporal: WorkflowEnvironment, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    journal = ("--journal", f"temporal://{address(temporal)}")
    run = terminal.json("run", "flow.yaml", "id=T1", "-c", "mcp.json", *journal, exit_code=9)["id"]
    terminal.run("approve", run, *journal)
    terminal.run("cancel", run, *journal)
    assert terminal.json("show", run, *journal)["messages"][0]["yes"] is True
    terminal.run("run", "flow.yaml", "id=T1", "-c", "mcp.json", "--journal", "temporal://127.0.0.1:1", exit_code=3)


async def start_worker(temporal: WorkflowEnvironment, effects: Path) -> asyncio.subprocess.Process:
    words = ("-m", "tests.workflows.temporal_worker", address(temporal), str(effects))
    return await asyncio.create_subprocess_exec(sys.executable, *words, cwd=Path(__file__).parents[2])


async def wait_for(condition: Any) -> None:
    for _ in range(1200):
        if condition():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the condition did not become true")


async def test_killed_worker_repeats_no_unsafe_step(temporal: WorkflowEnvironment, tmp_path: Path) -> None:
    flow = {
        "name": "killed",
        "steps": [
            {"name": "pay", "tool": "s.pay", "params": {"id": "a", "delay_after": 60}},
            {"name": "once", "tool": "s.pay_once", "key": "honored", "params": {"id": "b", "first_delay_after": 60}},
            {"name": "child", "workflow": {"steps": [{"name": "p", "tool": "s.pay", "params": {"id": "c"}}]}},
        ],
        "outputs": "${steps.child.data.id}",
    }
    effects = tmp_path / "effects"
    worker = await start_worker(temporal, effects)
    try:
        async with TemporalWorkflows(None, temporal.client) as workflows:
            run = await workflows.start(flow)
            await wait_for(lambda: len(read_effects(effects)) == 1)
            worker.send_signal(signal.SIGKILL)
            await worker.wait()
            worker = await start_worker(temporal, effects)
            asked = await run.wait()
            assert [(each["path"], each["kind"]) for each in asked.asks] == [("pay", "unknown")]
            await workflows.settle(run.id, "pay", happened=True, by="ann")
            await wait_for(lambda: len(read_effects(effects)) == 2)
            worker.send_signal(signal.SIGKILL)
            await worker.wait()
            worker = await start_worker(temporal, effects)
            assert await run.result() == "c"
    finally:
        worker.kill()
        await worker.wait()
    assert [each["id"] for each in read_effects(effects)] == ["a", "b", "c"]
