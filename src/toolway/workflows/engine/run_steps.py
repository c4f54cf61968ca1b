"""Steps of one workflow run, from a file or from Python code: plans which steps follow, and makes their calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from toolway.hub.call_policy import CallTerms
from toolway.workflows.definition import Definition
from toolway.workflows.journal import (
    Entry,
    RunMessage,
    RunRecord,
)
from toolway.workflows.planner import plan
from toolway.workflows.reader import expressions_of
from toolway.workflows.step_planner import CallAction, Decision, RunMemory


class RunSteps(Protocol):
    """Source of the steps of one run: a workflow file, or Python code."""

    async def plan(
        self,
        record: RunRecord,
        memory: RunMemory,
        messages: Sequence[RunMessage],
        *,
        live: frozenset[str],
        life: int,
        now: float,
        terms: Callable[[str], CallTerms | None],
    ) -> Decision:
        """Decide from the journal and the messages what the run does next, and return these actions."""
        ...

    async def call(self, action: CallAction, intent: Entry) -> Entry:
        """Make a step's call; return the entry with its outcome."""
        ...

    @property
    def is_running(self) -> bool:
        """Return True if Python code of the run is running that may request a new step at any moment."""
        ...

    @property
    def is_open(self) -> bool:
        """Return True if the run's Python code has not ended, so it may request a new step."""
        ...

    @property
    def has_news(self) -> bool:
        """Return True if Python code of the run has requested a step, or has ended, since `plan` was last called."""
        ...

    async def wait_for_step(self) -> None:
        """Wait until the Python code of the run requests a new step or ends."""
        ...

    async def close(self) -> None: ...


class FileSteps:
    """Source of the steps for a run whose workflow is a file (`RunSteps`)."""

    is_running = is_open = has_news = False

    def __init__(self, definition: Definition, call: Callable[[CallAction, Entry], Awaitable[Entry]]) -> None:
        self._definition = definition
        self._call = call
        self._expressions = expressions_of(definition)

    async def plan(
        self, record: RunRecord, memory: RunMemory, messages: Sequence[RunMessage], **arguments: Any
    ) -> Decision:
        arguments["expressions"] = self._expressions
        if self._expressions.has_macros:  # they wait for a child process
            return await asyncio.to_thread(plan, self._definition, record, memory, messages, **arguments)
        return plan(self._definition, record, memory, messages, **arguments)

    async def call(self, action: CallAction, intent: Entry) -> Entry:
        return await self._call(action, intent)

    async def wait_for_step(self) -> None:
        return

    async def close(self) -> None:
        self._expressions.close()
