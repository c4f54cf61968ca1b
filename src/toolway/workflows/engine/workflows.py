"""Workflow engine: takes due runs from the journal and executes them over a hub.

`planner.py` decides what a run does next, `run_executor.py` executes one run. A run that waits for a time or a user
is a row in the journal and nothing in memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from toolway.hub.hub import Hub
from toolway.types import Effect
from toolway.workflows.engine.active_run import ActiveRun
from toolway.workflows.engine.run_clock import RunClock
from toolway.workflows.engine.run_executor import CODE_RETRY_S, JOURNAL_RETRY_S, RunExecutor
from toolway.workflows.engine.stored_runs import POLL_INTERVAL_S, wait_for_event
from toolway.workflows.journal import (
    JournalError,
    RunJournal,
    RunLost,
    RunRecord,
)
from toolway.workflows.python_workflow.decorator import PythonWorkflow
from toolway.workflows.sqlite_journal import SqliteJournal
from toolway.workflows.step_call import RunAccess

MAX_ACTIVE_RUNS: Final = 200
DRAIN_S: Final = 30.0  # time for calls in flight when the engine is closed
_log = logging.getLogger(__name__)


class Workflows(RunExecutor):
    """Durable workflow runs over a hub.

    Args:
        hub: The hub whose tools the steps call.
        journal: File of the journal, or a journal.
        code: Python workflows whose runs may be in the journal. A workflow that is started here is added.
        clock: Wall clock in seconds since 1970. If it is set back, runs do not wait longer.
        access: Rights of those who start runs. None allows every call.
        executes: False starts, shows and answers runs that another process executes.

    Example:
        async with Hub("mcp.json") as hub, Workflows(hub, "runs.db") as workflows:
            run = await workflows.start("refund.yaml", {"order": "A-17"})
            print(await run.result())
    """

    def __init__(
        self,
        hub: Hub,
        journal: str | os.PathLike[str] | RunJournal,
        *,
        code: Iterable[PythonWorkflow] = (),
        clock: Callable[[], float] = time.time,
        access: RunAccess | None = None,
        executes: bool = True,
    ) -> None:
        super().__init__(hub, RunClock(clock), access)
        self._journal_source = journal
        self._executes = executes
        self._code.update((each.name, each) for each in code)
        self._scheduler: asyncio.Task[None] | None = None
        self._hold: int | None = None  # the lock of the journal, held until the servers of the hub have ended

    @classmethod
    def for_reading(cls, journal: RunJournal) -> Self:
        """Return an engine that executes nothing: it only reads a journal and sends messages to runs."""
        engine = cls(None, journal)  # type: ignore[arg-type] # no call is made
        engine._journal = journal
        return engine

    async def __aenter__(self) -> Self:
        source = self._journal_source
        if isinstance(source, str | os.PathLike):
            self._journal = await asyncio.to_thread(SqliteJournal, Path(source), owner=self._executes)
        else:
            self._journal = source
        if not self._executes:
            return self
        self._journal.on_changed = self._wake.set
        if isinstance(self._journal, SqliteJournal) and self._journal.lock_fd is not None:
            self._hold = await self._hub._core.spawner.hold(self._journal.lock_fd)
        self._scheduler = asyncio.create_task(self._schedule())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self, timeout: float = DRAIN_S) -> None:
        """Stop executing runs: wait up to `timeout` seconds for running calls, cancel the rest, and close the journal.

        Runs that have not ended continue when the engine is opened again.
        """
        if self._scheduler is None:
            if not self._executes and self._journal is not None:
                await self._journal.close()
                self._journal = None
            return
        self.stop_taking()
        await self._scheduler
        self._scheduler = None
        tasks = [run.task for run in self._active.values() if run.task is not None]
        late: set[asyncio.Task[None]] = set()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        journal = self._get_journal()
        if late and isinstance(journal, SqliteJournal):
            journal.keeps_lock = True  # until the servers that may still execute these calls have ended
        await journal.close()
        if self._hold is not None and not late:
            self._hub._core.spawner.release(self._hold)

    def stop_taking(self) -> None:
        """Take no more runs from the journal and start no new steps.

        Another node, or the next process, continues the runs.
        """
        self._closing = True
        self._wake.set()
        for run in self._active.values():
            run.wake.set()

    @property
    def active_runs(self) -> int:
        """Return how many runs this process is executing, not counting waiting ones."""
        return len(self._active)

    def effect_of(self, tool: str) -> Effect:
        """Return the effect class of a tool as the hub knows it now; UNSAFE if the hub does not know the tool."""
        terms = self._hub._core.policies.terms(tool)
        return terms.effect if terms is not None else Effect.UNSAFE

    async def _schedule(self) -> None:
        """Take the runs that are due from the journal and execute them, until the engine is closed."""
        journal = self._get_journal()
        while not self._closing:
            delay = POLL_INTERVAL_S
            try:
                room = max(0, MAX_ACTIVE_RUNS - len(self._active))
                for record in await journal.take(self._clock(), room):
                    self._begin(record)
                if await journal.changed():
                    for run in self._active.values():
                        run.wake.set()
                due = await journal.next_due() if room else None  # without room, the end of a run wakes this loop
                if due is not None:
                    delay = min(delay, max(0.0, due - self._clock()))
            except JournalError as exc:
                _log.error("%s", exc)
                delay = JOURNAL_RETRY_S
            await wait_for_event(self._wake, max(delay, 0.005))
            self._wake.clear()

    def _begin(self, record: RunRecord) -> None:
        active = self._active.get(record.id)
        if active is not None:  # a message made it due
            active.is_due_again = True
            active.is_taken_again |= record.life != active.life
            active.wake.set()
            return
        active = self._active[record.id] = ActiveRun(record.id, record.asks)
        active.task = asyncio.create_task(self._drive(active))
        active.task.add_done_callback(lambda task: self._ended(active, record, task))

    def _ended(self, active: ActiveRun, record: RunRecord, task: asyncio.Task[None]) -> None:
        del self._active[record.id]
        self._wake_watchers(record.id)
        self._wake.set()
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, RunLost):
            _log.error("the run %s was interrupted", record.id, exc_info=error)
            delay = JOURNAL_RETRY_S if isinstance(error, JournalError) else CODE_RETRY_S
            asyncio.get_running_loop().call_later(delay, self._begin_again, record)
        elif (active.is_due_again or active.is_taken_again) and not self._closing:
            self._begin(record)  # it became due while it was put away

    def _begin_again(self, record: RunRecord) -> None:
        if not self._closing:
            self._begin(record)
