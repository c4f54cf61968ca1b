"""Faults while an agent runs: killed processes, and a misbehaving provider behind the SDKs of OpenAI and Anthropic.

`python -m tests.agents.kills` has all points and seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")

from tests.agents.kills import FORMATS, run_kills
from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import effect_server
from toolway import Hub
from toolway.agents import Agent, Budget
from toolway.testing.fake_llm import FakeLLM, LLMFault, ToolUse, Turn
from toolway.workflows import WorkflowError

OPENAI, ANTHROPIC = FORMATS
POINTS = {
    OPENAI: ("asked model/1", "after effect tool/2.1", "after effect tool/2.3", "after run asks"),
    ANTHROPIC: ("stream model/2", "after effect tool/1.1", "after effect tool/2.2", "before model/4 done"),
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hub]:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    monkeypatch.setattr("toolway.agents.journalled_model.MAX_WAIT_S", 0.01)
    monkeypatch.setattr("toolway.agents.answer_limit.MAX_WIRE_BYTES", 1024 * 1024)
    async with Hub({"s": effect_server(tmp_path)}) as hub:
        yield hub


@pytest.mark.fault("F28")
@pytest.mark.dear
def test_killed_agent_resumes_and_repeats_no_unsafe_call(seed: int) -> None:
    totals = run_kills([(model, seed, point) for model, points in POINTS.items() for point in points])
    assert totals.problems == []
    assert totals.kills >= 8


READ = Turn(calls=[ToolUse("s__read", {"id": "a"})])
FLOOD = Turn(calls=[ToolUse("s__read", {"id": str(number)}) for number in range(400)])


@pytest.mark.fault("F29")
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("model", "turns", "end", "requests"),
    [
        (OPENAI, [Turn(calls=READ.calls, fault=LLMFault("429", 2, retry_after=0.01)), "Done."], "done", 4),
        (ANTHROPIC, [Turn(calls=READ.calls, fault=LLMFault("529", 2)), "Done."], "done", 4),
        (OPENAI, [Turn(fault=LLMFault("500", 99))], "E-AGENT-MODEL", 5),
        (ANTHROPIC, [Turn("A text that is cut.", READ.calls, fault=LLMFault("cut")), "Done."], "done", 3),
        (OPENAI, [Turn("A text that is cut.", READ.calls, fault=LLMFault("cut")), "Done."], "done", 3),
        (OPENAI, [Turn(calls=READ.calls, fault=LLMFault("broken_json")), "Done."], "done", 3),
        (ANTHROPIC, [Turn(calls=[ToolUse("s__read", "{broken")]), "Done."], "done", 2),
        (OPENAI, [Turn(calls=[ToolUse("s__read", "{broken")])], "E-AGENT-ANSWER", 2),
        (OPENAI, [Turn(calls=[ToolUse("no_such_tool")]), "Done."], "done", 2),
        (ANTHROPIC, [Turn(calls=[ToolUse("no_such_tool")])], "E-AGENT-ANSWER", 3),
        (ANTHROPIC, [Turn(calls=[ToolUse("s__pay", {"id": each}, "x") for each in "ab"]), "Done."], "done", 2),
        (OPENAI, [Turn("x" * 10_000_000)], "E-AGENT-MODEL", 1),
        (ANTHROPIC, [Turn("x" * 100_000, fault=LLMFault("endless", 99))], "E-AGENT-MODEL", 1),
        (OPENAI, [Turn("x" * 100_000, fault=LLMFault("endless", 99))], "E-AGENT-MODEL", 1),
        (OPENAI, [FLOOD, "Done."], "done", 2),
        (OPENAI, [Turn(calls=[ToolUse("s__read", {"id": str(number)})]) for number in range(9)], "E-AGENT-BUDGET", 8),
        (ANTHROPIC, [READ] * 20, "E-AGENT-LOOP", 8),
    ],
    ids=[
        "429",
        "529",
        "500 for ever",
        "cut",
        "cut stream",
        "broken answer",
        "broken arguments",
        "only broken arguments",
        "unknown tool",
        "only unknown tools",
        "one id twice",
        "10 MB",
        "endless answer",
        "endless stream",
        "flood",
        "no end",
        "loop",
    ],
)
async def test_misbehaving_provider_ends_as_expected(
    hub: Hub,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    model: str,
    turns: list[Turn | str],
    end: str,
    requests: int,
) -> None:
    with FakeLLM(turns) as llm:
        url = getattr(llm, FORMATS[model])
        stream = "stream" in request.node.callspec.id
        agent = Agent(model, hub, base_url=url, approve="none", budget=Budget(requests=8), stream=stream)
        async with agent:
            try:
                found = "done" if (await agent.run("Do it")).output == "Done." else "another output"
            except WorkflowError as exc:
                found = exc.code
        told = [result.text for result in llm.results]
        assert (found, len(llm.requests)) == (end, requests)
    effects = Counter(each["id"] for each in read_effects(tmp_path / "effects"))
    assert effects == ({"a": 1, "b": 1} if "s__pay" in str(turns[0]) else {})
    if turns[0] is FLOOD:
        assert sum(text.startswith("did not run: an answer may contain 128 calls") for text in told) == 400 - 128


@pytest.mark.fault("F30")
@pytest.mark.anyio
@pytest.mark.parametrize("model", FORMATS)
async def test_call_budget_is_kept_among_parallel_calls(hub: Hub, tmp_path: Path, model: str) -> None:
    calls = [ToolUse("s__read", {"id": "r", "delay": 0.2}), *(ToolUse("s__pay", {"id": each}) for each in "abc")]
    with FakeLLM([Turn(calls=calls), "Enough."]) as llm:
        agent = Agent(model, hub, base_url=getattr(llm, FORMATS[model]), approve="none", budget=Budget(calls=2))
        async with agent:
            result = await agent.run("Pay")
        told = [each.text for each in llm.results]
    assert [each["executed"] for each in result.tool_calls] == ["yes", "yes"]  # the read that ran has ended
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["a"]
    assert sum("the budget of 2 calls is used up" in text for text in told) == 2
