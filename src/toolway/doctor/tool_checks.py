"""Checks of a started server: protocol version, tools, compatibility with model providers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, Final

from toolway.catalog.catalog import Catalog
from toolway.catalog.tool_access import ToolAccess, unmatched_entries
from toolway.config.schema import Server
from toolway.doctor.entry_checks import format_entry_keys
from toolway.doctor.lint import PROVIDERS, Finding, lint_tools
from toolway.doctor.report import Check
from toolway.doctor.start_checks import format_seconds
from toolway.doctor.trial_start import TrialStart
from toolway.search.tokens import estimate_tool_tokens

MAX_TOKEN_COST: Final = 10_000  # tokens: a twentieth of a common context window
_PROVIDER_TITLES: Final = {"openai": "OpenAI", "anthropic": "Anthropic", "gemini": "Gemini"}


def check_protocol(server: Server, trial: TrialStart) -> Check:
    """Check the MCP protocol version of a started server, or report why negotiation failed."""
    agreement = trial.agreement
    if agreement is None:
        failure = trial.failure
        if failure is None or failure.code not in ("E-ERA", "E-VERSION", "E-START-REJECTED", "E-ANSWER"):
            return Check("handshake", "skip", "not reached")
        if failure.code == "E-ERA":
            message = "the server supports only the legacy era, but its entry requires the modern era"
            return Check(
                "handshake",
                "fail",
                message,
                failure.reason,
                "allow both eras",
                format_entry_keys({"era": "auto"}),
                "E-ERA",
            )
        return Check("handshake", "fail", failure.reason, hint=failure.hint, code=failure.code)
    started_at = trial.fetched_at if trial.fetched_at is not None else trial.spawned_at or 0.0
    assert trial.agreed_at is not None
    took = max(0.0, trial.agreed_at - started_at)
    if agreement.era == "bare":
        return _describe_bare(server, took)
    text = f"{agreement.version}, in {format_seconds(took)}"
    if trial.exits_on_modern:
        text += "; it exits when a client requests 2026-07-28, as newer clients do"
    return Check("handshake", "ok", text)


def _describe_bare(server: Server, took: float) -> Check:
    """Return the check of a "bare" server, which knows neither `initialize` nor `server/discover`.

    Such a server works; the check advises how to add one of these methods.
    """
    text = f"none (era bare): the server answers tools/list without initialize, in {format_seconds(took)}"
    hint = "it works, without progress, cancellation, prompts and resources; an MCP SDK adds them to the server"
    if server.era == "bare":
        return Check("handshake", "ok", text, hint=hint)
    return Check(
        "handshake",
        "ok",
        text,
        hint=f"{hint}. To skip the search for a handshake:",
        copy=format_entry_keys({"era": "bare"}),
    )


def check_tools(name: str, server: Server, trial: TrialStart) -> Iterator[Check]:
    """Check the tool list of a started server: denied and dropped tools, schemas, names, token cost."""
    if trial.listed_at is None:
        if trial.agreement is not None and trial.failure is not None:
            message = f"the server lists no tools: {trial.failure.reason}"
            yield Check("tools", "fail", message, hint=trial.failure.hint, code=trial.failure.code)
        else:
            yield Check("tools", "skip", "not reached")
        return
    catalog = _build_catalog(name, server, trial)
    valid = [tool.raw for tool in catalog.tools(name)]
    assert trial.agreed_at is not None
    count = f"{len(valid)} tool{'' if len(valid) == 1 else 's'}, in {format_seconds(trial.listed_at - trial.agreed_at)}"
    denied = catalog.count_denied(name)
    yield Check("tools", "ok", f"{count}; {denied} denied by its allow and deny lists" if denied else count)
    yield from _check_tool_lists(name, server, [item.name for item in catalog.received_items("tools", name)])
    for problem in catalog.problems(name):
        hint = "report it to the server's author; the other tools are not affected"
        yield Check("tools", "warn", problem, hint=hint, code="E-LINT-SCHEMA")
    yield from _check_lint(name, valid)


def measure_tools(name: str, server: Server, trial: TrialStart) -> tuple[int, int]:
    """Return the number of tools of a started server, without denied ones, and their estimated tokens."""
    tools = _build_catalog(name, server, trial).tools(name)
    return len(tools), estimate_tool_tokens(tools)


def _build_catalog(name: str, server: Server, trial: TrialStart) -> Catalog:
    catalog = Catalog()
    catalog.add_server(name, ToolAccess.from_server(name, server))
    catalog.replace(name, "tools", list(trial.tools), list(trial.list_problems))
    return catalog


def _check_tool_lists(name: str, server: Server, tools: Sequence[str]) -> Iterator[Check]:
    """Report allow and deny list entries that match no tool: a misspelled name denies nothing."""
    for key, entries in (("tools.allow", server.allowed_tools), ("tools.deny", server.denied_tools)):
        for entry in unmatched_entries(name, entries or (), tools):
            close = get_close_matches(entry, tools, n=1)
            hint = f"did you mean {close[0]}?" if close else "fix or remove it"
            yield Check("tools", "warn", f"{key} has {entry!r}, which matches no tool", hint=hint, code="E-CONFIG-KEY")


def _check_lint(name: str, items: Sequence[Any]) -> Iterator[Check]:
    if not items:
        return
    found = lint_tools(name, items)
    schemas = [finding for finding in found.findings if finding.code == "E-LINT-SCHEMA"]
    outputs = [finding for finding in schemas if not finding.providers]  # no model provider gets them
    schemas = [finding for finding in schemas if finding.providers]
    name_findings = [finding for finding in found.findings if finding.code != "E-LINT-SCHEMA"]
    if outputs:
        lines = "\n".join(_format_finding(finding) for finding in outputs[1:6])
        first = outputs[0]
        yield Check("outputs", "warn", _format_finding(first), lines, first.hint, code=first.code)
    yield _check_schemas(schemas) if schemas else Check("schemas", "ok", "fit OpenAI, Anthropic and Gemini")
    for finding in name_findings[:1]:
        more = f" (and {len(name_findings) - 1} more)" if len(name_findings) > 1 else ""
        yield Check("names", "warn", finding.message + more, hint=finding.hint, code=finding.code)
    cost = found.cost
    text = f"about {cost.openai:,} (OpenAI), {cost.anthropic:,} (Anthropic), {cost.gemini:,} (Gemini)"
    if cost.highest > MAX_TOKEN_COST:
        hint = "let clients search (/mcp/search), or serve only the tools they need as a toolset: `toolway.toolsets`"
        yield Check("tokens", "warn", f"the tools cost {text} in every request", hint=hint, code="E-LINT-COST")
    else:
        yield Check("tokens", "ok", text)


def _check_schemas(found: Sequence[Finding]) -> Check:
    """Return one check for all schema findings, led by the one most providers reject."""
    ordered = sorted(found, key=lambda finding: -len(finding.providers))
    first = ordered[0]
    rejecters = " and ".join(_PROVIDER_TITLES[provider] for provider in first.providers)
    rejecters = "every model provider" if len(first.providers) == len(PROVIDERS) else rejecters
    verb = "rejects" if len(first.providers) in (1, len(PROVIDERS)) else "reject"
    location = f" at {first.where}" if first.where else ""
    lines = [_format_finding(finding) for finding in ordered[1:6]]
    if len(ordered) > 6:
        lines.append(f"and {len(ordered) - 6} more: toolway doctor --tools shows all")
    return Check(
        "schemas",
        "fail" if len(first.providers) == len(PROVIDERS) else "warn",
        f"{rejecters} {verb} the tool {first.tool}: {first.message}{location}",
        "\n".join(lines),
        f"in the server's source: {first.hint}",
        code=first.code,
    )


def _format_finding(finding: Finding) -> str:
    location = f" at {finding.where}" if finding.where else ""
    rejecters = f" ({', '.join(_PROVIDER_TITLES[p] for p in finding.providers)})" if finding.providers else ""
    return f"{finding.tool}: {finding.message}{location}{rejecters}"
