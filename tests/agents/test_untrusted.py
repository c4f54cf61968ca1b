"""Servers with `untrusted` in their entry: after one of their results, unsafe calls of other servers need approval."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")

from tests.agents.run_once import KEYS
from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import SERVER_FILE
from toolway import Hub
from toolway.agents import Agent
from toolway.agents.call_rules import CallRules
from toolway.agents.settings import AgentSettings
from toolway.testing.fake_llm import FakeLLM, ToolUse, Turn
from toolway.types import Effect
from toolway.workflows import WorkflowError, Workflows
from toolway.workflows.reader import read_value
from toolway.workflows.sqlite_journal import SqliteJournal

TURNS: list[Turn | str] = [
    Turn(calls=[ToolUse("web__read", {"id": "page"})]),
    Turn(calls=[ToolUse("web__pay", {"id": "own"})]),
    Turn(calls=[ToolUse("bank__pay", {"id": "other"})]),
    "Done.",
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize("is_on", [True, False])
async def test_untrusted_server_requires_approval_unless_disabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_on: bool
) -> None:
    for name in KEYS:
        monkeypatch.setenv(name, "none")

    def entry(name: str, untrusted: bool) -> dict[str, object]:
        arguments = [str(SERVER_FILE), str(tmp_path / name)]
        return {"command": sys.executable, "args": arguments, "untrusted": untrusted}

    with FakeLLM(TURNS) as llm:
        async with Hub({"web": entry("web", True), "bank": entry("bank", False)}) as hub:
            agent = Agent(
                "openai-chat:gpt-4o",
                hub,
                approve="none",
                untrusted=() if is_on else "none",
                base_url=llm.openai_url,
            )
            async with agent:
                run = await agent.start("Read the page")
                record = await run.wait()
                assert [each["id"] for each in read_effects(tmp_path / "web")] == ["own"]
                if is_on:
                    assert record.asks[0]["title"] == 'after reading from web (untrusted): bank.pay {"id":"other"}'
                    assert not (tmp_path / "bank").exists()
                    await run.approve(yes=False)
                result = await run.result()
    assert result.output == "Done."
    assert (tmp_path / "bank").exists() != is_on


def test_agent_step_prompt_may_carry_untrusted_results() -> None:
    pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
    agent = {"prompt": "${steps.page.text}", "model": "a:b", "tools": ["bank.*"], "approve": "none"}
    [step] = read_value({"steps": [{"name": "page", "tool": "web.read"}, {"agent": agent}]}).agent_steps()
    settings = msgspec.convert(step.params["settings"], AgentSettings)
    assert settings.has_read == ("web.read",)
    assert CallRules(settings, ["web"]).decide("bank.pay", {}, Effect.UNSAFE, turn=1).action == "approve"
    assert CallRules(settings, ["mail"]).decide("bank.pay", {}, Effect.UNSAFE, turn=1).action == "call"


@pytest.mark.anyio
async def test_engine_without_agents_rejects_agent_steps() -> None:
    pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
    async with Hub({}) as hub, Workflows(hub, SqliteJournal(None)) as workflows:
        with pytest.raises(WorkflowError) as raised:
            await workflows.start({"steps": [{"agent": {"prompt": "x", "model": "a:b"}}]})
    assert raised.value.code == "E-WORKFLOW-AGENT"
    assert "toolway[agents]" in raised.value.hint
