"""Runs a workflow in one call, for definitions in code: `WorkflowEngine(hub).execute(…)`.

Without a journal file the run lives in memory and ends with the process. `Workflows` has the whole interface.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from toolway.hub.hub import Hub
from toolway.types import Json
from toolway.workflows.engine import Workflows
from toolway.workflows.journal import Entry
from toolway.workflows.sqlite_journal import SqliteJournal

_STATUS = {"done": "completed", "asks": "waiting", "stuck": "failed", "damaged": "failed"}
_STEP_STATES = {"done": "completed", "begun": "running", "waiting": "running", "failed": "failed"}


class WorkflowEngine:
    """Executor of workflows over a hub.

    Example:
        engine = WorkflowEngine(hub)
        result = await engine.execute({"steps": [{"name": "a", "tool": "github.get_issue"}]}, {"input": {"n": 1}})
        print(result["status"], result["output"])
    """

    def __init__(self, hub: Hub, journal: str | os.PathLike[str] | None = None) -> None:
        self._hub = hub
        self._journal = journal

    async def execute(
        self, workflow: str | os.PathLike[str] | Mapping[str, Any], context: Mapping[str, Any] | None = None
    ) -> Json:
        """Run a workflow to completion and return its result.

        Args:
            workflow: A file or a dictionary.
            context: `input` and `variables` of the run, and other names for expressions such as `repo`.

        Returns:
            `executionId`, `status` (completed, failed, cancelled, waiting), `output`, `error`, `steps` (the state of
            each step) and `metadata` with times and counts. `waiting`: the run asks a user.

        Raises:
            ConfigError: The definition is invalid.
        """
        given = dict(context or {})
        inputs = given.pop("input", None) or {}
        variables = {**given, **(given.pop("variables", None) or {})}
        variables.pop("variables", None)
        journal = SqliteJournal(None) if self._journal is None else self._journal
        async with Workflows(self._hub, journal) as workflows:
            run = await workflows.start(workflow, inputs, variables=variables)
            record = await run.wait()
            _, definition, entries, _ = await workflows.load(run.id)
        ended = record.ended if record.ended is not None else record.created
        states = _step_states([step.name for step in definition.steps], entries, record.state == "done")
        result: Json = {
            "executionId": record.id,
            "status": _STATUS.get(record.state, record.state),
            "output": record.output,
            "steps": states,
            "metadata": {
                "startedAt": _iso(record.created),
                "completedAt": _iso(ended),
                "durationMs": round((ended - record.created) * 1000),
                "stepsCompleted": sum(state == "completed" for state in states.values()),
                "stepsTotal": len(states),
            },
        }
        if record.error is not None:
            result["error"] = record.error
        return result


def _step_states(names: list[str], entries: list[Entry], is_done: bool) -> dict[str, str]:
    """Return the state (pending, running, completed, failed or skipped) of each of these top-level steps, by name."""
    states: dict[str, str] = {}
    for name in names:
        last = [each for each in entries if each.path == name]
        inner = any(each.path.startswith((f"{name}/", f"{name}[")) for each in entries)
        if last:
            states[name] = _STEP_STATES.get(last[-1].state, "failed")
        elif inner:
            states[name] = "completed" if is_done else "running"
        else:
            states[name] = "skipped" if is_done else "pending"
    return states


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
