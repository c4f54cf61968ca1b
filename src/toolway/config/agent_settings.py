"""An agent's settings: model, tools, approvals, and budget. They are stored with each run, so it can continue.

They are not in `toolway.agents` because configurations and workflow files describe agents too.
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

#: Which calls a user must approve: calls of unsafe tools, all, none, or calls of tools that match these patterns.
ApprovalPolicy: TypeAlias = Literal["unsafe", "all", "none"] | list[str]


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one agent run. Reaching one fails the run, with its work so far in the transcript.

    Example:
        Budget(usd=0.50, calls=40, seconds=600)
    """

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None  # tool calls
    requests: int | None = DEFAULT_REQUESTS  # answers of the model
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str, requests: int | None = DEFAULT_REQUESTS) -> Budget:
        """Parse a budget such as `0.50usd,40calls,10m`.

        `requests` is the limit on model requests if the text has none. Raises `ConfigError` if a part is invalid.
        """
        values: dict[str, Any] = {"requests": requests}
        for part in filter(None, (each.strip().lower() for each in text.split(","))):
            found = _BUDGET_PART.fullmatch(part)
            if found is None:
                raise ConfigError(
                    f"{part!r} is not a valid budget limit",
                    hint="use limits such as 0.50usd,40calls,200000tokens,30requests,10m",
                    code="E-AGENT-BUDGET-TEXT",
                )
            number, unit = float(found[1]), found[2]
            if unit in _SECONDS:
                values["seconds"] = number * _SECONDS[unit]
            else:
                values[unit] = number if unit == "usd" else int(number)
        return cls(**values)

    @classmethod
    def from_usage(cls, usage: Mapping[str, Any]) -> Budget:
        """Return how much a run has used, from the `usage` in its result.

        This includes estimates for requests that were not counted.
        """
        names = ("input_tokens", "output_tokens", "uncounted_tokens")
        return cls(
            usd=(usage.get("usd") or 0.0) + (usage.get("uncounted_usd") or 0.0),
            tokens=sum(usage.get(name) or 0 for name in names),
            calls=usage.get("calls") or 0,
            requests=usage.get("requests") or 0,
        )

    def within(self, limit: Budget) -> Budget:
        """Return a budget that has the smaller limit of this budget and `limit` for each unit (USD, tokens, …)."""
        return self._combine(
            limit, lambda own, other: own if other is None else other if own is None else min(own, other)
        )

    def minus(self, used: Budget) -> Budget:
        """Return what is left of this budget after `used`, at least 0. Missing limits stay missing."""
        return self._combine(used, lambda own, other: None if own is None else max(0, own - (other or 0)))

    def plus(self, other: Budget) -> Budget:
        """Return the sum of two budgets that hold used amounts. A missing amount counts as 0."""
        return self._combine(other, lambda own, more: (own or 0) + (more or 0))

    @property
    def is_used_up(self) -> bool:
        """Return True if this remaining budget has a used-up limit: USD, tokens, requests, or seconds.

        Tool calls do not count, because an agent can still answer without them.
        """
        return any(value is not None and value <= 0 for value in (self.usd, self.tokens, self.requests, self.seconds))

    def _combine(self, other: Budget, function: Callable[[Any, Any], Any]) -> Budget:
        units = self.__struct_fields__
        return Budget(**{unit: function(getattr(self, unit), getattr(other, unit)) for unit in units})


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an agent run: model, tools, approvals, and budget. They are stored as the run's input."""

    model: str  # "openai:gpt-5", "anthropic:…", "google:…"
    tools: tuple[str, ...] = ("*",)  # patterns of `server.tool`; empty: no tools
    instructions: str = ""
    approve: ApprovalPolicy = "unsafe"
    on_unknown: Literal["tell", "ask"] = "tell"  # tell the model that a call may have run, or ask a user
    untrusted: tuple[str, ...] | Literal["none"] = ()  # more servers with untrusted content, besides those configured
    has_read: tuple[str, ...] = ()  # patterns of tools whose results may be in the prompt
    budget: Budget = Budget()
    base_url: str | None = None  # of an OpenAI-compatible endpoint
    temperature: float | None = None
    max_tokens: int | None = None  # of one answer
    output: Json | None = None  # JSON Schema of the output; None for text
    prices: dict[str, tuple[float, float]] = {}  # USD for a million input and output tokens, by model name
    agents: dict[str, ConfiguredAgent] = {}  # agents that this one may call as tools; they use its budget too

    def selects(self, tool: str) -> bool:
        """Return True if one of the patterns in the agent's setting `tools` matches this tool."""
        return matches_any(tool, self.tools)

    def all_tools(self) -> set[str]:
        """Return the patterns of the tools that this agent, and the agents it calls, may use."""
        return set(self.tools).union(*(each.settings.all_tools() for each in self.agents.values()))

    def needs_approval(self, tool: str, effect: Effect) -> bool:
        """Return True if a call to this tool needs approval."""
        if isinstance(self.approve, str):
            return self.approve == "all" or (self.approve == "unsafe" and effect is Effect.UNSAFE)
        return matches_any(tool, self.approve)


