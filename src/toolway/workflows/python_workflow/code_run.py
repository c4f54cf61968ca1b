"""Runs a workflow function until it waits for steps, then plans and calls these."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from toolway.errors import ToolwayError
from toolway.hub.call_policy import CallTerms
from toolway.hub.instrumentation import WorkflowTrace
from toolway.types import Json
from toolway.workflows.definition import (
    Step,
    ToolStep,
)
from toolway.workflows.journal import Entry, RunMessage, RunRecord
from toolway.workflows.python_workflow.branches import Branch, current_branch
from toolway.workflows.python_workflow.code_planner import CodePlanner, FunctionCalls, StepRequest
from toolway.workflows.python_workflow.decorator import PythonWorkflow
from toolway.workflows.python_workflow.run_context import FUNCTION_PREFIX, RunContext
from toolway.workflows.python_workflow.step_result import RunFailure, StepFailed, StepUnknown, Suspended, as_json
from toolway.workflows.step_planner import (
    CallAction,
    Decision,
    Ending,
    Failure,
    Progress,
    RunMemory,
    RunRules,
)

IDLE_TURNS: Final = 12  # turns of the loop without a new step, after which the code waits for something
CLOSE_TIMEOUT_S: Final = 5.0  # for the `finally` blocks of a suspended function


class CodeRun:
    """Execution of one run of a workflow function: the function's task, and the steps that it waits for."""

    def __init__(
        self,
        workflow: PythonWorkflow,
        call: Callable[[CallAction, Entry], Awaitable[Entry]],
        find_tool: Callable[[str], Awaitable[None]],
        clock: Callable[[], float] = time.time,
        trace: WorkflowTrace | None = None,
    ) -> None:
        self._find_tool = find_tool
        self._clock = clock
        self._trace = trace
        self._workflow = workflow
        self._call = call
        self._task: asyncio.Task[Any] | None = None
        self._requests: dict[str, StepRequest] = {}
        self._count = 0
        self._requested = asyncio.Event()
        self._memory = RunMemory(())
        self._values: list[Entry] = []  # journalled values that are not written yet
        self._closed = False
        self._planned_end = False  # the last plan knew that the function has ended
        self._life = 0
        self.time = 0.0
        self.functions: dict[str, Callable[[], Awaitable[Any]]] = {}

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
        """Run the workflow function until it waits for steps or ends. Return the run's next actions."""
        self._memory, self._life, self.time = memory, life, now
        if self._task is None:
            self._task = asyncio.create_task(self._execute(record))
        definition = self._workflow.definition
        rules = RunRules(definition.timeout, definition.undo_on_failure)
        records: list[Entry] = []
        while True:
            await self._let_code_run()
            planner = CodePlanner(
                record,
                memory,
                messages,
                rules=rules,
                live=live,
                life=life,
                now=now,
                terms=terms,
                expressions=FunctionCalls(),
                code=self,
            )
            decision = planner.decide()
            records += [*self._values, *decision.records]
            self._values = []
            if planner.resolved == 0:
                self._planned_end = self._task.done()
                decision.records = records
                return decision

    @property
    def is_running(self) -> bool:
        """Return True if the engine must wait for the workflow function, and not only for steps that are running.

        True if the function awaits something that is not a step, such as `asyncio.sleep`, or if `has_news` is True.
        """
        return self.has_news or (self.is_open and not self._requests)

    @property
    def has_news(self) -> bool:
        """Return True if the workflow function has requested a step, or has ended, since `plan` was last called."""
        return self._requested.is_set() or (self._task is not None and self._task.done() != self._planned_end)

    @property
    def is_open(self) -> bool:
        """Return True if the workflow function has not ended."""
        return self._task is not None and not self._task.done()

    async def wait_for_step(self) -> None:
        """Wait until the workflow function requests a step, or has ended."""
        assert self._task is not None
        requested = asyncio.ensure_future(self._requested.wait())
        try:
            await asyncio.wait({self._task, requested}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            requested.cancel()

    async def call(self, action: CallAction, intent: Entry) -> Entry:
        """Make the call of a step: call its tool, or the Python function of a `run.do` step.

        Return the entry with its outcome.
        """
        function = self.functions.get(action.path)
        if function is None or not action.tool.startswith(FUNCTION_PREFIX):
            return await self._call(action, intent)
        if self._trace is None or action.span is None:
            return await self._call_function(function, action, intent)
        _, end_span = self._trace.start_step(action.path, action.attempt, action.span)
        state, attributes = "unknown", {}  # if this task is cancelled
        try:
            outcome = await self._call_function(function, action, intent)
            state = outcome.state
            if action.span.describe is not None and state == "done":
                attributes = action.span.describe(outcome.body["data"])
            return outcome
        finally:
            end_span(state, attributes)

    async def _call_function(self, function: Callable[[], Awaitable[Any]], action: CallAction, intent: Entry) -> Entry:
        try:
            async with asyncio.timeout(action.timeout):
                value = as_json(await function())
        except TimeoutError:
            error = {"code": "E-TIMEOUT", "message": f"{action.path} did not end in time", "executed": "unknown"}
            return replace(intent, state="unknown", body=error, ended=self._clock())
        except Exception as exc:
            error = {"code": "E-WORKFLOW-FAILED", "message": f"{type(exc).__name__}: {exc}"[:500], "executed": "yes"}
            return replace(intent, state="failed", body=error, ended=self._clock())
        return replace(intent, state="done", body={"data": value}, ended=self._clock())

    async def close(self) -> None:
        """End the workflow function with `Suspended`, and wait some seconds for its `finally` blocks."""
        self._closed = True
        waits_for_steps = bool(self._requests)
        for request in self._requests.values():
            if not request.future.done():
                request.future.set_exception(Suspended())
        self._requests.clear()
        task = self._task
        if task is None:
            return
        done, _ = await asyncio.wait({task}, timeout=CLOSE_TIMEOUT_S if waits_for_steps else 0)
        if not done:
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSE_TIMEOUT_S)
        if task.done() and not task.cancelled():
            task.exception()  # read, so asyncio does not report it

    async def request(self, step: Step, path: str) -> Json:
        """Register a step that the workflow function wants, wait until it is done, and return its result.

        Raises `StepFailed` if the step fails, and `Suspended` if the run is removed from memory.
        """
        if isinstance(step, ToolStep) and not step.tool.startswith(FUNCTION_PREFIX):
            await self._find_tool(step.tool)  # without its definition it would count as unsafe
        if self._closed:
            raise Suspended
        if path in self._requests:
            raise ValueError(f"two steps have the path {path!r}: give them names")
        request = StepRequest(step, path, current_branch.get().group, asyncio.get_running_loop().create_future())
        self._requests[path] = request
        self._count += 1
        self._requested.set()
        try:
            found: Json = await request.future
        finally:
            self._requests.pop(path, None)
        return found

    def value(self, kind: str, make: Callable[[], Any]) -> Any:
        """Return the value, such as a random number, that the journal has stored for this point of the code.

        If there is none, create it with `make` and queue it for the journal.
        """
        if self._closed:
            raise Suspended
        path = current_branch.get().path(None, kind)
        known = self._memory.entries.get(path)
        if known:
            return known[-1].body
        entry = Entry(
            path=path, state="done", kind="value", body=make(), life=self._life, began=self.time, ended=self.time
        )
        self._memory.add(entry)
        self._values.append(entry)
        return entry.body

    def attempts(self, path: str) -> int:
        """Return the number of attempts of the step at `path`."""
        return len(self._memory.entries.get(path, ()))

    def times(self, path: str) -> tuple[float, float] | None:
        """Return when the step at a path started and ended; None if it has not ended."""
        entries = self._memory.entries.get(path)
        if not entries or entries[-1].ended is None:
            return None
        return entries[0].began, entries[-1].ended

    def open_requests(self) -> list[StepRequest]:
        """Return the steps that the workflow function waits for, in the order it requested them."""
        return [each for each in self._requests.values() if not each.future.done()]

    def ending(self) -> Progress:
        """Return the `Ending` of the run, with its result or failure, if the workflow function has ended.

        Else return "pending".
        """
        assert self._task is not None
        if not self._task.done():
            return "pending"
        if self._task.cancelled():
            return Failure(
                {"code": "E-WORKFLOW-FAILED", "message": "the function was cancelled", "executed": "unknown"}
            )
        exc = self._task.exception()
        if exc is None:
            try:
                return Ending("done", as_json(self._task.result()))
            except TypeError as error:
                return Failure({"code": "E-WORKFLOW-FAILED", "message": f"the result is not JSON: {error}"})
        if isinstance(exc, StepFailed):
            return Failure(exc.error, isinstance(exc, StepUnknown))
        if isinstance(exc, ToolwayError):
            facts = exc.facts if isinstance(exc, RunFailure) else {}
            parts = {"code": exc.code, "message": exc.message, "detail": exc.detail, "hint": exc.hint}
            return Failure({**parts, **facts})
        return Failure({"code": "E-WORKFLOW-FAILED", "message": f"{type(exc).__name__}: {exc}"[:500]})

    async def _execute(self, record: RunRecord) -> Any:
        current_branch.set(Branch())
        return await self._workflow.function(RunContext(record, self), **(record.input or {}))

    async def _let_code_run(self) -> None:
        """Let the workflow function run until it has ended, or has requested no step for some turns of the loop."""
        assert self._task is not None
        idle = 0
        while idle < IDLE_TURNS and not self._task.done():
            count = self._count
            await asyncio.sleep(0)
            idle = 0 if self._count != count else idle + 1
        self._requested.clear()
