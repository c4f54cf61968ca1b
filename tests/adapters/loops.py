"""The agent loop of each framework, over a `FakeLLM`. Each imports its framework when it runs."""

from __future__ import annotations

from typing import Any

from tests.adapters.scenarios import PROMPT, Loop
from toolway import Hub
from toolway.testing import FakeLLM

MODEL = "fake-model"


async def openai_chat(llm: FakeLLM, hub: Hub, options: dict[str, Any]) -> str:
    from openai import AsyncOpenAI

    from toolway.adapters import openai

    tools = await openai.tools(hub, **options)
    messages: list[Any] = [{"role": "user", "content": PROMPT}]
    async with AsyncOpenAI(base_url=llm.openai_url, api_key="none", max_retries=0) as client:
        while True:
            response = await client.chat.completions.create(model=MODEL, messages=messages, tools=tools.chat)
            answers = await tools.answer_chat(response)
            messages += answers
            if len(answers) == 1:
                return str(response.choices[0].message.content)


async def openai_chat_stream(llm: FakeLLM, hub: Hub, options: dict[str, Any]) -> str:
    from openai import AsyncOpenAI

    from toolway.adapters import openai

    tools = await openai.tools(hub, **options)
    messages: list[Any] = [{"role": "user", "content": PROMPT}]
    async with AsyncOpenAI(base_url=llm.openai_url, api_key="none", max_retries=0) as client:
        while True:
            async with client.chat.completions.stream(model=MODEL, messages=messages, tools=tools.chat) as stream:
                response = await stream.get_final_completion()
            answers = await tools.answer_chat(response)
            messages += answers
            if len(answers) == 1:
                return str(response.choices[0].message.content)


async def openai_responses(llm: FakeLLM, hub: Hub, options: dict[str, Any], *, stored: bool = False) -> str:
    from openai import AsyncOpenAI

    from toolway.adapters import openai

    tools = await openai.tools(hub, **options)
    items: Any = [{"role": "user", "content": PROMPT}]
    previous: dict[str, Any] = {}
    async with AsyncOpenAI(base_url=llm.openai_url, api_key="none", max_retries=0) as client:
        while True:
            response = await client.responses.create(model=MODEL, input=items, tools=tools.responses, **previous)
            answers = await tools.answer_responses(response)
            if not answers:
                return str(response.output_text)
            if stored:
                items, previous = answers, {"previous_response_id": response.id}
            else:
                items = [*items, *(each.model_dump(exclude_unset=True) for each in response.output), *answers]


async def openai_responses_stored(llm: FakeLLM, hub: Hub, options: dict[str, Any]) -> str:
    return await openai_responses(llm, hub, options, stored=True)


async def openai_responses_stream(llm: FakeLLM, hub: Hub, options: dict[str, Any]) -> str:
    from openai import AsyncOpenAI

    from toolway.adapters import openai

    tools = await openai.tools(hub, **options)
    items: Any = [{"role": "user", "content": PROMPT}]
    async with AsyncOpenAI(base_url=llm.openai_url, api_key="none", max_retries=0) as client:
        while True:
            async with client.responses.stream(model=MODEL, input=items, tools=tools.responses) as stream:
                response = await stream.get_final_response()
            answers = await tools.answer_responses(response)
            if not answers:
                return str(response.output_text)
            made = [each.model_dump(exclude_unset=True, exclude={"parsed_arguments"}) for each in response.output]
            items = [*items, *made, *answers]


async def anthropic_messages(llm: FakeLLM, hub: Hub, options: dict[str, Any]) -> str:
    from anthropic import AsyncAnthropic

    from toolway.adapters import anthropic

    tools = await anthropic.tools(hub, **options)
    messages: list[Any] = [{"role": "user", "content": PROMPT}]
    async with AsyncAnthropic(base_url=llm.anthropic_url, api_key="none", max_retries=0) as client:
        while True:
            message = await client.messages.create(
                model=MODEL, max_tokens=1000, messages=messages, tools=tools.definitions
            )
            answers = await tools.answer(message)
            messages += answers
            if len(answers) == 1:
                return str(message.content[0].text)


