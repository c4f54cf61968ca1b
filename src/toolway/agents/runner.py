"""Agent runs in one call: `AgentRunner(hub).execute(prompt=…, provider=…, model=…)`.

Runs are in memory and end with the process. `Agent` has the whole interface: journal, approvals, events.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolway.agents.agent import Agent
from toolway.agents.settings import Budget
from toolway.catalog.catalog import Tool
from toolway.hub.hub import Hub
from toolway.types import Json

if TYPE_CHECKING:
    from pydantic_ai.models import Model


class AgentRunner:
    """Executor of prompts with the tools of a hub.

    Example:
        runner = AgentRunner(hub)
        tools = await runner.load_tools(["github"])
        result = await runner.execute(prompt="List the open issues", tools=tools, provider="openai", model="gpt-5")
        print(result["response"])
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def load_tools(self, servers: Sequence[str]) -> list[Tool]:
        """Return the tools of the named servers."""
        return [tool for server in servers for tool in await self._hub.list_tools(server=server)]

    async def execute(
        self,
        *,
        prompt: str,
        tools: Sequence[Tool],
        provider: str,
        model: str | Model,
        system_prompt: str = "",
        temperature: float | None = None,
        max_tokens: int | None = None,
        max_iterations: int = 10,
        base_url: str | None = None,
    ) -> Json:
        """Let a model work on a prompt with some tools. Its calls do not need approval.

        Args:
            prompt: The task.
            tools: Tools that the model may call, of `load_tools`.
            provider: `openai`, `anthropic`, `google`, `bedrock`, `deepseek`, or another one of pydantic-ai.
            model: Name of the model.
            system_prompt: Instructions for the model.
            temperature: Temperature of the model.
            max_tokens: Length of one answer.
            max_iterations: Number of answers.
            base_url: Address of an OpenAI-compatible endpoint.

        Returns:
            `response`, `messages`, `tool_calls` (tool, arguments, result), `usage` (prompt_tokens, completion_tokens,
            total_tokens) and `metadata` (provider, model, iterations, duration in seconds).

        Raises:
            AgentError: The model cannot be used.
            WorkflowError: The run failed.
        """
        began = time.monotonic()
        agent = Agent(
            f"{provider}:{model}" if isinstance(model, str) else model,
            self._hub,
            tools=[tool.qualified_name for tool in tools],
            instructions=system_prompt,
            approve="none",
            budget=Budget(requests=max_iterations),
            temperature=temperature,
            max_tokens=max_tokens,
            base_url=base_url,
        )
        async with agent:
            run = await agent.start(prompt)
            result = await run.result()
            messages = await run.messages()
        tokens = (result.usage["input_tokens"], result.usage["output_tokens"])
        return {
            "response": result.output,
            "messages": messages,
            "tool_calls": [{key: each[key] for key in ("tool", "arguments", "result")} for each in result.tool_calls],
            "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)},
            "metadata": {
                "provider": provider,
                "model": model if isinstance(model, str) else model.model_name,
                "iterations": result.usage["requests"],
                "duration": time.monotonic() - began,
            },
        }
