"""Summarizes a workflow for the user who decides about it: its schedule, its tools, and where it sends data."""

from __future__ import annotations

from collections.abc import Iterator

from toolway.config.agent_settings import AgentSettings
from toolway.config.approval.workflow_files import CapturedWorkflow
from toolway.errors import ToolwayError
from toolway.types import Json
from toolway.workflows.reader import read_captured
from toolway.workflows.schedule import Schedule


def summarize_workflow(workflow: CapturedWorkflow) -> Json:
    """Return the files, schedules, tools, models, and addresses of a workflow and its children, as JSON for display."""
    found: Json = {"name": workflow.name, "file": workflow.file, "files": list(workflow.contents)}
    try:
        definition = read_captured(workflow)
    except ToolwayError as exc:
        return {**found, "problem": f"{exc.message}: {exc.detail}" if exc.detail else exc.message}
    agents = [each for step in definition.agent_steps() for each in _with_inner(step.settings)]
    return {
        **found,
        "name": definition.name,
        # A child workflow runs with its parent, whatever its own schedule says.
        "schedules": [_format_schedule(definition.schedule)] if definition.schedule is not None else [],
        "tools": sorted(definition.tool_names()),
        "agents": [
            {
                "model": each.model,
                **({"base_url": each.base_url} if each.base_url is not None else {}),
                "tools": list(each.tools),
                "approve": each.approve,
            }
            for each in agents
        ],
    }


def _with_inner(settings: AgentSettings) -> Iterator[AgentSettings]:
    yield settings
    for inner in settings.agents.values():
        yield from _with_inner(inner.settings)


def _format_schedule(schedule: Schedule) -> str:
    if schedule.every is not None:
        return f"every {schedule.every:g} s"
    return f"cron {schedule.cron} ({schedule.timezone})"
