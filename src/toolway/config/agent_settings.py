"""Settings of an agent: model, tools, approvals and budget. They are stored with each run, so that it can go on.

They are here and not in `toolway.agents`, because configurations and workflow files describe agents too.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final, Literal, TypeAlias

import msgspec

from toolway.errors import ConfigError
from toolway.types import Effect, Json

DEFAULT_REQUESTS: Final = 50
_BUDGET_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(usd|tokens|calls|requests|s|m|h)")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}

_AGENT_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_FILE_KEYS: Final = {"baseUrl": "base_url", "maxTokens": "max_tokens", "onUnknown": "on_unknown"}

#: Which calls need the approval of a person: those of unsafe tools, all, none, or those of tools with these patterns.
ApprovalPolicy: TypeAlias = Literal["unsafe", "all", "none"] | list[str]


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    tools: tuple[str, ...] = ("*",)  # patterns of `server.tool`; empty: no tools
    instructions: str = ""
    approve: ApprovalPolicy = "unsafe"
    on_unknown: Literal["tell", "ask"] = "tell"  # tell the model that a call may have happened, or ask a person
    untrusted: tuple[str, ...] | Literal["none"] = ()  # servers with texts of strangers besides the configured ones
    has_read: tuple[str, ...] = ()  # patterns of tools whose results may be in the prompt
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


def read_agent_settings(value: Mapping[str, Any]) -> AgentSettings:
    """Return the settings in a workflow file or a configuration. `budget` may be a text such as `0.50usd,40calls`.

    Raises `ConfigError` if a key is unknown, is missing or has a wrong value.
    """
    found = dict(value)
    if isinstance(found.get("budget"), str):
        found["budget"] = msgspec.to_builtins(Budget.parse(found["budget"]))
    known = AgentSettings.__struct_fields__
    for key in found:
        if key not in known:
            close = get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"keys of an agent: {', '.join(known)}"
            raise ConfigError(f"the key {key!r} of an agent is not known", hint=hint, code="E-AGENT-SETTINGS")
    if isinstance(found.get("tools"), str):
        found["tools"] = [found["tools"]]
    try:
        settings = msgspec.convert(found, AgentSettings)
    except msgspec.ValidationError as exc:
        hint = "an agent has at least a model, such as openai:gpt-5; docs/howto/agents.md lists the keys"
        raise ConfigError(
            "the settings of an agent are not valid", detail=str(exc), hint=hint, code="E-AGENT-SETTINGS"
        ) from None
    if not settings.model.strip():
        raise ConfigError("an agent has no model", hint="write model: openai:gpt-5", code="E-AGENT-SETTINGS")
    return settings


class ConfiguredAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent of a configuration, which the gateway offers as a tool."""

    settings: AgentSettings
    description: str = ""


def read_agent_entries(value: Any, expand: Callable[[str], str]) -> dict[str, ConfiguredAgent]:
    """Return the agents in the key `toolway.agents` of a configuration, by name. `expand` replaces variables.

    Raises `ConfigError` if an entry is not valid.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(
            "toolway.agents is not an object",
            hint='write "agents": {"triage": {"model": "openai:gpt-5", "tools": ["github.*"]}}',
            code="E-AGENT-SETTINGS",
        )
    found = {}
    for name, entry in value.items():
        if not _AGENT_NAME.fullmatch(name) or not isinstance(entry, Mapping):
            raise ConfigError(
                f"the agent {str(name)[:64]!r} cannot be used",
                detail="its name has other characters than letters, digits and _, or its entry is not an object",
                hint='write "agents": {"triage": {"model": "openai:gpt-5", "tools": ["github.*"]}}',
                code="E-AGENT-SETTINGS",
            )
        keys: Json = {_FILE_KEYS.get(str(key), str(key)): part for key, part in entry.items()}
        description = keys.pop("description", "")
        for key in ("model", "base_url"):
            if isinstance(keys.get(key), str):
                keys[key] = expand(keys[key])
        try:
            settings = read_agent_settings(keys)
        except ConfigError as exc:
            raise ConfigError(
                f"the agent {name} cannot be used: {exc.message}", detail=exc.detail, hint=exc.hint, code=exc.code
            ) from exc
        found[name] = ConfiguredAgent(settings=settings, description=str(description))
    return found


def matches_any(tool: str, patterns: Iterable[str]) -> bool:
    """Return True if the name of a tool matches a pattern. A pattern without a dot is the name of a server."""
    return any(
        fnmatch.fnmatchcase(tool, pattern if "." in pattern or "*" in pattern else f"{pattern}.*")
        for pattern in patterns
    )


def may_match(server: str, pattern: str) -> bool:
    """Return True if a pattern may match a tool of this server."""
    head = pattern.partition(".")[0]
    return matches_any(f"{server}.x", [head if "*" in head else f"{head}.*"])
