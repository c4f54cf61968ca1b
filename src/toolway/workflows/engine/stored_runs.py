"""Workflow runs in a journal: start, read, watch, answer and cancel them.

`Workflows` (`workflows.py`) executes them too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from toolway.events import Event, RunAction, RunChanged
from toolway.hub.hub import Hub
from toolway.types import Json
from toolway.workflows.definition import AGENT_WORKFLOW, AgentRuns, Definition
from toolway.workflows.engine.active_run import ActiveRun
from toolway.workflows.engine.checks import WorkflowError, check_form, check_inputs, check_parameters, check_user
from toolway.workflows.journal import (
    FINAL_STATES,
    RESUMABLE_STATES,
    Entry,
    RunDamaged,
    RunJournal,
    RunMessage,
    RunRecord,
)
from toolway.workflows.python_workflow.decorator import PythonWorkflow
from toolway.workflows.reader import read_definition, read_value

POLL_INTERVAL_S: Final = 0.5  # for messages of other processes
ACTIVE_POLL_INTERVAL_S: Final = 5.0  # for a run that this process executes: it reports each change itself
EVENT_SERVER: Final = "workflows"  # server of the events about runs


class Run:
    """Handle of a workflow run.

    Example:
        run = await workflows.start("refund.yaml", {"order": "A-17"}, key="refund-A-17")
        print(await run.result())
    """

    def __init__(self, runs: StoredRuns, id: str) -> None:
        self._runs = runs
        self.id = id

    async def status(self) -> RunRecord:
        """Return the stored record of the run, with its state."""
        return await self._runs.get(self.id)

    async def wait(self) -> RunRecord:
        """Wait until the run has ended or asks a user; return its state."""
        async for record in self._runs.watch(self.id):
            if record.state in FINAL_STATES or self._runs.is_asking(record):
                return record
        raise AssertionError("a watch ends with a final state")

    async def result(self) -> Any:
        """Wait until the run has ended; return its output.

        Raises:
            WorkflowError: The run failed, was cancelled or undone, or is stuck.
        """
        async for record in self._runs.watch(self.id):
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


class StoredRuns:
    """Workflow runs in a journal: methods that start, read, watch, answer and cancel them.

    `hub` may be None in a program that executes no runs. Then no events are emitted.
    """

    def __init__(self, hub: Hub, clock: Callable[[], float]) -> None:
        self._hub = hub
        self._clock = clock
        self.user_of: Callable[[str], str] = lambda caller: caller  # one id for all keys of a user
        self._journal: RunJournal | None = None
        self._code: dict[str, PythonWorkflow] = {}
        self._definitions: dict[str, Definition] = {}
        self._active: dict[str, ActiveRun] = {}  # runs that this process executes
        self._wake = asyncio.Event()  # a run may be due
        self._watched: weakref.WeakValueDictionary[str, asyncio.Event] = weakref.WeakValueDictionary()  # by run

    async def start(
        self,
        workflow: str | os.PathLike[str] | Mapping[str, Any] | Definition | PythonWorkflow | AgentRuns,
        inputs: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        variables: Mapping[str, Any] | None = None,
        caller: str = "",
    ) -> Run:
        """Start a run and return its handle, after the run is on disk.

        Args:
            workflow: A file, a dictionary, a definition, a function with `@workflow`, or `AgentRuns()`.
            inputs: Inputs of the run.
            key: The same workflow, caller and key always give the same run.
            variables: Additional names for expressions.
            caller: Name of the user or program that starts the run.

        Returns:
            The run; an earlier one if the key was used before.

        Raises:
            ConfigError: The definition is invalid.
            WorkflowError: The inputs do not match the schema of the workflow.
        """
        values = dict(inputs or {})
        if isinstance(workflow, AgentRuns):
            workflow = self._agent_workflow()
        if isinstance(workflow, PythonWorkflow):
            self._code[workflow.name] = workflow
            definition = workflow.definition
            check_parameters(workflow, values)
        else:
            definition = read_definition(workflow)
            check_inputs(definition, values)
            if definition.agent_steps():
                self._agent_workflow()
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

    def _agent_workflow(self) -> PythonWorkflow:
        """Return the Python workflow that executes agents.

        Raises `WorkflowError` if it was not passed to `Workflows`.
        """
        found = self._code.get(AGENT_WORKFLOW)
        if found is None:
            raise WorkflowError(
                "this program cannot run agent steps",
                detail="Workflows was not given the workflow of agent runs",
                hint="pip install 'toolway[agents]', and Workflows(…, code=[toolway.agents.agent_workflow(hub)])",
                code="E-WORKFLOW-AGENT",
            )
        return found

    async def get(self, id: str) -> RunRecord:
        """Return the stored record of a run, with its state. Raises `WorkflowError` if no run has this id."""
        try:
            return await self._get_journal().get(id)
        except KeyError:
            raise _no_run(id) from None

    async def load(self, id: str) -> tuple[RunRecord, Definition, list[Entry], list[RunMessage]]:
        """Return a run with its definition, journal entries and messages.

        Raises `WorkflowError` if the run does not exist.
        """
        try:
            record, body, entries, messages = await self._get_journal().load(id)
        except KeyError:
            raise _no_run(id) from None
        return record, self._definition(record, body), entries, messages

    async def list_runs(self, state: str | None = None, limit: int = 50) -> list[RunRecord]:
        """Return the newest runs: all, or only those in one state."""
        return await self._get_journal().list_runs(state, limit)

    async def read(self, id: str) -> tuple[RunRecord, list[Entry], list[RunMessage]]:
        """Return a run with entries and messages for display; a damaged one only has its record."""
        try:
            record, _, entries, messages = await self.load(id)
            return record, entries, messages
        except RunDamaged as exc:
            return replace(await self.get(id), state="damaged", error=exc.to_json()), [], []

    async def watch(self, id: str) -> AsyncIterator[RunRecord]:
        """Yield the stored record of a run at each change, until the run has ended."""
        seen: RunRecord | None = None
        while True:
            changed = self._watched.setdefault(id, asyncio.Event())
            record = await self.get(id)
            if record == seen:
                await wait_for_event(changed, ACTIVE_POLL_INTERVAL_S if id in self._active else POLL_INTERVAL_S)
                continue
            seen = record
            yield record
            if record.state in FINAL_STATES:
                return

    def is_asking(self, record: RunRecord) -> bool:
        """Return True if the run waits for a user's answer, and no answer has been sent to it."""
        return record.state == "asks" and (record.due is None or record.due > self._clock())

    async def answer(self, id: str, path: str | None, body: Json, *, by: str = "", roles: tuple[str, ...] = ()) -> None:
        """Answer the open question of a run: an approval `{"yes": true}` or the data of a form `{"data": …}`.

        Raises `WorkflowError` if the question does not exist, or if this user may not answer it.
        """
        question = await self._find_question(id, path, ("approve", "ask"))
        check_user(question, by, roles, self.user_of)
        if question["kind"] == "ask" and question.get("form") is not None:
            check_form(question["form"], body.get("data"))
        await self._send(id, RunMessage(kind="answer", path=question["path"], body=body, by=by, at=self._clock()))
        done = "answered" if question["kind"] == "ask" else "approved" if body.get("yes") is True else "denied"
        self._emit(RunAction(EVENT_SERVER, id, done, question["path"], by))

    async def settle(self, id: str, path: str | None, *, happened: bool, result: Any = None, by: str = "") -> None:
        """Record whether a call with an unknown outcome ran. The run continues accordingly.

        `happened` says whether the call ran, `result` is then the data of its step.
        """
        question = await self._find_question(id, path, ("unknown",))
        _, _, entries, _ = await self.load(id)
        attempt = max(each.attempt for each in entries if each.path == question["path"])
        body = {"happened": happened, "result": result, "attempt": attempt}
        await self._send(id, RunMessage(kind="settle", path=question["path"], body=body, by=by, at=self._clock()))
        self._emit(RunAction(EVENT_SERVER, id, "settled", question["path"], by))

    async def resume(self, id: str, *, by: str = "") -> None:
        """Let a stuck or damaged run continue where it stopped.

        Finished steps are kept, and only calls that may be repeated are repeated.
        """
        record = await self.get(id)
        if record.state not in RESUMABLE_STATES:
            raise WorkflowError(f"the run {id} is {record.state}", hint="you can only resume a stuck or damaged run")
        await self._send(id, RunMessage(kind="resume", body={}, by=by, at=self._clock()))
        self._emit(RunAction(EVENT_SERVER, id, "resumed", who=by))

    async def cancel(self, id: str, *, undo: bool = False, by: str = "") -> None:
        """Cancel a run and its child runs: no new step starts, running calls may finish.

        If `undo`, finished steps are undone.
        """
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
    return WorkflowError(f"run {id} does not exist", hint="toolway workflow ls", code="E-WORKFLOW-RUN")


async def wait_for_event(event: asyncio.Event, timeout: float) -> None:
    """Wait for an event, at most `timeout` seconds. Unlike `asyncio.wait_for` it never swallows a cancellation."""
    woken = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({woken}, timeout=timeout)
    finally:
        woken.cancel()
