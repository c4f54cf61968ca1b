"""A workflow's crash table: for each step, what happens if the process ends while the step's call runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from toolway.hub.call_policy import CallTerms
from toolway.types import Effect
from toolway.workflows.definition import AgentStep, ChildStep, Definition, ForeachStep, ToolStep, Verify, inner_blocks
from toolway.workflows.step_planner import honours_key, time_limit

_SOURCES = {"setting": "config", "annotation": "server's hint", "default": "nothing known"}


class CrashRow(NamedTuple):
    """A row of the crash table: what happens to a step if the process dies during its call."""

    step: str
    tool: str
    effect: str  # with its source
    after_crash: str
    advice: str  # "" if the step continues by itself


def crash_table(definition: Definition, terms: Callable[[str], CallTerms | None]) -> list[CrashRow]:
    """Return a workflow's crash table: one row for each step that calls a tool, an agent, or a workflow.

    The rows are in the order of the file, including the rows of inner workflows. `terms` returns a tool's call rules.
    """
    per_item = {
        inner.name
        for step in definition.walk()
        if isinstance(step, ForeachStep)
        for block in inner_blocks(step)
        for inner in block
    }
    rows = []
    for step in definition.walk():
        if isinstance(step, ToolStep):
            rows.append(_row(step, terms, step.name in per_item))
        elif isinstance(step, AgentStep):
            rows.append(_agent_row(step))
        elif isinstance(step, ChildStep):
            rows.append(CrashRow(step.name, f"workflow {step.workflow.name}", "", "the same run continues", ""))
            inner = crash_table(step.workflow, terms)
            rows += [row._replace(step=f"{step.name}/{row.step}") for row in inner]
    return rows


def _agent_row(step: AgentStep) -> CrashRow:
    """Return the crash-table row of an agent step.

    After a crash its run is found by its key and continues from its journal.
    """
    settings = step.settings
    text = "the same run continues: at most one answer is asked for again, no unsafe call is repeated"
    if settings.on_unknown == "ask":
        text += ", an unknown outcome asks you"
    advice = []
    if settings.approve == "none":
        advice.append("approve: none lets the model make unsafe calls without asking you")
    if settings.budget.usd is None and settings.budget.tokens is None:
        advice.append(f"add budget: 0.50usd; now the limit is {settings.budget.requests} requests")
    return CrashRow(step.name, f"agent {settings.model}", "", text, "; ".join(advice))


def _row(step: ToolStep, terms: Callable[[str], CallTerms | None], per_item: bool) -> CrashRow:
    known = terms(step.tool)
    effect, source = _effect(step, known)
    timeout = time_limit(step, known)
    shown = f"{effect} ({source})"
    if honours_key(step, known):
        return CrashRow(step.name, step.tool, shown, "repeated with the same key", "")
    if effect is not Effect.UNSAFE:
        return CrashRow(step.name, step.tool, shown, "repeated", "")
    if isinstance(step.on_unknown, Verify):
        is_local = known is not None and known.is_local
        return CrashRow(step.name, step.tool, shown, *_verified(step.on_unknown, timeout, is_local))
    text = _OTHERWISE[step.on_unknown]
    if per_item and step.on_unknown == "ask":
        text += ", once per item"
    if known is None:
        advice = "unknown tool: check its name, and that its server starts (toolway tools)"
        return CrashRow(step.name, step.tool, shown, text, advice)
    if step.key_honored:
        advice = "key: honored has no effect yet: set the server's idempotencyMetaKey, so it gets the key"
        return CrashRow(step.name, step.tool, shown, text, advice)
    advice = {
        "ask": "add on_unknown: {verify: …}, or key: honored if the server detects repeated keys",
        "retry": "the effect may happen twice",
        "fail": "",
    }[step.on_unknown]
    return CrashRow(step.name, step.tool, shown, text, advice)


def _verified(verify: Verify, timeout: float, is_local: bool) -> tuple[str, str]:
    """Return how a step with `verify` continues after a crash, and advice for its author or "".

    If `verify` has no `after`, a "not executed" only counts if the server's process has ended. A local server ends
    together with our process.
    """
    wait = timeout + verify.delay(timeout, has_ended=is_local)
    condition = "else" if is_local or verify.after is not None else "if it is not there,"
    text = f"checked with {verify.tool} after {wait:g} s, {condition} {_OTHERWISE[verify.otherwise]}"
    if verify.after is None:
        advice = (
            f"after a timeout, {_OTHERWISE[verify.otherwise]} if {verify.tool} does not show the call: "
            "add after: the longest time in which the server may still run it"
        )
    elif verify.after < timeout:
        advice = (
            f"after: {verify.after:g} s is shorter than the time limit of the call ({timeout:g} s), which is waited "
            "after a timeout"
        )
    else:
        advice = ""
    return text, advice


_OTHERWISE = {"ask": "asks you", "fail": "the run fails", "retry": "REPEATED"}


def _effect(step: ToolStep, known: CallTerms | None) -> tuple[Effect, str]:
    if honours_key(step, known):
        return Effect.IDEMPOTENT, "key honored"
    if step.effect is not None:
        return step.effect, "workflow file"
    if known is None:
        return Effect.UNSAFE, "tool not known"
    return known.effect, _SOURCES[known.effect_source]
