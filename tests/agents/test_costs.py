"""Tokens and money of agent runs, compared with the usage blocks that the provider has sent, through the real SDKs."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")

from tests.agents.run_once import KEYS
from tests.agents.test_providers import FORMATS
from toolway import Hub
from toolway.agents import Agent, Budget
from toolway.testing import FakeLLM, TokenUsage, ToolUse, Turn
from toolway.workflows import WorkflowError

#: USD for a million tokens by the public price lists: input, output, cache read, cache write.
PRICES = {
    "openai-chat:gpt-4o": ("2.5", "10", "1.25", "2.5"),
    "openai-responses:gpt-4o": ("2.5", "10", "1.25", "2.5"),
    "anthropic:claude-sonnet-5": ("2", "10", "0.2", "2.5"),
    "google:gemini-2.5-pro": ("1.25", "10", "0.125", "1.25"),
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.setenv(name, "none")


def read_usage(model: str, block: dict[str, Any]) -> dict[str, int]:
    """Return the tokens of a usage block, by the documentation of its provider."""
    if model.startswith("openai-chat"):
        details, more = block["prompt_tokens_details"], block["completion_tokens_details"]
        values = (block["prompt_tokens"], block["completion_tokens"], details["cached_tokens"])
        return _usage(*values, details["cache_write_tokens"], more["reasoning_tokens"])
    if model.startswith("openai-responses"):
        details, more = block["input_tokens_details"], block["output_tokens_details"]
        values = (block["input_tokens"], block["output_tokens"], details["cached_tokens"])
        return _usage(*values, details["cache_write_tokens"], more["reasoning_tokens"])
    if model.startswith("anthropic"):  # whose input tokens are those next to the cache
        read, written = block["cache_read_input_tokens"], block["cache_creation_input_tokens"]
        thinking = block["output_tokens_details"]["thinking_tokens"]
        return _usage(block["input_tokens"] + read + written, block["output_tokens"], read, written, thinking)
    thoughts = block["thoughtsTokenCount"]  # which are not among the candidates' tokens
    output = block["candidatesTokenCount"] + thoughts
    return _usage(block["promptTokenCount"], output, block["cachedContentTokenCount"], 0, thoughts)


def _usage(input: int, output: int, read: int, written: int, reasoning: int) -> dict[str, int]:
    return {"input": input, "output": output, "read": read, "written": written, "reasoning": reasoning}


def price(model: str, usage: dict[str, int]) -> Decimal:
    per_input, per_output, per_read, per_written = map(Decimal, PRICES[model])
    fresh = usage["input"] - usage["read"] - usage["written"]
    total = fresh * per_input + usage["read"] * per_read + usage["written"] * per_written + usage["output"] * per_output
    return total / 1_000_000


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", FORMATS)
async def test_tokens_and_cost_match_usage_blocks(model: str, stream: bool) -> None:
    # The OpenAI table has no price for writes to the cache, and Gemini reports none.
    written = 800 if model.startswith("anthropic") else 0
    turns: list[Turn | str] = [
        Turn(text="First.", calls=[ToolUse("x__none")], usage=TokenUsage(5000, 700, 3000, written, 400)),
        Turn(text="Done.", usage=TokenUsage(9001, 77, 6000, 0, 33)),
    ]
    with FakeLLM(turns) as llm:
        async with Hub({}) as hub:
            url = getattr(llm, FORMATS[model])
            async with Agent(model, hub, tools=[], base_url=url, stream=stream, budget=Budget(usd=5.0)) as agent:
                run = await agent.start("Go")
                used = (await run.result()).usage
                answers = [each for each in await run.messages() if each["role"] == "assistant"]
    blocks = [read_usage(model, each) for each in llm.usages]
    total = {key: sum(each[key] for each in blocks) for key in blocks[0]}
    assert total == _usage(14001, 777, 9000, written, 433)  # what the script says
    assert used == {
        "requests": len(llm.requests),
        "input_tokens": total["input"],
        "output_tokens": total["output"],
        "cached_tokens": total["read"],
        "reasoning_tokens": total["reasoning"],
        "usd": float(sum(price(model, each) for each in blocks)),
        "calls": 0,
    }
    assert [each["usd"] for each in answers] == [float(price(model, each)) for each in blocks]
    assert [each["cached_tokens"] for each in answers] == [3000, 6000]


@pytest.mark.anyio
async def test_missing_usage_is_estimated() -> None:
    turns: list[Turn | str] = [Turn(text="x" * 400, calls=[ToolUse("x__none")], without_usage=True), "Done."]
    with FakeLLM(turns) as llm:
        async with Hub({}) as hub:
            prompt = "word " * 2000  # 10,000 characters: about 2,500 tokens
            budget = Budget(tokens=2000)
            async with Agent("openai-chat:gpt-4o", hub, tools=[], base_url=llm.openai_url, budget=budget) as agent:
                with pytest.raises(WorkflowError) as raised:
                    await agent.run(prompt)
            assert (raised.value.code, len(llm.requests)) == ("E-AGENT-BUDGET", 1)
            async with Agent("openai-chat:gpt-4o", hub, tools=[], base_url=llm.openai_url) as agent:
                used = (await agent.run(prompt)).usage
    assert used["usd"] is None
    assert used["uncounted_tokens"] > 2000
    assert used["uncounted_usd"] > 0.005
