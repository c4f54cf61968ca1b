"""About how many tokens the definitions of tools cost a model, each time it is asked something.

Estimates: no provider's counter is to be had offline. A definition is sent as JSON, and its characters are divided by
what a token of such text holds on average. That was measured over the 146 tools of nine public servers: 4.47 characters
with o200k_base (each server within 8 % of it) and 4.32 with the tokenizer that Anthropic published, which newer models
of theirs have left; Google itself speaks of about 4.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from toolway.model import Json

#: Characters of a token.
OPENAI: Final = 4.47
ANTHROPIC: Final = 4.32
GEMINI: Final = 4.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens of all tools together."""

    openai: int = 0
    anthropic: int = 0
    gemini: int = 0

    @property
    def most(self) -> int:
        return max(self.openai, self.anthropic, self.gemini)


def cost_of(tools: Sequence[Json]) -> Cost:
    """What these tools cost, as a server sent them."""
    size = sum(map(_size, tools))
    return Cost(round(size / OPENAI), round(size / ANTHROPIC), round(size / GEMINI))


def _size(tool: Json) -> int:
    """The characters of what a model is told: how a tool is annotated, and what it answers, is not."""
    sent = {key: tool[key] for key in ("name", "description", "inputSchema") if tool.get(key)}
    return len(json.dumps(sent, ensure_ascii=False, separators=(",", ":")))