async def anthropic_stream(llm: FakeLLM, hub: Hub, options: dict[str, Any]) -> str:
    from anthropic import AsyncAnthropic

    from toolway.adapters import anthropic

    tools = await anthropic.tools(hub, **options)
    messages: list[Any] = [{"role": "user", "content": PROMPT}]
    async with AsyncAnthropic(base_url=llm.anthropic_url, api_key="none", max_retries=0) as client:
        while True:
            async with client.messages.stream(
                model=MODEL, max_tokens=1000, messages=messages, tools=tools.definitions
            ) as stream:
                message = await stream.get_final_message()
            answers = await tools.answer(message)
            messages += answers
            if len(answers) == 1:
                return str(message.content[0].text)


async def anthropic_tool_runner(llm: FakeLLM, hub: Hub, options: dict[str, Any]) -> str:
    from anthropic import AsyncAnthropic

    from toolway.adapters import anthropic

    tools = await anthropic.tools(hub, **options)
    async with AsyncAnthropic(base_url=llm.anthropic_url, api_key="none", max_retries=0) as client:
        runner = client.beta.messages.tool_runner(
            model=MODEL, max_tokens=1000, messages=[{"role": "user", "content": PROMPT}], tools=tools.runnable()
        )
        message = await runner.until_done()
    return str(message.content[0].text)


async def gemini_generate(llm: FakeLLM, hub: Hub, options: dict[str, Any], *, stream: bool = False) -> str:
    from google import genai
    from google.genai import types

    from toolway.adapters import gemini

    tools = await gemini.tools(hub, **options)
    contents: list[Any] = [types.Content(role="user", parts=[types.Part(text=PROMPT)])]
    config = types.GenerateContentConfig(**tools.config)
    http_options = types.HttpOptions(base_url=llm.gemini_url)
    async with genai.Client(api_key="none", http_options=http_options).aio as client:
        while True:
            if stream:
                response = await _gemini_stream(client, contents, config)
            else:
                response = await client.models.generate_content(model=MODEL, contents=contents, config=config)
            answers = await tools.answer(response)
            contents += answers
            if len(answers) == 1:
                return "".join(str(part.text) for part in answers[0].parts)


async def _gemini_stream(client: Any, contents: Any, config: Any) -> Any:
    from google.genai import types

    parts: list[Any] = []
    async for chunk in await client.models.generate_content_stream(model=MODEL, contents=contents, config=config):
        parts += chunk.candidates[0].content.parts
    content = types.Content(role="model", parts=parts)
    return types.GenerateContentResponse(candidates=[types.Candidate(content=content)])


async def gemini_stream(llm: FakeLLM, hub: Hub, options: dict[str, Any]) -> str:
    return await gemini_generate(llm, hub, options, stream=True)


async def langchain_agent(llm: FakeLLM, hub: Hub, options: dict[str, Any]) -> str:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    from toolway.adapters import langchain

    model = ChatOpenAI(model=MODEL, base_url=llm.openai_url, api_key="none", max_retries=0)
    agent = create_agent(model, await langchain.tools(hub, **options))
    answer = await agent.ainvoke({"messages": [{"role": "user", "content": PROMPT}]})
    return str(answer["messages"][-1].content)


async def pydantic_ai_agent(llm: FakeLLM, hub: Hub, options: dict[str, Any]) -> str:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from toolway.adapters import pydantic_ai

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=llm.openai_url, api_key="none"))
    agent = Agent(model, toolsets=[await pydantic_ai.tools(hub, **options)])
    async with agent:
        return str((await agent.run(PROMPT)).output)


async def openai_agents_run(llm: FakeLLM, hub: Hub, options: dict[str, Any]) -> str:
    from agents import Agent, OpenAIResponsesModel, RunConfig, Runner
    from openai import AsyncOpenAI

    from toolway.adapters import openai_agents

    async with AsyncOpenAI(base_url=llm.openai_url, api_key="none", max_retries=0) as client:
        model = OpenAIResponsesModel(MODEL, client)
        agent = Agent(name="helper", model=model, tools=await openai_agents.tools(hub, **options))
        result = await Runner.run(agent, PROMPT, run_config=RunConfig(tracing_disabled=True))
    return str(result.final_output)


