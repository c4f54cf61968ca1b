"""Workflow files on a Temporal server, for companies that run one (extra `temporal`).

The planner is the same as for Toolway's own journal (`planner.py`): it runs inside a Temporal workflow, and Temporal's
history is the journal. A step is an activity. An unsafe step has one attempt, and its activity calls nothing if the
server delivers it a second time. If a worker dies in an unsafe step, its activity has no result: the outcome is
unknown, and the step is verified, a user is asked, or the step fails, as its definition says. Temporal by itself
would repeat it.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import secrets
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from msgspec.structs import replace
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import RetryPolicy, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ChildWorkflowError, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeout
from temporalio.exceptions import WorkflowAlreadyStartedError as _AlreadyStarted
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from toolway.hub.call_policy import CallTerms
from toolway.hub.hub import Hub
from toolway.types import Effect, Json
from toolway.workflows.definition import AgentRuns, Definition
from toolway.workflows.engine import Run, WorkflowError, Workflows, check_inputs
from toolway.workflows.journal import FINAL_STATES, Entry, RunMessage, RunRecord
from toolway.workflows.planner import plan
from toolway.workflows.reader import expressions_of, read_definition, read_value
from toolway.workflows.step_call import call_step
from toolway.workflows.step_planner import CallAction, RunMemory, child_outcome, entry_for

TASK_QUEUE: Final = "toolway"
HEARTBEAT_TIMEOUT_S: Final = 10.0  # after which a worker that sends none counts as dead
HEARTBEAT_INTERVAL_S: Final = 3.0
READ_ATTEMPTS: Final = 5  # of Temporal, for a step that may be repeated
QUEUE_TIMEOUT_S: Final = 24 * 3600.0  # a step that no worker takes did not run
MARGIN_S: Final = 5.0  # for an activity, on top of the call's timeout
WATCH_INTERVAL_S: Final = 0.5


class RunStart(msgspec.Struct, frozen=True, kw_only=True):
    """Input of the Temporal workflow that executes one run: definition, stored run, entries and messages."""

    definition: Json
    name: str
    record: RunRecord
    entries: list[Entry] = []
    messages: list[RunMessage] = []


class _Activities:
    """Temporal activities of a worker process: they read tool rules and make the calls of steps through its hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    @activity.defn(name="toolway_terms")
    async def read_terms(self, names: list[str]) -> Json:
        """Return the call rules of these tools, by name.

        Temporal stores them in its history, so a replay uses the same ones.
        """
        await asyncio.gather(*(self._hub.find_tool(name) for name in names), return_exceptions=True)
        found = {name: self._hub._core.policies.terms(name) for name in names}
        return {name: to_json(terms) for name, terms in found.items() if terms is not None}

    @activity.defn(name="toolway_call")
    async def call(self, value: Json) -> Json:
        """Make the call of a step in this worker. Return the journal entry with its outcome, as JSON."""
        action = msgspec.convert(value["action"], CallAction)
        intent = msgspec.convert(value["intent"], Entry)
        if action.effect is Effect.UNSAFE and activity.info().attempt > 1:
            error = {"code": "E-WORKFLOW-UNKNOWN", "message": "the step was delivered twice", "executed": "unknown"}
            return to_json(replace(intent, state="unknown", body=error, ended=intent.began))
        beat = asyncio.create_task(_send_heartbeats())
        try:
            return to_json(await call_step(self._hub, action, intent, _wall_clock))
        finally:
            beat.cancel()


async def _send_heartbeats() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(HEARTBEAT_INTERVAL_S)


def _wall_clock() -> float:
    return datetime.datetime.now(datetime.UTC).timestamp()


