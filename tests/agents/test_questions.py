"""Approvals inside agents reach MCP clients as forms: of an agent step of a workflow, and of an agent as a tool."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")
pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")

from tests.gateway.bridge_lab import Lab, lab
from tests.gateway.program import until
from tests.gateway.test_bridge_changes import WITH_TASKS, listening
from tests.parts.workflows.test_gateway import WITH_ALL, until_task
from toolway.agents import agent_workflow
from toolway.config.agent_settings import ConfiguredAgent, read_agent_settings
from toolway.hub.hub import Hub
from toolway.testing import FakeHttp, FakeLLM, ToolUse, Turn
from toolway.workflows import Workflows
from toolway.workflows.mcp_tools import WorkflowServer
from toolway.workflows.reader import read_value
from toolway.workflows.sqlite_journal import SqliteJournal

QUESTION = 'demo.counter {"call":"a"}'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def serving(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, wait_s: float = 45.0) -> AsyncIterator[Lab]:
    """A gateway with an agent, and a workflow that has a child workflow with the same agent as its step."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    settings = {"model": "openai-chat:gpt-4o", "base_url": llm.openai_url, "tools": ["demo.counter"]}
    inner = {"name": "inner", "steps": [{"name": "count", "agent": {"prompt": "Count.", **settings}}]}
    flow = {"name": "flow", "steps": [{"name": "child", "workflow": inner}]}
    async with FakeHttp() as fake, lab({"demo": {"url": fake.url}}) as found:
        hub = Hub._from_core(found.hub)
        async with Workflows(
            hub, SqliteJournal(None), code=[agent_workflow(hub, model_urls=[llm.openai_url])]
        ) as workflows:
            agents = {"counter": ConfiguredAgent(settings=read_agent_settings(settings))}
            server = WorkflowServer(workflows, [read_value(flow)], wait_s=wait_s, agents=agents)
            await found.hub.servers.add("workflows", server)
            await found.hub.servers.wait_ready("workflows", timeout=60)
            yield found


def turns() -> list[Turn | str]:
    return [Turn(calls=[ToolUse("demo__counter", {"call": "a"})]), "Counted."]


@pytest.mark.anyio
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_client_with_forms_approves_model_call(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mcp_types import ElicitResult

    asked: list[str] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"yes": len(asked) == 1})

    with FakeLLM(turns()) as llm:
        async with serving(llm, monkeypatch) as found, found.client(era, "", elicitation_callback=answer) as client:
            step = await client.call_tool("workflows__flow", {})
            agent = await client.call_tool("workflows__counter", {"prompt": "Count."})
    assert asked == [f"[workflows] {QUESTION}"] * 2
    assert step.structured_content == {"result": "Counted."}
    assert agent.structured_content is not None and agent.structured_content["output"] == "Counted."
    approved, denied = (each.text for each in llm.results)
    assert approved == "1" and "not approved" in denied


@pytest.mark.anyio
async def test_task_has_questions_of_its_agent_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeLLM(turns()) as llm:
        async with serving(llm, monkeypatch) as found, found.raw("") as raw:
            task = (await raw.call("workflows__flow", {}, capabilities=WITH_ALL)).result["taskId"]
            async with listening(raw, {"taskIds": [task]}, WITH_TASKS) as heard:
                await until(lambda: any(m["status"] == "input_required" for m in heard.of("notifications/tasks")))
            asks = await until_task(raw, task, "input_required")
            assert asks["statusMessage"] == f"asks: {QUESTION}"
            [(name, form)] = asks["inputRequests"].items()
            assert form["params"]["message"] == f"[workflows] {QUESTION}"
            answer = {name: {"action": "accept", "content": {"yes": True}}}
            await raw.ask("tasks/update", {"taskId": task, "inputResponses": answer}, capabilities=WITH_ALL)
            ended = await until_task(raw, task, "completed")
    assert ended["result"]["structuredContent"] == {"result": "Counted."}
    assert [each.text for each in llm.results] == ["1"]


@pytest.mark.anyio
async def test_client_without_forms_gets_the_asking_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeLLM(turns()) as llm:
        async with serving(llm, monkeypatch) as found, found.raw("") as raw:
            asks = (await raw.call("workflows__flow", {}, capabilities={})).result["structuredContent"]
    assert asks["state"] == "waiting"
    assert asks["asks"][0]["question"] == QUESTION
    assert asks["asks"][0]["run"].startswith("agent-")