async def llamaindex_agent(llm: FakeLLM, hub: Hub, options: dict[str, Any]) -> str:
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.llms.openai import OpenAI

    from toolway.adapters import llamaindex

    model = OpenAI(model="gpt-4o", api_base=llm.openai_url, api_key="none", max_retries=0)
    agent = FunctionAgent(tools=await llamaindex.tools(hub, **options), llm=model, streaming=False)
    return str(await agent.run(PROMPT))


async def adk_agent(llm: FakeLLM, hub: Hub, options: dict[str, Any]) -> str:
    import os

    from google.adk.agents import LlmAgent
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    from toolway.adapters import adk

    os.environ.update(GOOGLE_API_KEY="none", GOOGLE_GEMINI_BASE_URL=llm.gemini_url)
    agent = LlmAgent(name="helper", model="gemini-2.5-flash", tools=[await adk.tools(hub, **options)])
    runner = InMemoryRunner(agent, app_name="test")
    session = await runner.session_service.create_session(app_name="test", user_id="u")
    said = ""
    message = types.Content(role="user", parts=[types.Part(text=PROMPT)])
    async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message):
        said = "".join(part.text or "" for part in event.content.parts) if event.content else said
    return said


async def agent_framework_agent(llm: FakeLLM, hub: Hub, options: dict[str, Any]) -> str:
    from agent_framework import Agent
    from agent_framework.openai import OpenAIChatClient

    from toolway.adapters import agent_framework

    client = OpenAIChatClient(model=MODEL, base_url=llm.openai_url, api_key="none")
    agent = Agent(client, tools=await agent_framework.tools(hub, **options))
    return str((await agent.run(PROMPT)).text)


async def smolagents_agent(llm: FakeLLM, hub: Hub, options: dict[str, Any]) -> str:
    import asyncio

    from smolagents import OpenAIModel, ToolCallingAgent

    from toolway import SyncHub
    from toolway.adapters import smolagents

    def run() -> str:
        with SyncHub(hub._core.servers.entries, catalog_storage=None) as own:
            model = OpenAIModel(MODEL, api_base=llm.openai_url, api_key="none")
            agent = ToolCallingAgent(smolagents.tools(own, **options), model, verbosity_level=0)
            return str(agent.run(PROMPT))

    return await asyncio.to_thread(run)


async def autogen_agent(llm: FakeLLM, hub: Hub, options: dict[str, Any]) -> str:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    from toolway.adapters import autogen

    client = OpenAIChatCompletionClient(model="gpt-4o", base_url=llm.openai_url, api_key="none", max_retries=0)
    agent = AssistantAgent(
        "helper", client, workbench=await autogen.tools(hub, **options), max_tool_iterations=5, system_message=None
    )
    result = await agent.run(task=PROMPT)
    return str(result.messages[-1].content)


#: Loops that differ from another one only in the transport: they show two scenarios.
VARIANTS = {
    "openai-chat-stream",
    "openai-responses-stored",
    "openai-responses-stream",
    "anthropic-stream",
    "gemini-stream",
}

#: The loop, and the modules that it needs.
LOOPS: dict[str, tuple[Loop, tuple[str, ...]]] = {
    "openai-chat": (openai_chat, ("openai",)),
    "openai-chat-stream": (openai_chat_stream, ("openai",)),
    "openai-responses": (openai_responses, ("openai",)),
    "openai-responses-stored": (openai_responses_stored, ("openai",)),
    "openai-responses-stream": (openai_responses_stream, ("openai",)),
    "anthropic": (anthropic_messages, ("anthropic",)),
    "anthropic-stream": (anthropic_stream, ("anthropic",)),
    "anthropic-tool-runner": (anthropic_tool_runner, ("anthropic",)),
    "gemini": (gemini_generate, ("google.genai",)),
    "gemini-stream": (gemini_stream, ("google.genai",)),
    "langchain": (langchain_agent, ("langchain", "langchain_openai")),
    "pydantic-ai": (pydantic_ai_agent, ("pydantic_ai",)),
    "openai-agents": (openai_agents_run, ("agents",)),
    "llamaindex": (llamaindex_agent, ("llama_index.core",)),
    "adk": (adk_agent, ("google.adk",)),
    "agent-framework": (agent_framework_agent, ("agent_framework",)),
    "smolagents": (smolagents_agent, ("smolagents",)),
    "autogen": (autogen_agent, ("autogen_agentchat",)),
}
