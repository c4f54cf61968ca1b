"""`RunContext`: a workflow function's view of its run, with methods for steps, waits and questions."""

from __future__ import annotations

import asyncio
import copy
import os
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from toolway.telemetry.otel_attributes import StepSpan
from toolway.types import Effect, Json
from toolway.workflows.definition import (
    AgentRuns,
    AskStep,
    ChildStep,
    Definition,
    Retry,
    ToolStep,
    Undo,
    UnknownPolicy,
    Verify,
    WaitStep,
)
from toolway.workflows.journal import RunRecord
from toolway.workflows.python_workflow.branches import Branch, Group, GroupStopped, current_branch
from toolway.workflows.python_workflow.decorator import PythonWorkflow
from toolway.workflows.python_workflow.step_result import StepResult, as_json, read_seconds
from toolway.workflows.reader import read_definition

if TYPE_CHECKING:
    from toolway.workflows.python_workflow.code_run import CodeRun

T = TypeVar("T")
FUNCTION_PREFIX: Final = "python:"  # of the tool name of a step that is a function
DEFAULT_FUNCTION_TIMEOUT_S: Final = 60.0


class RunContext:
    """A workflow function's view of its run: steps, waits, questions, replayable time and randomness."""

    def __init__(self, record: RunRecord, code: CodeRun) -> None:
        self.id = record.id
        self.caller = record.caller
        self._code = code
        self._span: StepSpan | None = None

    def with_span(self, span: StepSpan) -> RunContext:
        """Return this run, with the name and attributes of the trace span of its next step, instead of `step NAME`."""
        run = copy.copy(self)
        run._span = span
        return run

    async def call(
        self,
        tool: str,
        args: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        effect: Effect | str | None = None,
        repeatable: bool = False,
        key_honored: bool = False,
        timeout: str | float | None = None,
        retry: Retry = Retry(),  # noqa: B008 # immutable
        on_unknown: UnknownPolicy | Verify = "ask",
        undo: tuple[str, Callable[[StepResult], Json]] | None = None,
    ) -> StepResult:
        """Call a tool as a step. An unsafe call is made at most once, even if the process dies.

        Args:
            tool: Name of the tool, `server.tool`.
            args: Its arguments.
            name: Name of the step; needed only if the code may change while runs are open.
            effect: The author's statement `read`, `idempotent` or `unsafe`; without it the rules of the hub.
            repeatable: A failure that the tool reported may be retried.
            key_honored: The server detects a repeated call by its idempotency key.
            timeout: Time for one attempt.
            retry: Attempts of the step.
            on_unknown: If the call may have run: `ask` a user, `fail`, `retry`, or `verify(…)`.
            undo: Tool and function of the result that gives its arguments, called if the run fails and is undone.

        Returns:
            The result of the tool.

        Raises:
            StepFailed: The tool reported a failure, or the call did not run.
            StepUnknown: The call may have run, and `on_unknown` is `fail`.
        """
        path = current_branch.get().path(name, tool)
        step = ToolStep(
            name=path,
            tool=tool,
            params=as_json(dict(args or {})),
            effect=None if effect is None else Effect(effect),
            repeatable=repeatable,
            key_honored=key_honored,
            timeout=None if timeout is None else read_seconds("timeout", timeout),
            retry=retry,
            on_unknown=on_unknown,
            undo=None if undo is None else Undo(tool=undo[0], params=undo[1]),
            span=self._span,
        )
        found = await self._code.request(step, path)
        return StepResult(found["data"], found["text"])

    async def do(
        self,
        function: Callable[[], Awaitable[Any]],
        *,
        name: str | None = None,
        effect: Effect | str = Effect.UNSAFE,
        timeout: str | float = DEFAULT_FUNCTION_TIMEOUT_S,
        retry: Retry = Retry(),  # noqa: B008 # immutable
        on_unknown: UnknownPolicy | Verify = "ask",
    ) -> Any:
        """Run a function without arguments as a step and return its result, which must be JSON.

        The step counts as unsafe unless `effect` says otherwise. An exception of the function is a failure of the
        step.
        """
        label = name or str(getattr(function, "__name__", "function"))
        path = current_branch.get().path(name, FUNCTION_PREFIX + label)
        self._code.functions[path] = function
        step = ToolStep(
            name=path,
            tool=FUNCTION_PREFIX + label,
            effect=Effect(effect),
            timeout=read_seconds("timeout", timeout),
            retry=retry,
            on_unknown=on_unknown,
            span=self._span,
        )
        return (await self._code.request(step, path))["data"]

    async def start(
        self,
        workflow: PythonWorkflow | Definition | AgentRuns | Mapping[str, Any] | str | os.PathLike[str],
        inputs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
    ) -> Any:
        """Run another workflow as a child, started only once, and return its output.

        Raises:
            StepFailed: The child failed, was cancelled or undone, or is stuck.
        """
        child = workflow if isinstance(workflow, PythonWorkflow | AgentRuns) else read_definition(workflow)
        path = current_branch.get().path(name, f"workflow:{child.name}")
        step = ChildStep(name=path, workflow=child, params=as_json(dict(inputs or {})))
        return (await self._code.request(step, path))["data"]

    async def wait(self, duration: str | float, *, name: str | None = None) -> None:
        """Wait for a duration: seconds, or a string such as `3d`. A waiting run uses no memory."""
        path = current_branch.get().path(name, "wait")
        await self._code.request(WaitStep(name=path, seconds=read_seconds("wait", duration)), path)

    async def approve(
        self,
        title: str,
        *,
        who: Sequence[str] = (),
        within: str | float | None = None,
        not_by_starter: bool = False,
        name: str | None = None,
    ) -> Json:
        """Wait for a user's approval; return `by` and `note`.

        Raises:
            StepFailed: A user denied it, or did not answer in time.
        """
        found: Json = await self._ask(title, "approve", None, who, within, not_by_starter, name)
        return found

    async def ask(
        self,
        title: str,
        form: Json | None = None,
        *,
        who: Sequence[str] = (),
        within: str | float | None = None,
        name: str | None = None,
    ) -> Any:
        """Ask a user for data with a form (JSON Schema); return the answer."""
        return await self._ask(title, "ask", form, who, within, False, name)

    async def _ask(
        self,
        title: str,
        kind: str,
        form: Json | None,
        who: Sequence[str],
        within: str | float | None,
        not_by_starter: bool,
        name: str | None,
    ) -> Any:
        path = current_branch.get().path(name, kind)
        step = AskStep(
            name=path,
            title=title,
            approval=kind == "approve",
            form=form,
            who=tuple(who),
            not_by_starter=not_by_starter,
            within=None if within is None else read_seconds("within", within),
        )
        return (await self._code.request(step, path))["data"]

    async def each(
        self, items: Iterable[T], function: Callable[[T], Awaitable[Any]], *, at_once: int = 1, name: str | None = None
    ) -> list[Any]:
        """Run a function for each item, at most `at_once` in parallel; return results in item order.

        If one fails, no new step begins, steps in flight end, and the first failure is raised.
        """
        return await self._run_branches([partial(function, item) for item in items], at_once, name or "each")

    async def gather(self, *branches: Coroutine[Any, Any, Any], name: str | None = None) -> list[Any]:
        """Run branches in parallel and return their results, as in `run.gather(pay(run), write(run))`."""

        async def run(branch: Coroutine[Any, Any, Any]) -> Any:
            return await branch

        try:
            functions = [partial(run, branch) for branch in branches]
            return await self._run_branches(functions, len(branches), name or "gather")
        finally:
            for branch in branches:
                branch.close()  # one that never began, or has ended

    async def _run_branches(
        self, branches: Sequence[Callable[[], Awaitable[Any]]], at_once: int, name: str
    ) -> list[Any]:
        outer = current_branch.get()
        path = outer.path(None, name)
        group = Group(outer.group)
        results: list[Any] = [None] * len(branches)
        failures: dict[int, BaseException] = {}
        numbers = iter(range(len(branches)))

        async def work() -> None:
            for number in numbers:
                if group.is_stopped:
                    return
                current_branch.set(Branch(f"{path}[{number}]/", group))
                try:
                    results[number] = await branches[number]()
                except GroupStopped:
                    return
                except Exception as exc:
                    failures[number] = exc
                    group.stop()
                    return

        tasks = [asyncio.create_task(work()) for _ in range(min(max(at_once, 1), len(branches)))]
        try:
            for task in tasks:
                await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if failures:
            raise failures[min(failures)]
        if group.is_stopped:
            raise GroupStopped
        return results

    def attempts(self, name: str) -> int:
        """Return the number of attempts of the finished step with this name: more than one after a crash or a retry."""
        return self._code.attempts(f"{current_branch.get().prefix}{name}")

    def times(self, name: str) -> tuple[float, float] | None:
        """Return when this step started and ended, in seconds since 1970; None if it has not ended."""
        return self._code.times(f"{current_branch.get().prefix}{name}")

    def now(self) -> float:
        """Return the time in seconds since 1970; the same time again if the function is replayed from the journal."""
        return float(self._code.value("now", lambda: self._code.time))

    def uuid(self) -> str:
        """Return a random UUID; the same one again if the function is replayed from the journal."""
        return str(self._code.value("uuid", lambda: str(uuid.uuid4())))

    def random(self) -> float:
        """Return a random number from 0 to 1; the same one again if the function is replayed from the journal."""
        return float(self._code.value("random", random.random))
