"""Faults of providers and models, through a real SDK: rows E29 and E30 of the failure matrix for agents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")

from toolway import Hub
from toolway.agents import Agent, Budget
from toolway.testing import FakeHttp, FakeLLM, LLMFault, LLMRequest, ToolUse, Turn
from toolway.workflows.journal import RunRecord

ADD = ToolUse("demo__add", {"a": 1, "b": 2})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hub]:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    async with FakeHttp() as fake, Hub({"demo": fake.url}, catalog_storage=None) as hub:
        await hub.wait_ready()
        yield hub


async def run_agent(hub: Hub, llm: FakeLLM, **options: Any) -> RunRecord:
    agent = Agent("openai-chat:gpt-4o", hub, approve="none", base_url=llm.openai_url, **options)
    async with agent:
        return await (await agent.start("Go")).wait()


@pytest.mark.anyio
async def test_invalid_model_calls_get_error_results(hub: Hub) -> None:
    calls = [
        ToolUse("demo__absent", {}),  # no such tool
        ToolUse("demo__add", '{"a": 1, '),  # no JSON
        ToolUse("demo__add", "[1, 2]"),  # no object
        ToolUse("demo__add", {"a": 1, "b": 2}, id="same"),
        ToolUse("demo__add", {"a": 2, "b": 2}, id="same"),
        ToolUse("demo__add", {"a": 3, "b": 2}, id=""),
    ]
    with FakeLLM([Turn(calls=calls), "Done."]) as llm:
        record = await run_agent(hub, llm)
    assert (record.state, len(llm.requests)) == ("done", 2), record.error
    assert [call["result"] for call in record.output["tool_calls"]] == ["3", "4", "5"]
    told = [each.text for each in llm.requests[1].results]
    assert len(told) == 6
    assert "demo__absent" in told[0]
    assert len({each.call_id for each in llm.requests[1].results}) == 6


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fault", "stream"),
    [
        (LLMFault("529", retry_after=0.01), False),
        (LLMFault("500", retry_after=0.01), True),
        (LLMFault("cut"), True),
        (LLMFault("broken_json"), False),
    ],
    ids=lambda each: each.kind if isinstance(each, LLMFault) else "",
)
async def test_failed_model_response_is_requested_again(
    hub: Hub, fault: LLMFault, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolway.agents.journalled_model.MAX_WAIT_S", 0.01)
    with FakeLLM([Turn(calls=[ADD], fault=fault), "Done."]) as llm:
        record = await run_agent(hub, llm, stream=stream)
    assert (record.state, len(llm.requests)) == ("done", 3), record.error
    assert record.output["usage"]["calls"] == 1


@pytest.mark.anyio
async def test_10_mb_response_fails_the_run(hub: Hub) -> None:
    with FakeLLM([Turn(text="x" * 10_000_000)]) as llm:
        record = await run_agent(hub, llm)
    assert record.error is not None
    assert (record.error["code"], len(llm.requests)) == ("E-AGENT-MODEL", 1)
    assert "limit it with max_tokens" in record.error["detail"]


@pytest.mark.anyio
async def test_calls_per_response_are_limited(hub: Hub) -> None:
    calls = [ToolUse("demo__add", {"a": number, "b": 0}) for number in range(150)]
    with FakeLLM([Turn(calls=calls), "Done."]) as llm:
        record = await run_agent(hub, llm)
    assert record.state == "done", record.error
    assert len(record.output["tool_calls"]) == 128
    assert sum("an answer may contain 128 calls" in each.text for each in llm.requests[1].results) == 22


@pytest.mark.anyio
async def test_budget_can_run_out_during_parallel_calls(hub: Hub) -> None:
    calls = [ToolUse("demo__add", {"a": number, "b": 0}) for number in range(5)]
    with FakeLLM([Turn(calls=calls), Turn(calls=calls), "Done."]) as llm:
        record = await run_agent(hub, llm, budget=Budget(calls=7))
    assert (record.state, record.output["output"]) == ("done", "Done.")
    assert [len(record.output["tool_calls"]), record.output["usage"]["calls"]] == [7, 7]
    refused = [each.text for each in llm.requests[2].results if "the budget of 7 calls is used up" in each.text]
    assert len(refused) == 3


def keep_calling(request: LLMRequest) -> Turn:
    """Never answer: each call has other arguments, so the run is not ended as a loop."""
    return Turn(calls=[ToolUse("demo__add", {"a": request.turn, "b": 0})])


@pytest.mark.anyio
@pytest.mark.attack("A2-D3")
async def test_run_stops_at_its_request_budget(hub: Hub) -> None:
    with FakeLLM(keep_calling) as llm:
        record = await run_agent(hub, llm, tools=["demo.add"], budget=Budget(requests=55, calls=1000))
    assert record.error is not None
    assert (record.error["code"], len(llm.requests)) == ("E-AGENT-BUDGET", 55)
    assert record.error["usage"]["requests"] == 55


@pytest.mark.anyio
@pytest.mark.attack("A2-D3")
@pytest.mark.parametrize("calls", [0, 1, 5])
async def test_model_without_calls_left_is_asked_once_more(hub: Hub, calls: int) -> None:
    with FakeLLM(keep_calling) as llm:
        record = await run_agent(hub, llm, budget=Budget(calls=calls))
    assert record.error is not None
    assert record.error["code"] == "E-AGENT-BUDGET"
    assert f"{calls} calls" in record.error["message"]
    assert len(llm.requests) == max(1, calls) + 1  # without any call, the first one is refused
    assert "Give your answer now" in llm.requests[-1].results[0].text
    assert record.error["usage"]["calls"] == calls


@pytest.mark.anyio
@pytest.mark.attack("A2-D3")
async def test_tool_search_does_not_prolong_run_without_calls(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolway.agents.hub_toolset.MAX_TOOLS", 0)  # so tools are searched
    search = Turn(calls=[ToolUse("search_tools", {"query": "add"})])
    with FakeLLM([search, Turn(calls=[ADD]), search]) as llm:
        record = await run_agent(hub, llm, budget=Budget(calls=1))
    assert record.error is not None
    assert (record.error["code"], len(llm.requests)) == ("E-AGENT-BUDGET", 3)


@pytest.mark.anyio
async def test_repeated_read_of_same_part_stops_the_run(hub: Hub) -> None:
    again = Turn(calls=[ToolUse("read_result", {"handle": "1.1", "offset": 0})])
    with FakeLLM([Turn(calls=[ToolUse("demo__echo", {"text": "x" * 30_000})]), again]) as llm:
        record = await run_agent(hub, llm)
    assert record.error is not None
    assert (record.error["code"], len(llm.requests)) == ("E-AGENT-LOOP", 9)


@pytest.mark.anyio
async def test_silent_provider_is_asked_five_times(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolway.agents.journalled_model.MAX_WAIT_S", 0.01)
    monkeypatch.setattr("toolway.agents.journalled_model.REQUEST_TIMEOUT_S", 0.3)
    with FakeLLM([Turn("Done.", fault=LLMFault("slow", times=9))]) as llm:
        record = await run_agent(hub, llm)
    assert record.error is not None
    assert (record.error["code"], len(llm.requests)) == ("E-AGENT-MODEL", 5)
    assert "no answer within 0.3 s" in record.error["detail"]
