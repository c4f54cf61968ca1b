"""Agent runs through the real SDKs of the providers, against a fake provider that speaks their wire formats."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")

from tests.agents.run_once import KEYS
from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import SERVER_FILE
from toolway import Hub, Server
from toolway.agents import Agent, AgentError, AgentRunner, Budget
from toolway.testing.fake_llm import FakeLLM, LLMFault, ToolUse, Turn
from toolway.workflows import WorkflowError

ROOT = Path(__file__).parents[2]
FORMATS = {
    "openai-chat:gpt-4o": "openai_url",
    "openai-responses:gpt-4o": "openai_url",
    "anthropic:claude-sonnet-5": "anthropic_url",
    "google:gemini-2.5-pro": "gemini_url",
}
TURNS: list[Turn | str] = [
    Turn(text="First I read.", calls=[ToolUse("s__read", {"id": "a"}), ToolUse("s__list")]),
    Turn(calls=[ToolUse("s__pay", {"id": "p1"})], usage=(1000, 100)),
    "All done.",
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.setenv(name, "none")


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    server = Server(command=sys.executable, args=(str(SERVER_FILE), str(tmp_path / "effects")))
    async with Hub({"s": server}) as hub:
        yield hub


@pytest.mark.anyio
@pytest.mark.parametrize("model", FORMATS)
async def test_model_of_each_provider_calls_tools(hub: Hub, tmp_path: Path, model: str) -> None:
    with FakeLLM(TURNS) as llm:
        agent = Agent(model, hub, approve="none", base_url=getattr(llm, FORMATS[model]), budget=Budget(usd=5.0))
        async with agent:
            result = await agent.run("Pay it")
        asked = len(llm.requests)
    assert result.output == "All done."
    assert [call["tool"] for call in result.tool_calls] == ["s.read", "s.list", "s.pay"]
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["p1"]
    assert asked == result.usage["requests"] == 3
    assert result.usage["usd"] > 0


@pytest.mark.anyio
async def test_overloaded_provider_is_retried_and_text_is_streamed(hub: Hub) -> None:
    turns: list[Turn | str] = [
        Turn(text="First I read.", calls=[ToolUse("s__read")], fault=LLMFault("429", 2, retry_after=0.01)),
        "Done.",
    ]
    with FakeLLM(turns) as llm:
        agent = Agent("openai-chat:gpt-4o", hub, base_url=llm.openai_url, stream=True)
        async with agent:
            run = await agent.start("Read it")
            events = [event async for event in run.events()]
            messages = await run.messages()
        assert len(llm.requests) == 4
    assert "".join(event.text for event in events if event.kind == "text") == "First I read.Done."
    assert [event.kind for event in events if event.kind != "text"] == ["answer", "call", "result", "answer", "end"]
    assert [each["role"] for each in messages if "error" not in each] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.anyio
async def test_output_matches_schema(hub: Hub) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    answers = [Turn(calls=[ToolUse("final_result", {"sum": value})]) for value in ("three", 3)]
    with FakeLLM(answers) as llm:
        async with Agent("openai-chat:gpt-4o", hub, base_url=llm.openai_url, output=schema) as agent:
            assert (await agent.run("1 + 2")).output == {"sum": 3}
        assert len(llm.requests) == 2
        assert "does not match its schema" in str(llm.requests[1].body["messages"][-1])


@pytest.mark.anyio
@pytest.mark.promise("B23")
async def test_agent_runner_short_form(hub: Hub) -> None:
    with FakeLLM(TURNS) as llm:
        runner = AgentRunner(hub)
        tools = await runner.load_tools(["s"])
        result = await runner.execute(
            prompt="Create a new branch for issue #42",
            tools=tools,
            provider="openai",
            model="gpt-4o",
            base_url=llm.openai_url,
        )
    assert result["response"] == "All done."
    assert result["tool_calls"][2]["tool"] == "s.pay"
    assert set(result["usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens"}
    assert result["metadata"]["iterations"] == 3


@pytest.mark.anyio
async def test_patterns_without_tools_end_run_before_first_request(hub: Hub) -> None:
    with FakeLLM(TURNS) as llm:
        async with Agent("openai-chat:gpt-4o", hub, tools=["github.*"], base_url=llm.openai_url) as agent:
            with pytest.raises(WorkflowError) as raised:
                await agent.run("x")
        assert (raised.value.code, len(llm.requests)) == ("E-AGENT-TOOLS", 0)


@pytest.mark.anyio
async def test_unusable_model_is_rejected_at_start(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Agent("no-such-provider:m", hub) as agent:
        with pytest.raises(AgentError, match="cannot be used"):
            await agent.run("x")
    async with Agent("openai-chat:unknown-model", hub, budget=Budget(usd=1.0)) as agent:
        with pytest.raises(AgentError) as raised:
            await agent.run("x")
        assert raised.value.code == "E-AGENT-PRICE"


@pytest.mark.parametrize(
    ("model", "base_url", "address"),
    [
        ("deepseek:deepseek-chat", None, "https://api.deepseek.com"),
        ("openrouter:openai/gpt-4o", None, "https://openrouter.ai/api/v1"),
        ("ollama:llama3", "http://127.0.0.1:11434/v1", "http://127.0.0.1:11434/v1"),
        ("openai-chat:any", "http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),  # vLLM
    ],
)
def test_openai_compatible_providers_have_their_url(
    model: str, base_url: str | None, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toolway.agents.model_access import ModelAccess
    from toolway.agents.providers import resolve_model
    from toolway.agents.settings import AgentSettings

    for name in ("DEEPSEEK_API_KEY", "OPENROUTER_API_KEY"):
        monkeypatch.setenv(name, "none")
    found = resolve_model(AgentSettings(model=model, base_url=base_url), ModelAccess((base_url,) if base_url else ()))
    assert str(found.base_url).rstrip("/") == address


@pytest.mark.parametrize(
    ("model", "base_url", "words"),
    [("deepseek:x", "http://127.0.0.1:8000/v1", "base_url"), ("cohere:x", None, "pydantic-ai-slim[cohere]")],
)
def test_missing_provider_setting_is_named(model: str, base_url: str | None, words: str) -> None:
    from toolway.agents.model_access import ModelAccess
    from toolway.agents.providers import resolve_model
    from toolway.agents.settings import AgentSettings

    with pytest.raises(AgentError) as raised:
        resolve_model(AgentSettings(model=model, base_url=base_url), ModelAccess((base_url,) if base_url else ()))
    assert words in raised.value.detail


def _start(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    files = (str(tmp_path / "runs.db"), str(tmp_path / "effects"))
    command = [sys.executable, "-m", "tests.agents.run_once", *files, *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


async def _finish(process: subprocess.Popen[str]) -> Any:
    out, _ = await asyncio.to_thread(process.communicate, timeout=100)
    return json.loads(out.splitlines()[-1])


@pytest.mark.anyio
@pytest.mark.slow
async def test_run_waiting_for_approval_resumes_in_another_process(tmp_path: Path) -> None:
    with FakeLLM(TURNS) as llm:
        model, url = "openai-chat:gpt-4o", llm.openai_url
        asked = await _finish(_start(tmp_path, model, url, "unsafe"))
        assert asked["state"] == "asks"
        assert read_effects(tmp_path / "effects") == []
        ended = await _finish(_start(tmp_path, model, url, "answer"))
        assert ended["output"]["output"] == "All done."
        assert len(llm.requests) == 3
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["p1"]
