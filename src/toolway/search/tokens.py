"""Tokens that tool definitions cost a model, and advice when search is cheaper than listing all tools. No I/O.

Every count that Toolway shows is made here. A single number is for OpenAI's tokenizer o200k_base and says so. No
provider's tokenizer is available offline: a definition is sent as JSON, with the name that the gateway lists it by, and
its characters are divided by the average characters per token of such text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from toolway.catalog.catalog import Tool
from toolway.types import Json

TOKENIZER: Final = "o200k_base"  # of OpenAI's models since GPT-4o
TOKENS_LABEL: Final = "tokens (OpenAI)"
CHARS_PER_TOKEN: Final = 4.4  # with o200k_base: 1 % off in total for 504 tools of 42 servers, 5 % at the median
ANTHROPIC_CHARS_PER_TOKEN: Final = 4.32  # with the tokenizer that Anthropic published; newer models have another one
GEMINI_CHARS_PER_TOKEN: Final = 4.0  # Google documents about 4
MANY_TOOLS: Final = 60  # that an endpoint lists; some clients stop at 40
MANY_TOKENS: Final = 20_000  # of all definitions that an endpoint lists: a tenth of a common context window
_SENT_KEYS: Final = ("name", "description", "inputSchema")  # models receive neither annotations nor the output schema


def definition_chars(definition: Json) -> int:
    """Return the characters of a tool definition as a model receives it."""
    sent = {key: definition[key] for key in _SENT_KEYS if definition.get(key)}
    return len(msgspec.json.encode(sent).decode())


def estimate_tokens(definitions: Iterable[Json]) -> int:
    """Return the estimated tokens that definitions cost in every request to a model of OpenAI."""
    return round(sum(map(definition_chars, definitions)) / CHARS_PER_TOKEN)


def tool_chars(tool: Tool) -> int:
    """Return the characters of a listed tool's definition, under the name that models get."""
    return definition_chars({**tool.raw, "name": tool.model_name})


def estimate_tool_tokens(tools: Iterable[Tool]) -> int:
    """Return the estimated tokens that listed tools cost in every request to a model of OpenAI."""
    return round(sum(map(tool_chars, tools)) / CHARS_PER_TOKEN)


class TokenCost(msgspec.Struct, frozen=True):
    """Estimated tokens of the definitions of all tools of a server, per model provider."""

    openai: int = 0
    anthropic: int = 0
    gemini: int = 0

    @property
    def highest(self) -> int:
        return max(self.openai, self.anthropic, self.gemini)

    @classmethod
    def of_server(cls, server: str, definitions: Iterable[Json]) -> TokenCost:
        """Return the cost of the definitions that a server sent."""
        size = sum(tool_chars(Tool(server, str(each.get("name", "")), each)) for each in definitions)
        return cls(
            round(size / CHARS_PER_TOKEN),
            round(size / ANTHROPIC_CHARS_PER_TOKEN),
            round(size / GEMINI_CHARS_PER_TOKEN),
        )


def search_advice(tools: int, tokens: int) -> str:
    """Return the advice to use tool search; "" if listing all tools costs little.

    Example:
        504 tools are 117k tokens; clients without tool search should use /mcp/search
    """
    if tools <= MANY_TOOLS and tokens <= MANY_TOKENS:
        return ""
    cost = f"{tokens / 1000:.0f}k tokens" if tokens >= 1000 else f"{tokens} tokens"
    return f"{tools} tools are {cost}; clients without tool search should use /mcp/search"
