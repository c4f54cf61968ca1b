"""Agent runs in `/admin/agents`: conversation, costs, budget, and approvals from the dashboard."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")

from tests.gateway.admin.test_openapi import _check as check_reply
from tests.gateway.edge_lab import Edge, edge
from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import SERVER_FILE
from toolway.agents import Agent, Budget
from toolway.agents.run_reader import COMMAND_JOURNAL
from toolway.hub.hub import Hub
from toolway.part_api.part import GatewayPlace
from toolway.parts.workflows.service import WorkflowService
from toolway.testing.fake_llm import FakeLLM, ToolUse, Turn
from toolway.workflows import Workflows

pytestmark = pytest.mark.anyio
Json = dict[str, Any]
SECRET = "ghp_" + "a1B2" * 9
TURNS: list[Turn | str] = [
    Turn(text=f"I pay with {SECRET}.", calls=[ToolUse("s__pay", {"id": "p1"}), ToolUse("s__pay", {"id": "p2"})]),
    "Paid once.",
]


async def test_agent_run_is_shown_denied_and_approved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    entry = {"command": sys.executable, "args": [str(SERVER_FILE), str(tmp_path / "effects")]}
    async with edge(tmp_path) as found:
        found.gateway.parts.place = GatewayPlace(tmp_path)
        assert await _ask(found, "/admin/agents") == {"enabled": True, "runs": [], "problem": ""}
        with FakeLLM(TURNS) as llm:
            async with (
                Hub({"s": entry}) as hub,
                Agent(
                    "openai-chat:gpt-4o",
                    hub,
                    base_url=llm.openai_url,
                    budget=Budget(usd=1, calls=5),
                    journal=tmp_path / COMMAND_JOURNAL,
                ) as agent,
            ):
                id = (await agent.start("Pay it", caller="me")).id
                await _until(found, id, lambda run: [each["step"] for each in run["questions"]] == ["tool/1.1/approve"])
                [row] = (await _ask(found, "/admin/agents"))["runs"]
                facts = ("id", "state", "model", "prompt", "turns", "place")
                assert [row[name] for name in facts] == [id, "asks", "openai-chat:gpt-4o", "Pay it", 1, "command"]
                assert row["usd"] > 0
                run = await _ask(found, f"/admin/agents/{id}")
                check_reply(json.loads((await found.ask("GET", "/admin/openapi.json")).body), "AgentDetail", run, "run")
                [question] = run["questions"]
                assert (question["tool"], question["arguments"], question["effect"]) == (
                    "s.pay",
                    '{"id":"p1"}',
                    "unsafe",
                )
                assert [each["label"] for each in run["actions"]] == ["Approve s.pay", "Deny s.pay", "Cancel the run"]
                assert "is called once" in run["actions"][0]["effect"]
                assert run["resume"] == f"toolway agent resume {id}"
                assert SECRET not in json.dumps(run) and "I pay with" in run["conversation"][1]["content"]
                body = {"step": "tool/1.1/approve", "yes": False, "note": "not this one"}
                assert (await found.ask("POST", f"/admin/agents/{id}/approve", body)).status == 200
                await _until(found, id, lambda run: [each["step"] for each in run["questions"]] == ["tool/1.2/approve"])
                body = {"step": "tool/1.2/approve", "yes": True}
                assert (await found.ask("POST", f"/admin/agents/{id}/approve", body)).status == 200
                await _until(found, id, lambda run: run["state"] == "done")
            assert "not this one" in llm.requests[1].results[0].text
        assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["p2"]
        ended = await _ask(found, f"/admin/agents/{id}")
        assert [each["role"] for each in ended["conversation"]] == ["user", "assistant", "tool", "tool", "assistant"]
        assert [each["executed"] for each in ended["conversation"][2:4]] == ["no", "yes"]
        budget = {each["unit"]: (each["used"], each["limit"]) for each in ended["budget"]}
        assert budget["calls"] == (2, 5) and budget["requests"] == (2, 50) and 0 < budget["usd"][0] < budget["usd"][1]
        assert (ended["actions"], ended["resume"]) == ([], "")
        events = (await _ask(found, "/admin/events?limit=100"))["events"]
        assert sum("approved" in each["text"] or "denied" in each["text"] for each in events) == 2
        assert (await found.ask("GET", "/admin/agents/none")).status == 404


async def test_agent_runs_inside_the_gateway_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    turns: list[Turn | str] = [Turn(calls=[ToolUse("a__echo", {"text": "hi"})]), "Done."]
    async with edge(tmp_path) as found:
        found.gateway.parts.place = GatewayPlace(tmp_path)
        service = found.gateway.parts.runtime("workflows", WorkflowService)
        hub = Hub._from_core(found.hub)
        with FakeLLM(turns) as llm:
            async with Workflows(hub, tmp_path / "workflows.db") as engine:
                service.engine = engine
                model: Json = {"base_url": llm.openai_url, "approve": "none", "tools": ["a.*"]}
                async with Agent("openai-chat:gpt-4o", hub, journal=engine, **model) as agent:
                    run = await agent.start("Say it")
                    await run.result()
                [row] = (await _ask(found, "/admin/agents?state=done&q=say"))["runs"]
                assert (row["id"], row["place"], row["turns"], row["calls"]) == (run.id, "gateway", 2, 1)
                detail = await _ask(found, f"/admin/agents/{run.id}")
                assert detail["resume"] == "" and detail["conversation"][2]["tool"] == "a.echo"
                assert (await _ask(found, f"/admin/runs/{run.id}"))["workflow"] == "agent"
                service.engine = None


async def _ask(found: Edge, path: str) -> Json:
    answer = await found.ask("GET", path)
    assert answer.status == 200, answer.body
    reply: Json = json.loads(answer.body)
    return reply


async def _until(found: Edge, id: str, holds: Callable[[Json], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds(await _ask(found, f"/admin/agents/{id}")):
            await asyncio.sleep(0.05)
