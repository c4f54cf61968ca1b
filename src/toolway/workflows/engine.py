"""Workflow engine: runs definitions durably over a hub.

`planner.py` decides, this module waits: it writes what the planner decided, makes the calls, and gives their outcomes
back to the planner. An unsafe call is sent only after its intent is on disk. A run that waits for a time or a person is
a row in the journal and nothing in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import jsonschema_rs
from msgspec.structs import replace

from toolway.errors import ConfigError, ToolwayError
from toolway.events import Event, RunAction, RunChanged, RunStepEnded
from toolway.hub.call_policy import CallTerms
from toolway.hub.hub import Hub
from toolway.hub.instrumentation import WorkflowTrace
from toolway.types import Effect, Json
from toolway.workflows.definition import Definition
from toolway.workflows.journal import (
    FINAL_STATES,
    MAX_ENTRIES,
    Entry,
    JournalError,
    NewerRun,
    RunChange,
    RunJournal,
    RunLost,
    RunMessage,
    RunRecord,
)
from toolway.workflows.planner import plan
from toolway.workflows.python_workflow import CodeRun, PythonWorkflow
from toolway.workflows.reader import expressions_of, read_definition, read_value
from toolway.workflows.schedule import SCHEDULE_KEY
from toolway.workflows.sqlite_journal import SqliteJournal
from toolway.workflows.step_call import RunAccess, call_step, error_body
from toolway.workflows.step_planner import CallAction, Decision, RunMemory, child_outcome, entry_for

MAX_ACTIVE_RUNS: Final = 200
POLL_INTERVAL_S: Final = 0.5  # for messages of other processes
ACTIVE_POLL_INTERVAL_S: Final = 5.0  # for a run that this process executes: it reports each change itself
SHORT_WAIT_S: Final = 2.0  # a run that is due sooner stays in memory
DRAIN_S: Final = 30.0  # time for calls under way when the engine is closed
JOURNAL_RETRY_S: Final = 1.0  # after a failed write
MAX_SCHEDULED_RUNS: Final = 10_000
CHILD_KEY: Final = "child:"  # of the key of a child run
CODE_RETRY_S: Final = 60.0  # for a run that this process cannot execute
EVENT_SERVER: Final = "workflows"  # server of the events about runs
_log = logging.getLogger(__name__)


class WorkflowError(ToolwayError):
    """Raised if a run cannot be started, answered or found, or if it ended without a result."""

    code = "E-WORKFLOW"


class Run:
    """Handle of a workflow run.

    Example:
        run = await workflows.start("refund.yaml", {"order": "A-17"}, key="refund-A-17")
        print(await run.result())
    """

    def __init__(self, engine: Workflows, id: str) -> None:
        self._engine = engine
        self.id = id

    async def status(self) -> RunRecord:
        """Return the stored record of the run, with its state."""
        return await self._engine.get(self.id)

    async def wait(self) -> RunRecord:
        """Wait until the run has ended or asks a person; return its state."""
        async for record in self._engine.watch(self.id):
            if record.state in FINAL_STATES or self._engine.is_asking(record):
                return record
        raise AssertionError("a watch ends with a final state")

    async def result(self) -> Any:
        """Wait until the run has ended; return its output.

        Raises:
            WorkflowError: The run failed, was cancelled or undone, or is stuck.
        """
        async for record in self._engine.watch(self.id):
            if record.state == "done":
                return record.output
            if record.state in FINAL_STATES:
                error = record.error or {}
                raise WorkflowError(
                    f"the run {record.id} is {record.state}",
                    detail=str(error.get("message", "")),
                    hint=f"toolway workflow show {record.id}",
                    code=str(error.get("code") or "E-WORKFLOW"),
                )
        raise AssertionError("a watch ends with a final state")


class Workflows:
    """Durable workflow runs over a hub.

    Args:
        hub: The hub whose tools the steps call.
        journal: File of the journal, or a journal.
        code: Python workflows whose runs may be in the journal. A workflow that is started here is added.
        clock: Wall clock in seconds since 1970.
        access: Rights of those who start runs. None allows every call.

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
    ) -> None:
        self._hub = hub
        self._access = access
        self._journal_source = journal
        self._journal: RunJournal | None = None
        self._clock = clock
        self._code = {each.name: each for each in code}
        self._active: dict[str, _ActiveRun] = {}
        self._definitions: dict[str, Definition] = {}
        self._wake = asyncio.Event()
        self._scheduler: asyncio.Task[None] | None = None
        self._watched: weakref.WeakValueDictionary[str, asyncio.Event] = weakref.WeakValueDictionary()  # by run
        self._closing = False
        self._hold: int | None = None  # the lock of the journal, held until the servers of the hub have ended

    @classmethod
    def for_reading(cls, journal: RunJournal) -> Self:
        """Return an engine that executes nothing: it reads an open journal and adds messages."""
        engine = cls(None, journal)  # type: ignore[arg-type] # no call is made
        engine._journal = journal
        return engine

    async def __aenter__(self) -> Self:
        source = self._journal_source
        if isinstance(source, str | os.PathLike):
            self._journal = await asyncio.to_thread(SqliteJournal, Path(source))
        else:
            self._journal = source
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
        """Stop taking runs, let calls under way end for `timeout` seconds, and close the journal.

        Unfinished runs go on later.
        """
        if self._scheduler is None:
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
        """Take no more runs and begin no more steps: other nodes, or the next process, go on with the runs."""
        self._closing = True
        self._wake.set()
        for run in self._active.values():
            run.wake.set()

    # -- runs

    async def start(
        self,
        workflow: str | os.PathLike[str] | Mapping[str, Any] | Definition | PythonWorkflow,
        inputs: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        variables: Mapping[str, Any] | None = None,
        caller: str = "",
    ) -> Run:
        """Start a run and return its handle, after the run is on disk.

        Args:
            workflow: A file, a dictionary, a definition, or a function with `@workflow`.
            inputs: Inputs of the run.
            key: The same workflow, caller and key always give the same run.
            variables: Additional names for expressions.
            caller: Name of the person or program that starts the run.

        Returns:
            The run; an earlier one if the key was used before.

        Raises:
            ConfigError: The definition is invalid.
            WorkflowError: The inputs do not match the schema of the workflow.
        """
        values = dict(inputs or {})
        if isinstance(workflow, PythonWorkflow):
            self._code[workflow.name] = workflow
            definition = workflow.definition
            _check_parameters(workflow, values)
        else:
            definition = read_definition(workflow)
            check_inputs(definition, values)
        self._definitions[definition.hash] = definition
        now = self._clock()
        record = RunRecord(
            id=f"{definition.name}-{secrets.token_hex(6)}",
            workflow=definition.name,
            definition=definition.hash,
            key=key,
            caller=caller,
            due=now,
            input=values,
            variables=dict(variables or {}),
            created=now,
        )
        created = await self._get_journal().create(record, definition.body)
        if created.id == record.id:
            self._emit(RunAction(EVENT_SERVER, record.id, "started", who=caller))
        self._wake.set()
        return Run(self, created.id)

    async def schedule(
        self, workflow: str | os.PathLike[str] | Mapping[str, Any] | Definition, *, caller: str = "schedule"
    ) -> Run:
        """Create the next run of a workflow that has a schedule; each run creates the one after it.

        A next run of another version of the workflow is cancelled. Call it once at each start of the program.

        Returns:
            The run, which waits for its time.

        Raises:
            ConfigError: The definition is invalid.
            WorkflowError: The workflow has no schedule, or the inputs in it do not match its schema.
        """
        definition = read_definition(workflow)
        if definition.schedule is None:
            raise WorkflowError(f"{definition.name} has no schedule", hint="write schedule: {every: 1h} in its file")
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
        """Cancel the next run of a scheduled workflow. Runs that have begun go on."""
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

    async def get(self, id: str) -> RunRecord:
        """Return the state of a run. Raises `WorkflowError` if there is none with this id."""
        try:
            return await self._get_journal().get(id)
        except KeyError:
            raise _no_run(id) from None

    async def load(self, id: str) -> tuple[RunRecord, Definition, list[Entry], list[RunMessage]]:
        """Return a run with its definition, journal entries and messages."""
        try:
            record, body, entries, messages = await self._get_journal().load(id)
        except KeyError:
            raise _no_run(id) from None
        return record, self._definition(record, body), entries, messages

    async def list_runs(self, state: str | None = None, limit: int = 50) -> list[RunRecord]:
        """Return the newest runs: all, or only those in one state."""
        return await self._get_journal().list_runs(state, limit)

    async def watch(self, id: str) -> AsyncIterator[RunRecord]:
        """Yield the state of a run at each change, until it has ended."""
        seen: RunRecord | None = None
        while True:
            changed = self._watched.setdefault(id, asyncio.Event())
            record = await self.get(id)
            if record == seen:
                await _wait_for_event(changed, ACTIVE_POLL_INTERVAL_S if id in self._active else POLL_INTERVAL_S)
                continue
            seen = record
            yield record
            if record.state in FINAL_STATES:
                return

    @property
    def active_runs(self) -> int:
        """Return the number of runs that this process executes now, without those that wait."""
        return len(self._active)

    def effect_of(self, tool: str) -> Effect:
        """Return the effect of a tool as the hub knows it now; UNSAFE if it does not know the tool."""
        terms = self._hub._core.call_terms(tool)
        return terms.effect if terms is not None else Effect.UNSAFE

    def is_asking(self, record: RunRecord) -> bool:
        """Return True if the run waits for a person, and no answer has been sent to it."""
        return record.state == "asks" and (record.due is None or record.due > self._clock())

    async def answer(self, id: str, path: str | None, body: Json, *, by: str = "", roles: tuple[str, ...] = ()) -> None:
        """Answer the open question of a run: an approval `{"yes": true}` or the data of a form `{"data": …}`.

        Raises `WorkflowError` if there is no such question, or if this person may not answer it.
        """
        question = await self._find_question(id, path, ("approve", "ask"))
        _check_person(question, by, roles)
        if question["kind"] == "ask" and question.get("form") is not None:
            _check_form(question["form"], body.get("data"))
        await self._send(id, RunMessage(kind="answer", path=question["path"], body=body, by=by, at=self._clock()))
        done = "answered" if question["kind"] == "ask" else "approved" if body.get("yes") is True else "denied"
        self._emit(RunAction(EVENT_SERVER, id, done, question["path"], by))

    async def settle(self, id: str, path: str | None, *, happened: bool, result: Any = None, by: str = "") -> None:
        """State if a call with an unknown outcome was executed; the run goes on from there."""
        question = await self._find_question(id, path, ("unknown",))
        _, _, entries, _ = await self.load(id)
        attempt = max(each.attempt for each in entries if each.path == question["path"])
        body = {"happened": happened, "result": result, "attempt": attempt}
        await self._send(id, RunMessage(kind="settle", path=question["path"], body=body, by=by, at=self._clock()))
        self._emit(RunAction(EVENT_SERVER, id, "settled", question["path"], by))

    async def resume(self, id: str, *, by: str = "") -> None:
        """Let a stuck run go on where it stopped. Finished steps are kept; no call is repeated that must not be."""
        record = await self.get(id)
        if record.state != "stuck":
            raise WorkflowError(f"the run {id} is {record.state}", hint="only a stuck run can be resumed")
        await self._send(id, RunMessage(kind="resume", body={}, by=by, at=self._clock()))
        self._emit(RunAction(EVENT_SERVER, id, "resumed", who=by))

    async def cancel(self, id: str, *, undo: bool = False, by: str = "") -> None:
        """Cancel a run: nothing new begins, a call under way ends. With `undo`, finished steps are undone."""
        record = await self.get(id)
        if record.state in FINAL_STATES:
            raise WorkflowError(f"the run {id} is {record.state}", hint="a run that has ended cannot be cancelled")
        await self._send(id, RunMessage(kind="cancel", body={"undo": undo}, by=by, at=self._clock()))
        self._emit(RunAction(EVENT_SERVER, id, "cancelled", who=by))
        _, _, entries, _ = await self.load(id)
        for entry in entries:
            if entry.kind == "child" and entry.state == "waiting":
                with contextlib.suppress(WorkflowError):  # it has ended
                    await self.cancel(entry.body["run"], undo=undo, by=by)

    async def _find_question(self, id: str, path: str | None, kinds: tuple[str, ...]) -> Json:
        record = await self.get(id)
        found = [each for each in record.asks if each["kind"] in kinds and path in (None, each["path"])]
        if len(found) != 1:
            names = ", ".join(each["path"] for each in record.asks) or "none"
            raise WorkflowError(
                f"the run {id} has {'more than one' if found else 'no'} such question",
                detail=f"open questions: {names}",
                hint=f"toolway workflow show {id}",
                code="E-WORKFLOW-ASKS",
            )
        return found[0]

    async def _send(self, id: str, message: RunMessage) -> None:
        await self._get_journal().send(id, message)
        if id in self._active:
            self._active[id].wake.set()
        self._wake.set()

    def _get_journal(self) -> RunJournal:
        if self._journal is None:
            raise WorkflowError("the workflow engine is not open", hint="use: async with Workflows(hub, file)")
        return self._journal

    def _definition(self, record: RunRecord, body: Json) -> Definition:
        known = self._definitions.get(record.definition)
        if known is None:
            if "python" in body:
                return Definition(name=record.workflow, steps=(), body=body, hash=record.definition)
            known = self._definitions[record.definition] = read_value(body, name=record.workflow)
        return known

    # -- the scheduler

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
            await _wait_for_event(self._wake, max(delay, 0.005))
            self._wake.clear()

    def _begin(self, record: RunRecord) -> None:
        active = self._active.get(record.id)
        if active is not None:  # a message made it due
            active.is_due_again = True
            active.is_taken_again |= record.life != active.life
            active.wake.set()
            return
        active = self._active[record.id] = _ActiveRun(record.id, record.asks)
        active.task = asyncio.create_task(self._drive(active))
        active.task.add_done_callback(lambda task: self._ended(active, record, task))

    def _ended(self, active: _ActiveRun, record: RunRecord, task: asyncio.Task[None]) -> None:
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

    # -- one run

    async def _drive(self, active: _ActiveRun) -> None:
        """Execute one run until it ends, must wait, or asks a person."""
        journal = self._get_journal()
        life = active.life = journal.life
        active.clear()
        try:
            record, definition, entries, messages = await self.load(active.id)
        except (NewerRun, ConfigError) as exc:  # it has parts that only a newer node knows
            await self._put_back(active, str(exc))
            return
        if record.state in FINAL_STATES:
            return
        if "python" in definition.body and record.workflow not in self._code:
            await self._put_back(active, f"give the Python workflow {record.workflow} to Workflows(code=[…])")
            return
        is_scheduled = (record.key or "").startswith(SCHEDULE_KEY) and definition.schedule is not None
        if is_scheduled and not any(each.kind == "cancel" for each in messages):
            await self._create_next(definition, max(self._clock(), record.created), record.caller)
        await self._prepare_tools(definition)
        memory = RunMemory(entries)
        run_trace = self._hub._core.start_run_trace(record.id, record.workflow)
        steps = self._steps_of(definition, record, run_trace)
        calls: dict[str, asyncio.Task[Entry]] = {}
        unwritten: list[Entry] = []  # outcomes of reads, until the next commit
        try:
            while True:
                decision = await steps.plan(
                    record,
                    memory,
                    messages,
                    live=frozenset(calls),
                    life=life,
                    now=self._clock(),
                    terms=self._hub._core.call_terms,
                )
                if self._closing and decision.calls:  # another process goes on with them
                    decision.calls.clear()
                    if not calls:
                        await self._write(active, [*unwritten, *decision.records], RunChange(state="ready", due=0.0))
                        return
                problem = self._access.find_problem(record.caller, "") if self._access and decision.calls else None
                if problem is not None:  # nothing more is called for this starter
                    decision.calls.clear()
                    if not calls:
                        stuck = RunChange(state="stuck", error=error_body(problem), ended=self._clock())
                        await self._write(active, [*unwritten, *decision.records], stuck)
                        record = _apply(record, stuck)
                        self._notify(record)
                        await self._tell_parent(record)
                        return
                if len(memory.entries) > MAX_ENTRIES:
                    raise WorkflowError("the run has too many steps", code="E-WORKFLOW-LIMIT")
                unwritten += decision.records
                now = self._clock()
                intents = [entry_for(action, life, now, journal.lease_s) for action in decision.calls]
                for intent in intents:
                    if intent.effect == Effect.UNSAFE:
                        memory.add(intent)
                        unwritten.append(intent)
                change = self._state_change(record, decision, bool(calls) or steps.is_running, now)
                if change is not None or any(each.effect != Effect.READ for each in unwritten):
                    await self._write(active, unwritten, change)
                    unwritten = []
                    if change is not None:
                        record = _apply(record, change)
                        self._notify(record)
                        if change.state in FINAL_STATES:
                            await self._tell_parent(record)
                            return
                        if change.state in ("waiting", "asks") and not change.keep:
                            return
                outcomes: list[Entry] = []
                if not calls and decision.is_one_unsafe_call and not steps.is_open:
                    # No task is needed: other runs went on while the intent was written.
                    outcomes.append(await steps.call(decision.calls[0], intents[0]))
                    decision.calls.clear()
                for action, intent in zip(decision.calls, intents, strict=False):
                    task = calls[action.path] = asyncio.create_task(steps.call(action, intent))
                    task.add_done_callback(active.wake.notify)
                if not outcomes:
                    if self._closing and not calls:
                        return
                    await self._wait(active, calls, decision, steps)
                    outcomes += [calls.pop(path).result() for path, task in list(calls.items()) if task.done()]
                for outcome in outcomes:
                    seconds = (outcome.ended or outcome.began) - outcome.began
                    self._emit(
                        RunStepEnded(
                            EVENT_SERVER,
                            record.id,
                            record.workflow,
                            outcome.path,
                            outcome.tool,
                            outcome.state,
                            seconds,
                        )
                    )
                    memory.add(outcome)
                    unwritten.append(outcome)
                if active.wake.is_set():
                    active.clear()
                    last = messages[-1].id if messages else 0
                    messages = [*messages, *await journal.messages(active.id, last)]
        finally:
            for task in calls.values():
                task.cancel()
            await asyncio.gather(*calls.values(), return_exceptions=True)
            await steps.close()
            if run_trace is not None:
                run_trace.end(record.state)

    async def _call(self, action: CallAction, intent: Entry, caller: str) -> Entry:
        """Make the call of a step. Raises `RunLost` if the run may belong to another process before it is sent."""
        journal = self._get_journal()
        if not journal.lease_s or action.effect is not Effect.UNSAFE:
            return await call_step(self._hub, action, intent, self._clock, access=self._access, caller=caller)

        def may_send() -> bool:
            return journal.holds(intent.life)

        outcome = await call_step(self._hub, action, intent, self._clock, may_send, access=self._access, caller=caller)
        if outcome.state == "not_executed" and not may_send():
            raise RunLost("this node lost its lease before a call was sent", detail=action.path)
        return outcome

    def _state_change(self, record: RunRecord, decision: Decision, busy: bool, now: float) -> RunChange | None:
        """Return the new state of the run if it changes: the end, a wait, a question, or undoing."""
        asks = [_as_json(each) for each in decision.questions]
        if decision.end is not None:
            end = decision.end
            return RunChange(state=end.state, output=end.output, error=end.error, ended=now)
        if busy or decision.calls:
            if decision.undoing and record.state != "undoing":
                return RunChange(state="undoing")
            return RunChange(state=record.state, asks=asks) if asks != record.asks else None
        state = "asks" if asks else "waiting"
        keep = self._is_due_soon(decision)
        return RunChange(state=state, due=decision.due, asks=asks, keep=keep)  # type: ignore[arg-type] # one of the two

    def _is_due_soon(self, decision: Decision) -> bool:
        return decision.due is not None and decision.due - self._clock() < SHORT_WAIT_S

    async def _write(self, active: _ActiveRun, entries: list[Entry], change: RunChange | None) -> None:
        """Write entries and the new state of a run. If the journal cannot be written, wait and try again.

        Until then nothing is sent. Raises `RunLost` if the lease under which the run was loaded has ended: another node
        may have continued the run since, even if this node has a new lease and has taken the run again.
        """
        journal = self._get_journal()
        while True:
            if not journal.holds(active.life):
                raise RunLost("the lease under which the run was taken has ended", detail=active.id)
            try:
                await journal.write(active.id, entries, change)
                return
            except JournalError as exc:
                if self._closing:
                    raise
                _log.error("%s", exc)
                await asyncio.sleep(JOURNAL_RETRY_S)

    async def _wait(
        self, active: _ActiveRun, calls: dict[str, asyncio.Task[Entry]], decision: Decision, steps: RunSteps
    ) -> None:
        """Wait for a call to end, a message, a new step of the code, or the time at which the run is due."""
        if steps.has_news:
            return
        timeout = max(0.0, decision.due - self._clock()) if decision.due is not None else None
        if self._closing and calls:
            await asyncio.wait(calls.values(), return_when=asyncio.FIRST_COMPLETED)
            return
        if not steps.is_open:
            if not any(task.done() for task in calls.values()):
                await active.wake.wait(timeout)
            return
        code = asyncio.create_task(steps.wait_for_step())
        code.add_done_callback(active.wake.notify)
        try:
            if not any(task.done() for task in calls.values()):
                await active.wake.wait(timeout)
        finally:
            code.cancel()

    def _steps_of(self, definition: Definition, record: RunRecord, run_trace: WorkflowTrace | None) -> RunSteps:
        async def call(action: CallAction, intent: Entry) -> Entry:
            if action.child is not None:
                return await self._call_child(record, action, intent)
            if run_trace is None:
                return await self._call(action, intent, record.caller)
            meta, end_span = run_trace.start_step(action.path, action.attempt)
            state = "unknown"  # if this task is cancelled
            try:
                traced = replace(action, meta={**(action.meta or {}), **meta})
                outcome = await self._call(traced, intent, record.caller)
                state = outcome.state
                return outcome
            finally:
                end_span(state)

        code = self._code.get(definition.name) if "python" in definition.body else None
        return _FileSteps(definition, call) if code is None else CodeRun(code, call, self._find_tool, self._clock)

    # -- child runs

    async def _call_child(self, parent: RunRecord, action: CallAction, intent: Entry) -> Entry:
        """Start a child run once and wait up to a short time for its end. Return the entry of the step.

        The entry of a child that takes longer has the state `waiting`.
        """
        try:
            run = await self.start(
                action.child,
                action.args,
                key=f"{CHILD_KEY}{parent.id}/{action.path}",
                caller=parent.caller,
                variables=parent.variables,
            )
        except JournalError as exc:
            _log.error("%s", exc)
            await asyncio.sleep(JOURNAL_RETRY_S)
            return replace(intent, kind="child", state="not_executed", ended=self._clock())
        except ToolwayError as exc:
            error = {"code": exc.code, "message": exc.message, "detail": exc.detail, "executed": "no"}
            return replace(intent, kind="child", state="failed", body=error, ended=self._clock())
        child = await run.status()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHORT_WAIT_S):
                async for child in self.watch(run.id):
                    if self.is_asking(child):
                        break
        return child_outcome(intent, _child_to_json(child), self._clock())

    async def _tell_parent(self, record: RunRecord) -> None:
        """Send the end of a child run to its parent. If this is lost, the parent reads the state of its child later."""
        if record.key is None or not record.key.startswith(CHILD_KEY):
            return
        parent, _, path = record.key.removeprefix(CHILD_KEY).partition("/")
        message = RunMessage(kind="child", path=path, body=_child_to_json(record), at=self._clock())
        with contextlib.suppress(KeyError, JournalError):
            await self._send(parent, message)

    async def _put_back(self, active: _ActiveRun, reason: str) -> None:
        """Mark a run as waiting that this process cannot execute, so that another process may take it."""
        _log.warning("the run %s waits for another process: %s", active.id, reason)
        due = self._clock() + CODE_RETRY_S
        await self._write(active, [], RunChange(state="waiting", due=due, asks=active.asks))

    async def _prepare_tools(self, definition: Definition) -> None:
        """Wait for the definitions of all tools of a workflow: without them every step counts as unsafe."""
        await asyncio.gather(*map(self._find_tool, sorted(definition.tool_names())))

    async def _find_tool(self, name: str) -> None:
        """Wait for the definition of a tool, if it is not known. A tool that does not exist fails when it is called."""
        if self._hub._core.call_terms(name) is None:
            with contextlib.suppress(ToolwayError):
                await self._hub.find_tool(name)

    def _notify(self, record: RunRecord) -> None:
        """Wake the tasks that watch a run, and emit an event with its new state."""
        self._wake_watchers(record.id)
        code = str((record.error or {}).get("code") or "")
        seconds, questions = max(0.0, self._clock() - record.created), len(record.asks)
        self._emit(
            RunChanged(EVENT_SERVER, record.id, record.workflow, record.state, seconds, questions, record.caller, code)
        )

    def _wake_watchers(self, id: str) -> None:
        changed = self._watched.pop(id, None)
        if changed is not None:
            changed.set()

    def _emit(self, event: Event) -> None:
        if self._hub is not None:  # an engine for reading has none
            self._hub._core.emit(event)


