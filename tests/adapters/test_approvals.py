"""Frameworks with their own approvals: a call that needs one waits in the framework until it is approved."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.loops import MODEL
from tests.adapters.scenarios import DONE, PROMPT, effects_in, make_hub
from toolway.testing import FakeLLM, ToolUse, Turn

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("default")]
SCRIPT: list[Turn | str] = [Turn(calls=[ToolUse("demo__counter", {"call": "a"})]), DONE]


async def test_pydantic_ai_defers_call_until_approved(tmp_path: Path) -> None:
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
async def test_openai_agents_interrupts_run_until_call_is_approved(approved: bool, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("approved", [True, False])
async def test_adk_requests_confirmation(approved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("google.adk", reason="google.adk is not installed: make clients ARGS=adapters")
    from google.adk.agents import LlmAgent
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    from toolway.adapters import adk

    effects = tmp_path / "effects"
    with FakeLLM(SCRIPT) as llm:
        monkeypatch.setenv("GOOGLE_API_KEY", "none")
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", llm.gemini_url)
        async with make_hub(effects) as hub:
            tools = await adk.tools(hub, "demo.*", approve="unsafe")
            runner = InMemoryRunner(LlmAgent(name="helper", model="gemini-2.5-flash", tools=[tools]), app_name="test")
            session = await runner.session_service.create_session(app_name="test", user_id="u")

            async def send(part: types.Part) -> list[types.Part]:
                message = types.Content(role="user", parts=[part])
                events = runner.run_async(user_id="u", session_id=session.id, new_message=message)
                return [part async for event in events if event.content for part in event.content.parts or ()]

            parts = await send(types.Part(text=PROMPT))
            calls = [part.function_call for part in parts if part.function_call is not None]
            (request,) = [call for call in calls if call.name == "adk_request_confirmation"]
            assert request.args is not None
            assert request.args["originalFunctionCall"]["args"] == {"call": "a"}
            assert effects_in(effects) == 0
            answer = types.FunctionResponse(id=request.id, name=request.name, response={"confirmed": approved})
            said = await send(types.Part(function_response=answer))
    assert (said[-1].text, effects_in(effects)) == (DONE, int(approved))
    result = llm.requests[-1].results[-1].text
    assert result == "1" if approved else "was not approved. It did not run." in result


@pytest.mark.parametrize("approved", [True, False])
async def test_agent_framework_requests_approval(approved: bool, tmp_path: Path) -> None:
    framework = pytest.importorskip(
        "agent_framework", reason="agent_framework is not installed: make clients ARGS=adapters"
    )
    from agent_framework.openai import OpenAIChatClient

    from toolway.adapters import agent_framework

    effects = tmp_path / "effects"
    with FakeLLM(SCRIPT) as llm:
        async with make_hub(effects) as hub:
            client = OpenAIChatClient(model=MODEL, base_url=llm.openai_url, api_key="none")
            agent = framework.Agent(client, tools=await agent_framework.tools(hub, "demo.*", approve="unsafe"))
            session = agent.create_session()
            asked = await agent.run(PROMPT, session=session)
            (request,) = asked.user_input_requests
            assert (request.function_call.name, effects_in(effects)) == ("demo__counter", 0)
            answer = framework.Message("user", [request.to_function_approval_response(approved)])
            result = await agent.run(answer, session=session)
    assert (result.text, effects_in(effects)) == (DONE, int(approved))
