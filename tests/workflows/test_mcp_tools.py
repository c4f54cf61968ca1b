"""Workflows as tools of a server: output, questions as forms, unknown outcomes, runs that take long."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import SERVER_FILE
from toolway import Hub, Server
from toolway.callbacks import FunctionCallbacks
from toolway.hub.core import HubCore
from toolway.types import Json
from toolway.workflows import Workflows
from toolway.workflows.mcp_tools import WorkflowServer
from toolway.workflows.reader import read_value

pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
pytestmark = pytest.mark.anyio


@asynccontextmanager
async def serving(
    folder: Path, body: Json, answers: list[Json] | None = None, wait_s: float = 45.0
) -> AsyncIterator[Hub]:
    asked: list[str] = []

    async def elicit(_: str, params: Json) -> Json:
        asked.append(params["message"])
        assert answers is not None
        return {"action": "accept", "content": answers.pop(0)}

    effects = Server(command=sys.executable, args=(str(SERVER_FILE), str(folder / "effects")))
    callback: Any = elicit if answers is not None else None
    async with Hub({"s": effects}) as inner, Workflows(inner, folder / "runs.db") as workflows:
        server = WorkflowServer(workflows, [read_value(body)], wait_s=wait_s)
        # A client without tasks: it gets the state of a run that waits, or the result of one that has ended.
        core = HubCore({"flow": server}, callbacks=FunctionCallbacks(callback, None, None), library=True)
        async with Hub._from_core(core) as hub:
            yield hub


def pay(name: str, **keys: Any) -> Json:
    return {"name": name, "tool": "s.pay", "params": {"id": "${inputs.id}", **keys.pop("params", {})}, **keys}


INPUTS = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}


async def test_workflow_is_a_tool_with_inputs_and_output(tmp_path: Path) -> None:
    body = {"name": "refund", "inputs": INPUTS, "steps": [pay("a")], "outputs": {"paid": "${steps.a.data.id}"}}
    async with serving(tmp_path, body) as hub:
        tools = {tool.name: tool for tool in await hub.list_tools(server="flow")}
        assert set(tools) == {"refund", "run_status"}
        assert tools["refund"].input_schema == INPUTS
        result = await hub.call_tool("flow.refund", {"id": "A1"})
        assert result.structured_content == {"paid": "A1"}


async def test_approval_reaches_client_as_form(tmp_path: Path) -> None:
    body = {"name": "refund", "inputs": INPUTS, "steps": [{"name": "ok", "approve": "Pay?"}, pay("a")]}
    async with serving(tmp_path, body, [{"yes": True}, {"yes": False}]) as hub:
        assert (await hub.call_tool("flow.refund", {"id": "A1"})).data["id"] == "A1"
        denied = await hub.call_tool("flow.refund", {"id": "A2"}, raise_on_error=False)
        assert denied.is_error
        assert denied.data["code"] == "E-WORKFLOW-DENIED"
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["A1"]


async def test_unknown_outcome_reaches_client_as_form(tmp_path: Path) -> None:
    step = pay("a", params={"delay_after": 5}, timeout="300ms")
    body = {"name": "refund", "inputs": INPUTS, "steps": [step]}
    answers: list[Json] = [{"happened": "it ran", "result": '{"seen": 1}'}]
    async with serving(tmp_path, body, answers) as hub:
        assert (await hub.call_tool("flow.refund", {"id": "A1"})).data == {"seen": 1}
    assert len(read_effects(tmp_path / "effects")) == 1


async def test_approval_for_another_user_is_not_offered(tmp_path: Path) -> None:
    approve = {"title": "Pay?", "who": ["finance"]}
    body = {"name": "refund", "inputs": INPUTS, "steps": [{"name": "ok", "approve": approve}, pay("a")]}
    async with serving(tmp_path, body, []) as hub:
        result = await hub.call_tool("flow.refund", {"id": "A1"})
    assert result.data["state"] == "asks"
    assert result.data["asks"] == [{"step": "ok", "question": "Pay?"}]


async def test_long_run_returns_its_id_and_can_be_polled(tmp_path: Path) -> None:
    body = {"name": "slow", "inputs": INPUTS, "steps": [{"name": "w", "wait": "1s"}, pay("a")]}
    async with serving(tmp_path, body, wait_s=0.2) as hub:
        begun = (await hub.call_tool("flow.slow", {"id": "A1"})).data
        assert begun["state"] in ("ready", "running", "waiting")
        found = begun
        while "run" in found:
            found = (await hub.call_tool("flow.run_status", {"run": begun["run"]})).data
        assert found["id"] == "A1"


async def test_unknown_run_is_a_failure(tmp_path: Path) -> None:
    body = {"name": "refund", "inputs": {"type": "object", "required": ["id"]}, "steps": [pay("a")]}
    async with serving(tmp_path, body) as hub:
        result = await hub.call_tool("flow.run_status", {"run": "nope"}, raise_on_error=False)
        assert result.is_error
        assert result.data["code"] == "E-WORKFLOW-RUN"