def _no_run(id: str) -> WorkflowError:
    return WorkflowError(f"there is no run {id}", hint="toolway workflow ls", code="E-WORKFLOW-RUN")


async def _wait_for_event(event: asyncio.Event, timeout: float) -> None:
    """Wait for an event, at most `timeout` seconds. Unlike `asyncio.wait_for` it never swallows a cancellation."""
    woken = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({woken}, timeout=timeout)
    finally:
        woken.cancel()


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
        """Make the call of a step; return the entry with its outcome."""
        ...

    @property
    def is_running(self) -> bool:
        """Return True if Python code of the run is running that may request a new step at any moment."""
        ...

    @property
    def is_open(self) -> bool:
        """Return True if the run has Python code that has not ended. It may request a new step later."""
        ...

    @property
    def has_news(self) -> bool:
        """Return True if Python code of the run has requested a step, or has ended, since `plan` was last called."""
        ...

    async def wait_for_step(self) -> None:
        """Wait until the Python code of the run requests a new step or ends."""
        ...

    async def close(self) -> None: ...


class _FileSteps:
    """Source of the steps of a run whose workflow is a file (`RunSteps`)."""

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


class _Signal:
    """Event for one waiting coroutine. Unlike `asyncio.Event` with a timeout it creates no task."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self.notify()

    def clear(self) -> None:
        self._is_set = False

    def notify(self, _: object = None) -> None:
        """Wake the coroutine that waits now, if there is one, without setting the signal."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout: float | None) -> None:
        """Wait until the signal is set or notified, at most `timeout` seconds."""
        if self._is_set:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout, self.notify) if timeout is not None else None
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()


