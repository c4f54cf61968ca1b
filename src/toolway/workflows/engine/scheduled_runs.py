"""Workflow schedules: the next run waits in the journal, and creates its successor when it starts."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from toolway.workflows.definition import Definition
from toolway.workflows.engine.checks import WorkflowError, check_inputs
from toolway.workflows.engine.stored_runs import Run, StoredRuns
from toolway.workflows.journal import (
    RunRecord,
)
from toolway.workflows.reader import read_definition
from toolway.workflows.schedule import SCHEDULE_KEY

MAX_SCHEDULED_RUNS: Final = 10_000


class ScheduledRuns(StoredRuns):
    """Extends `StoredRuns` with creating and cancelling the next runs of scheduled workflows."""

    async def schedule(
        self, workflow: str | os.PathLike[str] | Mapping[str, Any] | Definition, *, caller: str = "schedule"
    ) -> Run:
        """Create the next run of a workflow that has a schedule. Each run creates the following one when it begins.

        If the next run of another version of the workflow is waiting, it is cancelled. Call this method once at each
        start of the program.

        Returns:
            The run, which waits for its time.

        Raises:
            ConfigError: The definition is invalid.
            WorkflowError: The workflow has no schedule, or the inputs in it do not match its schema.
        """
        definition = read_definition(workflow)
        if definition.schedule is None:
            raise WorkflowError(f"{definition.name} has no schedule", hint="add schedule: {every: 1h} to its file")
        check_inputs(definition, definition.schedule.inputs)
        name, version = definition.name, definition.hash
        await self._cancel_next(lambda record: record.workflow == name and record.definition != version)
        return await self._create_next(definition, self._clock(), caller)

    async def set_schedules(self, workflows: Iterable[Definition]) -> None:
        """Schedule exactly these workflows: the next runs of all other workflows are cancelled."""
        scheduled = [each for each in workflows if each.schedule is not None]
        await self._cancel_next(lambda record: record.definition not in {each.hash for each in scheduled})
        for definition in scheduled:
            await self.schedule(definition)

    async def unschedule(self, name: str) -> None:
        """Cancel the next run of a scheduled workflow. Runs that have begun continue."""
        await self._cancel_next(lambda record: record.workflow == name)

    async def _cancel_next(self, condition: Callable[[RunRecord], bool]) -> None:
        for record in await self.list_runs("waiting", MAX_SCHEDULED_RUNS):
            is_next = (record.key or "").startswith(SCHEDULE_KEY) and record.created > self._clock()
            if is_next and condition(record):
                with contextlib.suppress(WorkflowError):  # it has ended
                    await self.cancel(record.id, by="the schedule")

    async def _create_next(self, definition: Definition, after: float, caller: str) -> Run:
        assert definition.schedule is not None
        time = definition.schedule.next_time(after)
        record = RunRecord(
            id=f"{definition.name}-{secrets.token_hex(6)}",
            workflow=definition.name,
            definition=definition.hash,
            key=f"{SCHEDULE_KEY}{definition.hash[:12]}/{time:.0f}",
            caller=caller,
            state="waiting",
            due=time,
            input=definition.schedule.inputs,
            created=time,
        )
        created = await self._get_journal().create(record, definition.body)
        self._wake.set()
        return Run(self, created.id)
