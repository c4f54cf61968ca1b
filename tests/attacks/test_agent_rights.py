"""An agent's model tries to do, at a gateway, what the caller who started the run may not do."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")
pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")

from tests.gateway.program import Program, program
from tests.parts.approvals.lab import asking
from tests.parts.workflows.test_gateway import client
from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import SERVER_FILE
from toolway import Hub
from toolway.agents import Agent, agent_workflow
from toolway.testing import FakeLLM, LLMRequest, ToolUse, Turn
from toolway.workflows import Workflows, step_planner

pytestmark = pytest.mark.anyio
Json = dict[str, Any]
MODEL = "openai-chat:gpt-4o"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")


def entries(folder: Path, **labels: str) -> Json:
    """Servers whose effects are in a file each, with a label each."""
    return {
        name: {"command": sys.executable, "args": [str(SERVER_FILE), str(folder / name)], "labels": [label]}
        for name, label in labels.items()
    }


@asynccontextmanager
async def with_agent(folder: Path, llm: FakeLLM, servers: Json, **block: Any) -> AsyncIterator[Program]:
    agent = {"model": MODEL, "baseUrl": llm.openai_url, "tools": ["*"], "approve": "none", "untrusted": "none"}
    block = {"agents": {"helper": agent}, "modelUrls": [llm.openai_url], **block}
    async with program(folder, servers, **block) as run:
        await run.until_ready("workflows")
        yield run


async def ask_helper(run: Program, scopes: list[str]) -> Json:
    """The result of an agent that a key with these scopes has started."""
    _, made = await run.request("POST", "/admin/keys", {"name": "ci", "access": scopes})
    run.token = made["token"]
    async with client(run) as raw:
        raw.url = f"{raw.url}/server/workflows"
        found: Json = (await raw.call("helper", {"prompt": "Go"})).result
        return found


@pytest.mark.attack("A2-NH8")
@pytest.mark.parametrize("hidden_by", ["scope", "policy"])
async def test_agent_sees_only_the_tools_of_its_starter(tmp_path: Path, hidden_by: str) -> None:
    calls = [ToolUse("b__pay", {"id": "x"}), ToolUse("b__read", {}), ToolUse("a__pay", {"id": "y"})]
    scopes, block = ["server/a", "server/workflows"], {}
    if hidden_by == "policy":
        (tmp_path / "rules.cedar").write_text(
            'permit(principal, action, resource);\nforbid(principal, action, resource) when {resource.server == "b"};'
        )
        scopes, block = [*scopes, "server/b"], {"policy": "rules.cedar"}
    with FakeLLM([Turn(calls=calls), "Done."]) as llm:
        async with with_agent(tmp_path, llm, entries(tmp_path, a="sink", b="sink"), **block) as run:
            result = await ask_helper(run, scopes)
    assert not result.get("isError"), result
    assert {name.partition("__")[0] for name in llm.requests[0].tools} >= {"a"}
    assert not any(name.startswith("b") for name in llm.requests[0].tools)
    assert [each["id"] for each in read_effects(tmp_path / "a")] == ["y"] and not (tmp_path / "b").exists()


@pytest.mark.attack("A2-held-H4")
async def test_agent_cannot_send_private_data_out(tmp_path: Path) -> None:
    steps = [ToolUse("web__read", {}), ToolUse("crm__read", {}), ToolUse("mail__pay", {"id": "stolen"})]
    servers = entries(tmp_path, web="untrusted", crm="private", mail="sink")
    with FakeLLM([*(Turn(calls=[each]) for each in steps), "Done."]) as llm:
        async with with_agent(tmp_path, llm, servers, flows="deny") as run:
            result = await ask_helper(run, [*(f"server/{name}" for name in servers), "server/workflows"])
    assert result["structuredContent"]["usage"]["calls"] == 3
    assert "a way to send data out" in llm.requests[3].results[0].text and not (tmp_path / "mail").exists()


@pytest.mark.attack("A2-held-H5")
async def test_agent_needs_one_approval_per_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting `approve` of an agent does not replace a rule of the gateway, and one approval is one call."""
    monkeypatch.setattr(step_planner, "HOLD_POLL_S", 0.05)
    same = ToolUse("bank__echo", {"text": "same"})
    with FakeLLM([Turn(calls=[same, same]), Turn(calls=[same]), "Done."]) as llm:
        async with asking(tmp_path, {"bank.*": "admin"}) as lab:
            hub = Hub._from_core(lab.hub)
            workflow = agent_workflow(hub, model_urls=[llm.openai_url])
            async with Workflows(hub, tmp_path / "runs.db", code=[workflow]) as workflows:
                agent = Agent(MODEL, hub, approve="none", base_url=llm.openai_url, journal=workflows)
                async with agent:
                    run = await agent.start("Go")
                    decided: list[str] = []
                    for number in range(3):
                        async with asyncio.timeout(30):
                            while not (found := [each for each in await lab.waiting() if each.id not in decided]):
                                await asyncio.sleep(0.02)
                        assert lab.executed() == number, "each call needs its own approval"
                        decided.append(found[0].id)
                        await lab.gate.decide(found[0].id, "approved", "")
                        async with asyncio.timeout(30):
                            while lab.executed() == number:
                                await asyncio.sleep(0.02)
                    result = await run.result()
            assert lab.executed() == 3
    assert [each["executed"] for each in result.tool_calls] == ["yes"] * 3