class _ActiveRun:
    """A run that this process executes now: its task, its wake-up signal and its lease number."""

    def __init__(self, id: str, asks: list[Json]) -> None:
        self.id = id
        self.asks = asks  # when it was taken
        self.wake = _Signal()
        self.is_due_again = False  # a message has arrived, or its time
        self.is_taken_again = False  # under a new lease: it is loaded again once the old task has ended
        self.life = 0  # of the process when it loaded the run
        self.task: asyncio.Task[None] | None = None

    def clear(self) -> None:
        """Reset the wake-up signal. Read the messages of the run after this, so that none is missed."""
        self.wake.clear()
        self.is_due_again = False


def _child_to_json(record: RunRecord) -> Json:
    return {"run": record.id, "state": record.state, "output": record.output, "error": record.error}


def _apply(record: RunRecord, change: RunChange) -> RunRecord:
    from msgspec.structs import asdict

    values = asdict(change)
    del values["keep"]
    return replace(record, **values)


def _as_json(question: Any) -> Json:
    from msgspec import to_builtins

    found: Json = to_builtins(question)
    return found


def check_inputs(definition: Definition, values: Json) -> None:
    """Raise `WorkflowError` if the inputs of a run do not match the schema of its workflow."""
    if definition.inputs is None:
        return
    _check_form(
        definition.inputs,
        values,
        code="E-WORKFLOW-INPUT",
        subject=f"the input of {definition.name}",
        command="run FILE",
    )