@workflow.defn(name="toolway")
class TemporalRun:
    """One run of a workflow file, as a Temporal workflow."""

    def __init__(self) -> None:
        self._messages: list[RunMessage] = []
        self._record: RunRecord | None = None
        self._definition: Json = {}
        self._memory = RunMemory(())
        self._changed = False

    @workflow.signal(name="message")
    def receive(self, message: Json) -> None:
        """Receive a message to the run: an answer, the settlement of an unknown outcome, or a cancellation."""
        found = msgspec.convert(message, RunMessage)
        self._messages.append(replace(found, id=len(self._messages) + 1, at=workflow.time()))
        self._changed = True

    @workflow.query(name="state")
    def describe(self) -> Json:
        """Return the run with its definition, journal entries and messages, as JSON."""
        entries = [each for attempts in self._memory.entries.values() for each in attempts]
        return {
            "record": to_json(self._record),
            "definition": self._definition,
            "entries": to_json(entries),
            "messages": to_json(self._messages),
        }

    @workflow.run
    async def run(self, value: Json) -> Json:
        start = msgspec.convert(value, RunStart)
        definition = read_value(start.definition, name=start.name)
        self._definition = start.definition
        self._record = start.record if start.entries else replace(start.record, created=workflow.time())
        self._memory = RunMemory(start.entries)
        self._messages = [*start.messages, *self._messages]
        terms = await self._read_terms(definition)
        expressions = expressions_of(definition)
        calls: dict[str, asyncio.Task[Entry]] = {}
        try:
            while True:
                self._changed = False
                decision = plan(
                    definition,
                    self._record,
                    self._memory,
                    self._messages,
                    live=frozenset(calls),
                    life=1,
                    now=workflow.time(),
                    terms=terms.get,
                    expressions=expressions,
                )
                if decision.end is not None:
                    end = decision.end
                    self._record = replace(
                        self._record,
                        state=end.state,
                        asks=[],
                        output=end.output,
                        error=end.error,
                        ended=workflow.time(),
                    )
                    return to_json(self._record)
                state: Any = "asks" if decision.questions and not calls else "running" if calls else "waiting"
                self._record = replace(self._record, state=state, asks=to_json(decision.questions))
                for action in decision.calls:
                    calls[action.path] = asyncio.create_task(self._call(action))
                if not calls and not decision.calls and workflow.info().is_continue_as_new_suggested():
                    workflow.continue_as_new(self._carry_on(start))
                await self._wait(calls, decision.due)
                for path, task in list(calls.items()):
                    if task.done():
                        del calls[path]
                        self._memory.add(task.result())
        finally:
            expressions.close()

    def _carry_on(self, start: RunStart) -> Json:
        """Return the input for a new Temporal execution, with an empty history, that continues the run."""
        assert self._record is not None
        entries = [each for attempts in self._memory.entries.values() for each in attempts]
        return to_json(
            RunStart(
                definition=start.definition,
                name=start.name,
                record=self._record,
                entries=entries,
                messages=self._messages,
            )
        )

    async def _wait(self, calls: dict[str, asyncio.Task[Entry]], due: float | None) -> None:
        timeout = max(0.0, due - workflow.time()) if due is not None else None
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._changed or any(task.done() for task in calls.values()), timeout=timeout
            )

    async def _read_terms(self, definition: Definition) -> dict[str, CallTerms]:
        names = sorted(definition.tool_names())
        found: Json = await workflow.execute_activity(
            "toolway_terms", names, start_to_close_timeout=datetime.timedelta(seconds=60)
        )
        return msgspec.convert(found, dict[str, CallTerms])

    async def _call(self, action: CallAction) -> Entry:
        """Make the call of a step as a Temporal activity. If the activity has no result, the outcome is unknown."""
        intent = entry_for(action, 1, workflow.time())
        if action.child is not None:
            return await self._call_child(action, intent)
        is_unsafe = action.effect is Effect.UNSAFE
        try:
            found: Json = await workflow.execute_activity(
                "toolway_call",
                {"action": to_json(action), "intent": to_json(intent)},
                start_to_close_timeout=datetime.timedelta(seconds=action.settles_after + MARGIN_S),
                schedule_to_start_timeout=datetime.timedelta(seconds=QUEUE_TIMEOUT_S),
                heartbeat_timeout=datetime.timedelta(seconds=HEARTBEAT_TIMEOUT_S),
                retry_policy=RetryPolicy(maximum_attempts=1 if is_unsafe else READ_ATTEMPTS),
            )
        except ActivityError as exc:
            cause = exc.cause
            never_started = isinstance(cause, ActivityTimeout) and cause.type == TimeoutType.SCHEDULE_TO_START
            error = {
                "code": "E-WORKFLOW-UNKNOWN",
                "message": f"{action.tool} went to a worker, and no result came back: {cause or exc}"[:500],
                "executed": "no" if never_started else "unknown",
            }
            state: Any = "not_executed" if never_started else "unknown"
            return replace(intent, state=state, body=error, ended=workflow.time())
        return msgspec.convert(found, Entry)

    async def _call_child(self, action: CallAction, intent: Entry) -> Entry:
        assert self._record is not None
        if isinstance(action.child, AgentRuns):
            error = {"code": "E-WORKFLOW-AGENT", "message": "agent steps cannot run on a Temporal server"}
            hint = "run the workflow with Toolway's own journal: --journal runs.db"
            return replace(intent, kind="child", state="failed", body={**error, "hint": hint, "executed": "no"})
        child: Definition = action.child
        id = f"{workflow.info().workflow_id}/{action.path}"
        record = replace(self._record, id=id, workflow=child.name, definition=child.hash, input=action.args, asks=[])
        start = RunStart(definition=child.body, name=child.name, record=replace(record, state="ready"))
        try:
            ended: Json = await workflow.execute_child_workflow("toolway", to_json(start), id=id)
        except ChildWorkflowError as exc:
            ended = {"state": "failed", "output": None, "error": {"message": str(exc.cause or exc)[:500]}}
        return child_outcome(intent, {**ended, "run": id}, workflow.time())