def read_agent_settings(value: Mapping[str, Any]) -> AgentSettings:
    """Return the agent settings in an object from a workflow file or a configuration.

    `budget` may be a string such as `0.50usd,40calls`. Raises `ConfigError` if a key is unknown or missing, or has a
    wrong value.
    """
    found = dict(value)
    if isinstance(found.get("budget"), str):
        found["budget"] = msgspec.to_builtins(Budget.parse(found["budget"]))
    if "agents" in found:
        found["agents"] = _read_inner_agents(found["agents"])
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
        raise ConfigError("an agent has no model", hint="set model: openai:gpt-5", code="E-AGENT-SETTINGS")
    return settings


class ConfiguredAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent with a description. It is a tool of the gateway, or of another agent."""

    settings: AgentSettings
    description: str = ""


def _read_inner_agents(value: Any) -> Json:
    """Return the settings and descriptions of the agents in an agent's key `agents`, by name.

    Raises `ConfigError` if one is invalid.
    """
    hint = 'use "agents": {"research": {"model": "openai:gpt-5", "tools": ["web.*"]}}'
    if not isinstance(value, Mapping) or not all(isinstance(each, Mapping) for each in value.values()):
        raise ConfigError("the agents of an agent are not an object", hint=hint, code="E-AGENT-SETTINGS")
    found: Json = {}
    for name, entry in value.items():
        if not _AGENT_NAME.fullmatch(str(name)):
            raise ConfigError(
                f"the name {str(name)[:64]!r} of an agent is not valid", hint=hint, code="E-AGENT-SETTINGS"
            )
        if "settings" in entry:  # as it is stored
            found[name] = entry
            continue
        keys = {key: part for key, part in entry.items() if key != "description"}
        settings = msgspec.to_builtins(read_agent_settings(keys))
        found[name] = {"settings": settings, "description": str(entry.get("description") or "")}
    return found


def read_agent_entries(value: Any, expand: Callable[[str], str]) -> dict[str, ConfiguredAgent]:
    """Return the agents in a configuration's `toolway.agents`, by name. `expand` replaces variables.

    Raises `ConfigError` if an entry is invalid.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(
            "toolway.agents is not an object",
            hint='use "agents": {"triage": {"model": "openai:gpt-5", "tools": ["github.*"]}}',
            code="E-AGENT-SETTINGS",
        )
    found: dict[str, ConfiguredAgent] = {}
    for name, entry in _called_first(value):
        if not _AGENT_NAME.fullmatch(name) or not isinstance(entry, Mapping):
            raise ConfigError(
                f"the agent {str(name)[:64]!r} is invalid",
                detail="its name may only have letters, digits, and _, and its entry must be an object",
                hint='use "agents": {"triage": {"model": "openai:gpt-5", "tools": ["github.*"]}}',
                code="E-AGENT-SETTINGS",
            )
        keys: Json = {_FILE_KEYS.get(str(key), str(key)): part for key, part in entry.items()}
        description = keys.pop("description", "")
        for key in ("model", "base_url"):
            if isinstance(keys.get(key), str):
                keys[key] = expand(keys[key])
        try:
            if isinstance(keys.get("agents"), list):
                keys["agents"] = {each: msgspec.to_builtins(found[each]) for each in keys["agents"]}
            settings = read_agent_settings(keys)
        except ConfigError as exc:
            raise ConfigError(
                f"the agent {name} cannot be used: {exc.message}", detail=exc.detail, hint=exc.hint, code=exc.code
            ) from exc
        found[name] = ConfiguredAgent(settings=settings, description=str(description))
    return {name: found[name] for name in value}


def _called_first(entries: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the agent entries in dependency order: each after the agents it calls (`agents`).

    Raises `ConfigError` if a called agent does not exist, or if an agent calls itself, directly or through other
    agents.
    """
    ordered: dict[str, Any] = {}

    def add(name: str, callers: tuple[str, ...]) -> None:
        if name in callers or name not in entries:
            problem = "calls itself" if name in callers else "does not exist"
            raise ConfigError(
                f"the agent {str(name)[:64]!r} {problem}",
                detail=f"called by {' → '.join(callers)}",
                hint='under "agents", name other agents from toolway.agents',
                code="E-AGENT-SETTINGS",
            )
        entry = entries[name]
        called = entry.get("agents") if isinstance(entry, Mapping) else None
        for each in called if isinstance(called, list) else ():
            add(str(each), (*callers, name))
        ordered[name] = entry

    for name in entries:
        add(name, ())
    return list(ordered.items())


def matches_any(tool: str, patterns: Iterable[str]) -> bool:
    """Return True if a tool's name matches one of the patterns.

    A pattern without a dot is the name of a server.
    """
    return any(
        fnmatch.fnmatchcase(tool, pattern if "." in pattern or "*" in pattern else f"{pattern}.*")
        for pattern in patterns
    )


def may_match(server: str, pattern: str) -> bool:
    """Return True if a pattern such as `github.*` may match one of this server's tools."""
    head = pattern.partition(".")[0]
    return matches_any(f"{server}.x", [head if "*" in head else f"{head}.*"])