def _check_parameters(workflow: PythonWorkflow, values: Json) -> None:
    try:
        workflow.bind(values)
    except TypeError as exc:
        raise WorkflowError(
            f"the inputs do not fit the parameters of {workflow.name}", detail=str(exc), code="E-WORKFLOW-INPUT"
        ) from None


def _check_form(
    schema: Json,
    value: Any,
    *,
    code: str = "E-WORKFLOW-ANSWER",
    subject: str = "the answer",
    command: str = "answer RUN",
) -> None:
    problems = list(jsonschema_rs.validator_for(schema).iter_errors(value))
    if problems:
        detail = "; ".join(str(each.message) for each in problems[:3])
        names = " ".join(f"{name}=…" for name in schema.get("required") or schema.get("properties") or ("name",))
        hint = f"toolway workflow {command} {names}"
        raise WorkflowError(f"{subject} does not match its schema", detail=detail[:500], hint=hint, code=code)


def may_answer(question: Json, by: str, roles: tuple[str, ...]) -> bool:
    """Return True if a person may answer this question of a run."""
    try:
        _check_person(question, by, roles)
    except WorkflowError:
        return False
    return True


def _check_person(question: Json, by: str, roles: tuple[str, ...]) -> None:
    who = question.get("who") or []
    if who and by not in who and not set(roles) & set(who):
        raise WorkflowError(
            f"{by or 'this person'} may not answer {question['path']}",
            detail=f"allowed: {', '.join(who)}",
            code="E-WORKFLOW-ASKS",
        )
    if question.get("not_by") is not None and by == question["not_by"]:
        raise WorkflowError(
            f"the starter of a run may not answer {question['path']}",
            hint="let a second person answer it",
            code="E-WORKFLOW-ASKS",
        )