class TemporalWorkflows:
    """Durable workflow runs on a Temporal server, with the methods of `Workflows`.

    Args:
        hub: The hub whose tools the steps call. Without it this process executes no step.
        client: A connected `temporalio.client.Client`.
        task_queue: Queue of the workers that execute the runs.

    Example:
        client = await Client.connect("localhost:7233")
        async with Hub("mcp.json") as hub, TemporalWorkflows(hub, client) as workflows:
            run = await workflows.start("refund.yaml", {"order": "A-17"}, key="A-17")
            print(await run.result())
    """

    def __init__(self, hub: Hub | None, client: Client, *, task_queue: str = TASK_QUEUE) -> None:
        self._client = client
        self._task_queue = task_queue
        activities = _Activities(hub) if hub is not None else None
        self._worker = Worker(
            client,
            task_queue=task_queue,
            workflows=[TemporalRun],
            activities=[activities.read_terms, activities.call] if activities is not None else [],
            workflow_runner=UnsandboxedWorkflowRunner(),  # the planner is pure; expressions need their runtime
        )
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._worker.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._worker.shutdown()
        if self._running is not None:
            await self._running

    async def start(
        self,
        workflow: Any,
        inputs: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        variables: Mapping[str, Any] | None = None,
        caller: str = "",
    ) -> Run:
        """Start a run; the same workflow and key give the same run. Raises as `Workflows.start`."""
        definition = read_definition(workflow)
        values = dict(inputs or {})
        check_inputs(definition, values)
        id = f"{definition.name}-{key if key is not None else secrets.token_hex(6)}"
        record = RunRecord(
            id=id,
            workflow=definition.name,
            definition=definition.hash,
            key=key,
            caller=caller,
            input=values,
            variables=dict(variables or {}),
        )
        start = RunStart(definition=definition.body, name=definition.name, record=record)
        with contextlib.suppress(_AlreadyStarted):
            await self._client.start_workflow(
                "toolway",
                to_json(start),
                id=id,
                task_queue=self._task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            )
        return Run(self, id)  # type: ignore[arg-type] # it has the methods that a handle uses

    async def get(self, id: str) -> RunRecord:
        """Return the stored record of a run, with its state. Raises `WorkflowError` if no run has this id."""
        return (await self.load(id))[0]

    async def load(self, id: str) -> tuple[RunRecord, Definition, list[Entry], list[RunMessage]]:
        """Return a run with its definition, entries and messages."""
        try:
            found: Json = await self._handle(id).query("state")
        except RPCError as exc:
            if exc.status is RPCStatusCode.NOT_FOUND:
                raise WorkflowError(
                    f"run {id} does not exist", hint="toolway workflow ls", code="E-WORKFLOW-RUN"
                ) from None
            raise
        record = msgspec.convert(found["record"], RunRecord)
        definition = read_value(found["definition"], name=record.workflow)
        entries = msgspec.convert(found["entries"], list[Entry])
        return record, definition, entries, msgspec.convert(found["messages"], list[RunMessage])

    async def read(self, id: str) -> tuple[RunRecord, list[Entry], list[RunMessage]]:
        """Return a run with its entries and messages for display."""
        record, _, entries, messages = await self.load(id)
        return record, entries, messages

    async def list_runs(self, state: str | None = None, limit: int = 50) -> list[RunRecord]:
        """Return the newest runs, all or those in one state."""
        found: list[RunRecord] = []
        async for each in self._client.list_workflows("WorkflowType = 'toolway'", page_size=min(limit, 200)):
            record = await self.get(each.id)
            if state is None or record.state == state:
                found.append(record)
            if len(found) >= limit:
                break
        return found

    async def watch(self, id: str) -> AsyncIterator[RunRecord]:
        """Yield the stored record of a run at each change, until the run has ended."""
        seen: RunRecord | None = None
        ended = asyncio.create_task(self._wait_for_end(id))
        try:
            while seen is None or seen.state not in FINAL_STATES:
                record = await self.get(id)
                if record != seen:
                    seen = record
                    yield record
                    continue
                await asyncio.wait({ended}, timeout=WATCH_INTERVAL_S)
        finally:
            ended.cancel()

    def is_asking(self, record: RunRecord) -> bool:
        """Return True if the run waits for a user's answer."""
        return record.state == "asks"

    async def answer(self, id: str, path: str | None, body: Json, *, by: str = "", roles: tuple[str, ...] = ()) -> None:
        """Answer the open question of a run. Raises as `Workflows.answer`."""
        await _Messages(self).answer(id, path, body, by=by, roles=roles)

    async def settle(self, id: str, path: str | None, *, happened: bool, result: Any = None, by: str = "") -> None:
        """State whether a call of a run with an unknown outcome ran.

        The run continues accordingly.
        """
        await _Messages(self).settle(id, path, happened=happened, result=result, by=by)

    async def cancel(self, id: str, *, undo: bool = False, by: str = "") -> None:
        """Cancel a run: no new step begins, running calls may end."""
        await self.send(id, RunMessage(kind="cancel", body={"undo": undo}, by=by))

    async def send(self, id: str, message: RunMessage) -> None:
        """Send a message, such as an answer or a cancellation, to a run."""
        await self._handle(id).signal("message", to_json(message))

    async def _wait_for_end(self, id: str) -> None:
        with contextlib.suppress(WorkflowFailureError, RPCError):
            await self._handle(id).result()

    def _handle(self, id: str) -> WorkflowHandle[Any, Any]:
        return self._client.get_workflow_handle(id)


class _Messages(Workflows):
    """Adapter that checks and sends answers to runs on a Temporal server, by the rules of `Workflows`."""

    def __init__(self, runs: TemporalWorkflows) -> None:
        super().__init__(None, "")  # type: ignore[arg-type] # no call is made
        self._runs = runs

    async def get(self, id: str) -> RunRecord:
        return await self._runs.get(id)

    async def load(self, id: str) -> tuple[RunRecord, Definition, list[Entry], list[RunMessage]]:
        return await self._runs.load(id)

    async def _send(self, id: str, message: RunMessage) -> None:
        await self._runs.send(id, message)


def to_json(value: Any) -> Any:
    """Return a value converted to plain JSON types, as Temporal stores it."""
    return msgspec.to_builtins(value)
