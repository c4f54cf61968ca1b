"""Frameworks with approvals of their own: a call that needs one waits in the framework until it is approved."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.loops import MODEL
from tests.adapters.scenarios import DONE, PROMPT, effects_in, make_hub
from toolway.testing import FakeLLM, ToolUse, Turn

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("default")]
SCRIPT: list[Turn | str] = [Turn(calls=[ToolUse("demo__counter", {"call": "a"})]), DONE]


async def test_pydantic_ai_defers_a_call_until_it_is_approved(tmp_path: Path) -> None:
    package = pytest.importorskip("pydantic_ai", reason="pydantic_ai is not installed: make clients ARGS=adapters")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from toolway.adapters import pydantic_ai

    effects = tmp_path / "effects"
    with FakeLLM(SCRIPT) as llm:
        async with make_hub(effects) as hub:
            model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=llm.openai_url, api_key="none"))
            tools = await pydantic_ai.tools(hub, "demo.*", approve="unsafe")
            agent = package.Agent(model, toolsets=[tools], output_type=[str, package.DeferredToolRequests])
            asked = await agent.run(PROMPT)
            (call,) = asked.output.approvals
            assert (call.tool_name, effects_in(effects)) == ("demo__counter", 0)
            answers = package.DeferredToolResults(approvals={call.tool_call_id: True})
            result = await agent.run(message_history=asked.all_messages(), deferred_tool_results=answers)
    assert (result.output, effects_in(effects)) == (DONE, 1)


@pytest.mark.parametrize("approved", [True, False])
async def test_the_agents_sdk_interrupts_a_run_until_a_call_is_approved(approved: bool, tmp_path: Path) -> None:
    sdk = pytest.importorskip("agents", reason="agents is not installed: make clients ARGS=adapters")
    from openai import AsyncOpenAI

    from toolway.adapters import openai_agents

    effects = tmp_path / "effects"
    with FakeLLM(SCRIPT) as llm:
        async with make_hub(effects) as hub, AsyncOpenAI(base_url=llm.openai_url, api_key="none") as client:
            tools = await openai_agents.tools(hub, "demo.*", approve="unsafe")
            agent = sdk.Agent(name="helper", model=sdk.OpenAIResponsesModel(MODEL, client), tools=tools)
            config = sdk.RunConfig(tracing_disabled=True)
            asked = await sdk.Runner.run(agent, PROMPT, run_config=config)
            assert (len(asked.interruptions), effects_in(effects)) == (1, 0)
            state = asked.to_state()
            (state.approve if approved else state.reject)(asked.interruptions[0])
            result = await sdk.Runner.run(agent, state, run_config=config)
    assert (result.final_output, effects_in(effects)) == (DONE, int(approved))
