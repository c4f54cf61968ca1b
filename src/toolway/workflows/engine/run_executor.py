"""Executes one workflow run: plans its next actions, writes intents and outcomes, and makes the calls.

An unsafe call is sent only after its intent (the journal entry that announces it) is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

from msgspec import convert, to_builtins
from msgspec.structs import asdict, replace

from toolway.config.agent_settings import Budget
from toolway.errors import ConfigError, ToolwayError
from toolway.events import RunStepEnded
from toolway.hub.hub import Hub
from toolway.hub.instrumentation import WorkflowTrace
from toolway.types import Effect, Json
from toolway.workflows.definition import AGENT_WORKFLOW, AgentRuns, Definition
from toolway.workflows.engine.active_run import ActiveRun
from toolway.workflows.engine.checks import WorkflowError
from toolway.workflows.engine.run_steps import FileSteps, RunSteps
from toolway.workflows.engine.scheduled_runs import ScheduledRuns
from toolway.workflows.engine.stored_runs import EVENT_SERVER
from toolway.workflows.journal import (
    BUDGET_VARIABLE,
    CONFIG_VARIABLE,
    FINAL_STATES,
    MAX_ENTRIES,
    READ_VARIABLE,
    TRACE_VARIABLE,
    Entry,
    JournalError,
    NewerRun,
    RunChange,
    RunDamaged,
    RunLost,
    RunMessage,
    RunRecord,
)
from toolway.workflows.python_workflow.code_run import CodeRun
from toolway.workflows.schedule import SCHEDULE_KEY
from toolway.workflows.step_call import RunAccess, call_step, error_body
from toolway.workflows.step_planner import CallAction, Decision, RunMemory, child_outcome, entry_for

SHORT_WAIT_S: Final = 2.0  # a run that is due sooner stays in memory
JOURNAL_RETRY_S: Final = 1.0  # after a failed write
CODE_RETRY_S: Final = 60.0  # for a run that this process cannot execute
CHILD_KEY: Final = "child:"  # prefix of a child run's key
_log = logging.getLogger(__name__)


class RunExecutor(ScheduledRuns):
    """Extends `ScheduledRuns` with executing a run until it ends, waits or asks a user."""

    def __init__(self, hub: Hub, clock: Callable[[], float], access: RunAccess | None) -> None:
        super().__init__(hub, clock)
        self._access = access
        if access is not None:
            self.user_of = access.user_of
        self._closing = False

    async def _drive(self, active: ActiveRun) -> None:
        """Execute one run until it ends, must wait, or asks a user."""
        journal = self._get_journal()
        life = active.life = journal.life
        active.clear()
        try:
            record, definition, entries, messages = await self.load(active.id)
        except (NewerRun, ConfigError) as exc:  # it has parts that only a newer node knows
            await self._put_back(active, str(exc))
            return
        except RunDamaged as exc:
            await self._mark_damaged(active, exc)
            return
        if record.state in FINAL_STATES:
            return
        if "python" in definition.body and record.workflow not in self._code:
            await self._put_back(active, f"pass the Python workflow {record.workflow} to Workflows(code=[…])")
            return
        is_scheduled = (record.key or "").startswith(SCHEDULE_KEY) and definition.schedule is not None
        if is_scheduled and not any(each.kind == "cancel" for each in messages):
            await self._create_next(definition, max(self._clock(), record.created), record.caller)
        await self._prepare_tools(definition)
        memory = RunMemory(entries)
        run_trace = self._start_trace(record)
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
                    terms=self._hub._core.policies.terms,
                )
                if self._closing and decision.calls:  # another process continues with them
                    decision.calls.clear()
                    if not calls:
                        await self._write(active, [*unwritten, *decision.records], RunChange(state="ready", due=0.0))
                        return
                problem = self._access.find_problem(record.caller, "") if self._access and decision.calls else None
                if problem is not None:  # no more calls for this starter
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
        """Make a step's call, and return the entry with its outcome.

        Raises `RunLost` if this node lost its lease before sending.
        """
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
        """Return the stored run's new state after a decision, such as waiting or ended.

        Return None if the state stays the same.
        """
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

    async def _write(self, active: ActiveRun, entries: list[Entry], change: RunChange | None) -> None:
        """Write entries and a run's new state to the journal. If that fails, wait and try again.

        Until the entries are written, none of the run's calls is sent. Raises `RunLost` if the lease under which the
        run was loaded has ended. In that case, another node may have continued the run since, even if this node has a
        new lease and has taken the run again.
        """
        journal = self._get_journal()
        while True:
            if not journal.holds(active.life):
                raise RunLost("the lease that the run was taken under has expired", detail=active.id)
            try:
                await journal.write(active.id, entries, change)
                return
            except JournalError as exc:
                if self._closing:
                    raise
                _log.error("%s", exc)
                await asyncio.sleep(JOURNAL_RETRY_S)

    async def _wait(
        self, active: ActiveRun, calls: dict[str, asyncio.Task[Entry]], decision: Decision, steps: RunSteps
    ) -> None:
        """Wait until a call ends, a message arrives, the Python code of the run requests a step, or the run is due."""
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
                return await self._call_child(definition, record, action, intent, run_trace)
            if run_trace is None:
                return await self._call(action, intent, record.caller)
            meta, end_span = run_trace.start_step(action.path, action.attempt, action.span)
            state = "unknown"  # if this task is cancelled
            try:
                traced = replace(action, meta={**(action.meta or {}), **meta})
                outcome = await self._call(traced, intent, record.caller)
                state = outcome.state
                return outcome
            finally:
                end_span(state)

        code = self._code.get(definition.name) if "python" in definition.body else None
        if code is None:
            return FileSteps(definition, call)
        return CodeRun(code, call, self._find_tool, self._clock, run_trace)

    def _start_trace(self, record: RunRecord) -> WorkflowTrace | None:
        code = self._code.get(record.workflow)
        span = code.span(record.id, record.input) if code is not None and code.span is not None else None
        parent = (record.variables or {}).get(TRACE_VARIABLE)
        return self._hub._core.instrumentation.start_run(record.id, record.workflow, parent, span)

    async def _call_child(
        self,
        definition: Definition,
        parent: RunRecord,
        action: CallAction,
        intent: Entry,
        run_trace: WorkflowTrace | None,
    ) -> Entry:
        """Start a child run, unless it was started before, and wait up to a short time for its end.

        Return the step's entry. The entry of a child that takes longer has the state `waiting`.
        """
        variables = parent.names
        args = action.args
        read: list[str] = (parent.variables or {}).get(READ_VARIABLE) or []  # by the runs above
        if isinstance(action.child, Definition):
            variables[READ_VARIABLE] = sorted({*read, *definition.tools_beside(action.child)})
        elif isinstance(action.child, AgentRuns) and read:
            known = args["settings"].get("has_read") or ()
            args = {**args, "settings": {**args["settings"], "has_read": sorted({*known, *read})}}
        if CONFIG_VARIABLE in (parent.variables or {}):
            variables[CONFIG_VARIABLE] = parent.variables[CONFIG_VARIABLE]
        if action.budget is not None:
            variables[BUDGET_VARIABLE] = to_builtins(action.budget)
            if isinstance(action.child, AgentRuns):
                own = convert(args["settings"]["budget"], Budget)
                args = {**args, "settings": {**args["settings"], "budget": to_builtins(own.within(action.budget))}}
        if run_trace is not None:
            variables[TRACE_VARIABLE] = run_trace.traceparent
        try:
            run = await self.start(
                action.child,
                args,
                key=f"{CHILD_KEY}{parent.id}/{action.path}",
                caller=parent.caller,
                variables=variables,
            )
        except JournalError as exc:
            _log.error("%s", exc)
            await asyncio.sleep(JOURNAL_RETRY_S)
            return replace(intent, kind="child", state="not_executed", ended=self._clock())
        except ToolwayError as exc:
            error = {"code": exc.code, "message": exc.message, "detail": exc.detail, "hint": exc.hint}
            body = {**error, "executed": "no", "usage": {}}  # nothing was used
            return replace(intent, kind="child", state="failed", body=body, ended=self._clock())
        child = await run.status()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHORT_WAIT_S):
                async for child in self.watch(run.id):
                    if self.is_asking(child):
                        break
        return child_outcome(intent, await self._child_to_json(child), self._clock())

    async def _tell_parent(self, record: RunRecord) -> None:
        """Tell a child run's parent that the child has ended.

        If this message is lost, the parent reads the child's state later.
        """
        if record.key is None or not record.key.startswith(CHILD_KEY):
            return
        parent, _, path = record.key.removeprefix(CHILD_KEY).partition("/")
        message = RunMessage(kind="child", path=path, body=await self._child_to_json(record), at=self._clock())
        with contextlib.suppress(KeyError, JournalError):
            await self._send(parent, message)

    async def _child_to_json(self, record: RunRecord) -> Json:
        """Return what a parent stores about its child: state, output, error, limits and agents' usage."""
        found: Json = {"run": record.id, "state": record.state, "output": record.output, "error": record.error}
        limits = (record.variables or {}).get(BUDGET_VARIABLE)
        if limits is not None:
            found["budget"] = limits
        if record.workflow == AGENT_WORKFLOW:
            ended = record.output if record.state == "done" else record.error
            found |= {key: ended.get(key) for key in ("usage", "seconds")} if isinstance(ended, dict) else {}
        elif limits is not None and record.state in FINAL_STATES:
            _, _, entries, _ = await self.load(record.id)
            found["usage"] = _sum_usage(entries)
        return found

    async def _put_back(self, active: ActiveRun, reason: str) -> None:
        """Put a run that this process cannot execute back as waiting, so another process may take it."""
        _log.warning("the run %s waits for another process: %s", active.id, reason)
        due = self._clock() + CODE_RETRY_S
        await self._write(active, [], RunChange(state="waiting", due=due, asks=active.asks))

    async def _mark_damaged(self, active: ActiveRun, error: RunDamaged) -> None:
        """Mark a run as unreadable, so a user learns about it. The run makes no more calls."""
        _log.error("%s", error)
        change = RunChange(state="damaged", error=error.to_json(), ended=self._clock())
        await self._write(active, [], change)
        record = _apply(await self.get(active.id), change)
        self._notify(record)
        await self._tell_parent(record)

    async def _prepare_tools(self, definition: Definition) -> None:
        """Wait until the definitions of all of a workflow's tools are known.

        Without them, every step would count as unsafe.
        """
        await asyncio.gather(*map(self._find_tool, sorted(definition.tool_names())))

    async def _find_tool(self, name: str) -> None:
        """Wait until the definition of a tool is known. If the tool does not exist, do nothing: its call will fail."""
        if self._hub._core.policies.terms(name) is None:
            with contextlib.suppress(ToolwayError):
                await self._hub.find_tool(name)


def _sum_usage(entries: list[Entry]) -> Json:
    """Return what all child runs of a run have used together (cost, tokens, calls, and requests)."""
    spent = RunMemory(entries).spent
    return {"usd": spent.usd, "input_tokens": spent.tokens, "calls": spent.calls, "requests": spent.requests}


def _apply(record: RunRecord, change: RunChange) -> RunRecord:
    values = asdict(change)
    del values["keep"]
    return replace(record, **values)


def _as_json(question: Any) -> Json:
    found: Json = to_builtins(question)
    return found