class _Wants:
    def __init__(self, tool: str) -> None:
        self._tool = tool

    def answer(self, request: LLMRequest) -> Turn:
        return Turn("Done.") if request.turn else Turn(calls=[ToolUse(self._tool, {"id": "eve"})])


@pytest.mark.attack("A2-NH7")
@pytest.mark.parametrize("way", ["child workflow", "inner agent"])
async def test_untrusted_mark_is_kept_between_steps(tmp_path: Path, way: str) -> None:
    servers = entries(tmp_path, web="untrusted", bank="sink")
    servers["web"]["untrusted"] = True
    with FakeLLM(_Wants("bank__pay").answer) as llm:
        common = {"model": MODEL, "base_url": llm.openai_url, "approve": "none"}
        payer: Json = {"agent": {**common, "prompt": "${inputs.text}", "tools": ["bank.*"]}}
        if way == "child workflow":  # what a step of the parent has read is the input of the child
            child = {"name": "child", "steps": [payer], "inputs": {"type": "object"}}
            inner = {"name": "pay", "workflow": child, "params": {"text": "${steps.page.text}"}}
            steps: list[Json] = [{"name": "page", "tool": "web.read"}, inner]
        else:  # what the agent of an agent has read is in the prompt of the next step
            reader = {**common, "prompt": "Read", "tools": [], "agents": {"reader": {**common, "tools": ["web.*"]}}}
            payer["agent"]["prompt"] = "${steps.read.text}"
            steps = [{"name": "read", "agent": reader}, {**payer, "name": "pay"}]
        async with Hub(servers, catalog_storage=None) as hub:
            workflow = agent_workflow(hub, model_urls=[llm.openai_url])
            async with Workflows(hub, tmp_path / "runs.db", code=[workflow]) as workflows:
                await workflows.start({"name": "parent", "steps": steps})
                async with asyncio.timeout(30):
                    while not (asked := [ask for each in await workflows.list_runs(None, 20) for ask in each.asks]):
                        assert not (tmp_path / "bank").exists()
                        await asyncio.sleep(0.02)
    assert asked[0]["title"].startswith("after reading from web (untrusted): bank.pay")
    assert not (tmp_path / "bank").exists()


@pytest.mark.attack("A2-held-H6")
async def test_altered_run_cannot_send_the_provider_key_elsewhere(tmp_path: Path) -> None:
    """A program that can write a journal can't name another provider: a resumed run checks addresses again."""
    file = tmp_path / "runs.db"
    with FakeLLM(_Wants("bank__pay").answer) as llm, FakeLLM(["evil"]) as evil:
        listed = [llm.openai_url]
        async with Hub(entries(tmp_path, bank="sink"), catalog_storage=None) as hub:
            async with Workflows(hub, file, code=[agent_workflow(hub, model_urls=listed)]) as workflows:
                agent = Agent(MODEL, hub, base_url=llm.openai_url, journal=workflows)
                async with agent:
                    run = await agent.start("Go")
                    assert (await run.wait()).state == "asks"
            with sqlite3.connect(file) as db:
                old, new = llm.openai_url.encode(), evil.openai_url.encode()
                for id_, stored in db.execute("SELECT id, input FROM runs").fetchall():
                    data = stored if isinstance(stored, bytes) else stored.encode()
                    assert old in data
                    changed = data.replace(old, new)
                    value = changed if isinstance(stored, bytes) else changed.decode()
                    db.execute("UPDATE runs SET input = ? WHERE id = ?", (value, id_))
            db.close()
            async with (
                Workflows(hub, file, code=[agent_workflow(hub, model_urls=listed)]) as workflows,
                Agent(MODEL, hub, base_url=llm.openai_url, journal=workflows) as agent,
            ):
                again = agent.get(run.id)
                await again.approve()
                record = await again.wait()
    assert record.error is not None and record.error["code"] == "E-AGENT-ADDRESS", record.error
    assert evil.requests == [] and not (tmp_path / "bank").exists()
