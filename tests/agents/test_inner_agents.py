"""Budgets of children: agents that are tools of another agent, and agent steps of a workflow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")

from toolway import Hub
from toolway.agents import Agent, Budget, agent_workflow
from toolway.agents.replay import replay_run
from toolway.config.agent_settings import read_agent_entries
from toolway.errors import ConfigError
from toolway.testing import FakeHttp, FakeLLM, ToolUse, Turn
from toolway.testing.fake_llm import LLMRequest
from toolway.workflows import WorkflowError, Workflows
from toolway.workflows.sqlite_journal import SqliteJournal

MODEL = "openai-chat:gpt-4o"
USAGE = (1000, 100)  # 0.0035 USD


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with FakeHttp() as fake, Hub({"demo": fake.url}, catalog_storage=None) as hub:
        await hub.wait_ready()
        yield hub


def prompts(request: LLMRequest) -> str:
    return next(str(each["content"]) for each in request.body["messages"] if each["role"] == "user")


def script(lead: list[Turn | str], inner: list[Turn | str]) -> Callable[[LLMRequest], Turn | str]:
    """Return the turns of two agents; the inner one has the prompt "look"."""

    def answer(request: LLMRequest) -> Turn | str:
        turns = inner if prompts(request) == "look" else lead
        return turns[min(request.turn, len(turns) - 1)]

    return answer


def ask_inner(*more: str) -> Turn:
    return Turn(calls=[ToolUse("agent__scout", {"prompt": each}) for each in ("look", *more)], usage=USAGE)


@pytest.mark.anyio
async def test_inner_agent_counts_against_both_budgets(hub: Hub) -> None:
    add = Turn(calls=[ToolUse("demo__add", {"a": 1, "b": 2})], usage=USAGE)
    with FakeLLM(script([ask_inner(), Turn("It is 3.", usage=USAGE)], [add, Turn("3", usage=USAGE)])) as llm:
        scout = Agent(MODEL, hub, tools=["demo.add"], base_url=llm.openai_url, description="Adds numbers.")
        lead = Agent(
            MODEL,
            hub,
            tools=[],
            base_url=llm.openai_url,
            agents={"scout": scout},
            budget=Budget(usd=1, calls=9, seconds=600),
        )
        async with lead:
            run = await lead.start("What is 1 + 2?")
            result = await run.result()
            messages = await run.messages()
            child = await lead.get(next(each["run"] for each in messages if "run" in each)).status()
            record, _, entries, answers = await lead._get_workflows().load(run.id)
    replayed = await replay_run(record, entries, answers)  # as after a crash: the child is not started again
    assert (replayed.state, replayed.output) == ("done", record.output)
    assert result.output == "It is 3."
    assert (result.usage["requests"], result.usage["calls"]) == (4, 2)
    assert (result.usage["input_tokens"], result.usage["output_tokens"]) == (4000, 400)
    assert result.usage["usd"] == pytest.approx(4 * 0.0035)
    assert [(each["tool"], each["result"]) for each in result.tool_calls] == [("agent.scout", "3")]
    limits = child.input["settings"]["budget"]  # what was left after the first answer and the call
    assert (limits["usd"], limits["calls"], limits["requests"]) == (pytest.approx(1 - 0.0035), 8, 49)
    assert "Adds numbers." in str(llm.requests[0].body["tools"])


@pytest.mark.anyio
async def test_child_gets_only_the_remaining_budget(hub: Hub) -> None:
    endless = Turn(calls=[ToolUse("demo__counter", {})], usage=USAGE)
    with FakeLLM(script([ask_inner(), ask_inner(), "Done."], [endless])) as llm:
        scout = Agent(MODEL, hub, base_url=llm.openai_url, approve="none")
        lead = Agent(MODEL, hub, tools=[], base_url=llm.openai_url, agents={"scout": scout}, budget=Budget(requests=5))
        async with lead:
            with pytest.raises(WorkflowError) as raised:
                await lead.run("Go")
    assert raised.value.code == "E-AGENT-BUDGET"
    by_lead = [request for request in llm.requests if prompts(request) != "look"]
    assert (len(llm.requests), len(by_lead)) == (5, 1)


@pytest.mark.anyio
async def test_questions_and_untrusted_content_pass_between_agents(hub: Hub) -> None:
    read = Turn(calls=[ToolUse("demo__echo", {"text": "x"})])
    write = Turn(calls=[ToolUse("other__counter", {})])
    async with FakeHttp() as fake:
        await hub.add_server("other", fake.url)
        await hub.wait_ready("other")
        with FakeLLM(script([ask_inner(), write, "Done."], [read, "x"])) as llm:
            scout = Agent(MODEL, hub, tools=["demo.echo"], base_url=llm.openai_url, untrusted=["demo"], approve="all")
            lead = Agent(
                MODEL, hub, tools=["other.*"], base_url=llm.openai_url, agents={"scout": scout}, approve="none"
            )
            async with lead:
                run = await lead.start("Go")
                asked = []
                async for event in run.events():
                    if event.kind == "asks":
                        asked.append(event.text)
                        await run.approve(event.step, yes=len(asked) == 1)
    assert asked == ['demo.echo {"text":"x"}', "after reading from demo (untrusted): other.counter {}"]


@pytest.mark.anyio
async def test_agent_steps_share_the_workflow_budget(hub: Hub) -> None:
    pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
    with FakeLLM([Turn("Yes.", usage=USAGE)]) as llm:
        agent = {"model": MODEL, "base_url": llm.openai_url, "tools": [], "budget": "0.003usd"}
        step = {"name": "ask", "agent": {"prompt": "${item}?", **agent}}
        inner = {"name": "inner", "inputs": {}, "steps": [{"name": "x", "agent": {"prompt": "?", **agent}}]}
        flow: dict[str, Any] = {
            "name": "w",
            "budget": "0.01usd",
            "steps": [
                {"name": "first", "workflow": inner},
                {"name": "all", "foreach": "[1, 2, 3, 4]", "at_once": 4, "steps": [step]},
            ],
        }
        async with Workflows(
            hub, SqliteJournal(None), code=[agent_workflow(hub, model_urls=[llm.openai_url])]
        ) as workflows:
            run = await workflows.start(flow)
            with pytest.raises(WorkflowError) as raised:
                await run.result()
            _, _, entries, _ = await workflows.load(run.id)
    assert raised.value.code == "E-AGENT-BUDGET"
    assert len(llm.requests) == 4  # each costs 0.0035 USD, and may exceed its limit by one request
    granted = {
        each.path: each.body["budget"]["usd"] for each in entries if each.kind == "child" and "budget" in each.body
    }
    assert granted["first"] == 0.01
    assert [granted[f"all[{number}]/ask"] for number in range(3)] == pytest.approx([0.003, 0.003, 0.0005])
    assert sum(each.body["usage"]["usd"] for each in entries if each.kind == "child" and "usage" in each.body) == (
        pytest.approx(0.014)
    )


def test_configured_agents_can_reference_agents() -> None:
    entries = {"lead": {"model": "a:b", "agents": ["scout"]}, "scout": {"model": "c:d", "description": "Looks."}}
    found = read_agent_entries(entries, str)
    assert list(found) == ["lead", "scout"]
    assert found["lead"].settings.agents["scout"] == found["scout"]
    for wrong in (["lead"], ["nobody"]):
        with pytest.raises(ConfigError, match=r"calls itself|does not exist"):
            read_agent_entries({**entries, "scout": {"model": "c:d", "agents": wrong}}, str)
