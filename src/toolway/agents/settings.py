"""Settings of an agent: model, tools, approvals and budget. They are stored with each run, so that it can go on."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

import msgspec

from toolway.errors import ConfigError
from toolway.types import Effect, Json

DEFAULT_REQUESTS: Final = 50
_BUDGET_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(usd|tokens|calls|requests|s|m|h)")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}

#: Which calls need the approval of a person: those of unsafe tools, all, none, or those of tools with these patterns.
ApprovalPolicy: TypeAlias = Literal["unsafe", "all", "none"] | list[str]


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one agent run. A run that reaches one ends as failed, with what it did so far in its transcript.

    Example:
        Budget(usd=0.50, calls=40, seconds=600)
    """

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None  # tool calls
    requests: int = DEFAULT_REQUESTS  # answers of the model
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read a budget such as `0.50usd,40calls,10m`. Raises `ConfigError`."""
        values: dict[str, Any] = {}
        for part in filter(None, (each.strip().lower() for each in text.split(","))):
            found = _BUDGET_PART.fullmatch(part)
            if found is None:
                raise ConfigError(
                    f"{part!r} is not a part of a budget",
                    hint="for example 0.50usd,40calls,200000tokens,30requests,10m",
                    code="E-AGENT-BUDGET-TEXT",
                )
            number, unit = float(found[1]), found[2]
            if unit in _SECONDS:
                values["seconds"] = number * _SECONDS[unit]
            else:
                values[unit] = number if unit == "usd" else int(number)
        return cls(**values)


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All that an agent run needs besides the hub: stored as the input of the run."""

    model: str  # "openai:gpt-5", "anthropic:…", "google:…"
    tools: tuple[str, ...] = ("*",)  # patterns of `server.tool`
    instructions: str = ""
    approve: ApprovalPolicy = "unsafe"
    on_unknown: Literal["tell", "ask"] = "tell"  # tell the model that a call may have happened, or ask a person
    untrusted: tuple[str, ...] | Literal["none"] = ()  # servers with texts of strangers besides the configured ones
    budget: Budget = Budget()
    base_url: str | None = None  # of an OpenAI-compatible endpoint
    temperature: float | None = None
    max_tokens: int | None = None  # of one answer
    output: Json | None = None  # JSON Schema of the output; None for text
    prices: dict[str, tuple[float, float]] = {}  # USD for a million input and output tokens, by model name

    def selects(self, tool: str) -> bool:
        """Return True if the agent may use this tool."""
        return matches_any(tool, self.tools)

    def needs_approval(self, tool: str, effect: Effect) -> bool:
        """Return True if a person must approve a call of this tool."""
        if isinstance(self.approve, str):
            return self.approve == "all" or (self.approve == "unsafe" and effect is Effect.UNSAFE)
        return matches_any(tool, self.approve)


def matches_any(tool: str, patterns: Iterable[str]) -> bool:
    """Return True if the name of a tool matches a pattern. A pattern without a dot is the name of a server."""
    return any(
        fnmatch.fnmatchcase(tool, pattern if "." in pattern or "*" in pattern else f"{pattern}.*")
        for pattern in patterns
    )
