"""Workflows in Python: an `async` function whose steps are journalled, and which is replayed after a crash.

The function runs from its beginning again when a run goes on: each `run.call`, `run.wait`, `run.approve` whose outcome
is in the journal returns at once, the first one without an outcome is executed. So the function must do the same again
with the same data: time, randomness and everything outside come from the `RunContext`.

A step is found by its path: its `name`, else its tool and a number (`bank.refund#1`), below the branch of `each` or
`gather`. If the journal has another tool or other arguments at a path, the code was changed: the run becomes `stuck`
and nothing is called.

`step_planner.py` decides about each step by the same rules as for steps in files. A run that only waits leaves memory:
its function ends with `Suspended`, and its `finally` blocks run then.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import inspect
import os
import random
import runpy
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, overload

import msgspec
from msgspec.structs import replace

from toolway.errors import ConfigError, ToolwayError
from toolway.hub.call_policy import CallTerms
from toolway.types import Effect, Json
from toolway.workflows.definition import (
    AskStep,
    ChildStep,
    Definition,
    Retry,
    Step,
    ToolStep,
    Undo,
    UnknownPolicy,
    Verify,
    WaitStep,
    read_duration,
)
from toolway.workflows.expressions import ExpressionError
from toolway.workflows.journal import Entry, RunMessage, RunRecord
from toolway.workflows.reader import read_definition
from toolway.workflows.step_planner import (
    CallAction,
    Decision,
    Ending,
    Failure,
    Progress,
    RunMemory,
    Scope,
    StepPlanner,
)

T = TypeVar("T")
FUNCTION_PREFIX: Final = "python:"  # of the tool name of a step that is a function
IDLE_TURNS: Final = 12  # turns of the loop without a new step, after which the code waits for something
CLOSE_TIMEOUT_S: Final = 5.0  # for the `finally` blocks of a suspended function
DEFAULT_FUNCTION_TIMEOUT_S: Final = 60.0
_FILE_CODE: Final = "E-WORKFLOW-FILE"


class Suspended(BaseException):
    """Raised inside a workflow function if its run is removed from memory while it waits. Do not catch it."""


class StepFailed(ToolwayError):
    """Raised by a step that failed, was denied, or was not executed. `error` has the parts of the failure."""

    code = "E-WORKFLOW-FAILED"

    def __init__(self, error: Json) -> None:
        super().__init__(
            str(error.get("message", "")),
            detail=str(error.get("detail") or ""),
            hint=str(error.get("hint") or ""),
            code=str(error.get("code") or self.code),
        )
        self.error = error


class StepUnknown(StepFailed):
    """Raised by a step with `on_unknown="fail"` that may have been executed. Check before you repeat it."""

    code = "E-WORKFLOW-UNKNOWN"


class StepResult(msgspec.Struct, frozen=True):
    """Result of a step: `data` is the structured content, else the value of a JSON text, else the text."""

    data: Any = None
    text: str | None = None


class PythonWorkflow:
    """A workflow that is a Python function, made by `@workflow`."""

    def __init__(
        self,
        function: Callable[..., Coroutine[Any, Any, Any]],
        *,
        name: str | None = None,
        timeout: str | float | None = None,
        undo_on_failure: bool = False,
    ) -> None:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__name__} is not an async function")
        self.function = function
        self.name = name or function.__name__
        body: Json = {"python": self.name, "timeout": timeout, "undo_on_failure": undo_on_failure}
        self.definition = Definition(
            name=self.name,
            description=inspect.getdoc(function) or "",
            timeout=None if timeout is None else _seconds("timeout", timeout),
            undo_on_failure=undo_on_failure,
            steps=(),
            body=body,
            hash=hashlib.sha256(msgspec.json.encode(body)).hexdigest(),
        )

    def bind(self, inputs: Mapping[str, Any]) -> None:
        """Check the inputs of a run. Raises `TypeError` if they do not fit the parameters of the function."""
        inspect.signature(self.function).bind(None, **inputs)


@overload
def workflow(function: Callable[..., Coroutine[Any, Any, Any]], /) -> PythonWorkflow: ...


@overload
def workflow(
    *, name: str | None = None, timeout: str | float | None = None, undo_on_failure: bool = False
) -> Callable[[Callable[..., Coroutine[Any, Any, Any]]], PythonWorkflow]: ...


def workflow(function: Callable[..., Coroutine[Any, Any, Any]] | None = None, /, **options: Any) -> Any:
    """Make a workflow of an `async` function whose first parameter is the `RunContext`.

    Args:
        function: The function; its further parameters are the inputs of a run.
        name: Name of the workflow; the name of the function if it is missing.
        timeout: Time for the whole run, in seconds or as text such as `7d`.
        undo_on_failure: Call `undo` of the finished steps, the last first, if the run fails.

    Example:
        @workflow
        async def refund(run: RunContext, order: str) -> dict:
            paid = await run.call("bank.refund", {"order": order})
            return {"refund": paid.data["id"]}
    """
    if function is not None:
        return PythonWorkflow(function)
    return lambda found: PythonWorkflow(found, **options)


def load_workflow(source: str | os.PathLike[str]) -> PythonWorkflow:
    """Return the workflow in a Python file: `refund.py` with one workflow, or `flows.py:refund`.

    The file is executed. Raises `ConfigError` if it cannot be, or has no such workflow.
    """
    file, _, name = os.fspath(source).partition(".py:")
    path = Path(f"{file}.py" if name else file)
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", hint="give a Python file, or FILE.py:NAME", code=_FILE_CODE)
    try:
        names = runpy.run_path(str(path))
    except Exception as exc:
        detail = f"{type(exc).__name__}: {exc}"
        raise ConfigError(f"the file {path} cannot be executed", detail=detail[:500], code=_FILE_CODE) from exc
    found = {each.name: each for each in names.values() if isinstance(each, PythonWorkflow)}
    if name in found:
        return found[name]
    if len(found) == 1 and not name:
        return next(iter(found.values()))
    raise ConfigError(
        f"{path} has {'no workflow ' + name if name else 'no single workflow'}",
        detail=f"found: {', '.join(sorted(found)) or 'none'}",
        hint=f"write @workflow before an async function; choose one with {path}:NAME",
        code=_FILE_CODE,
    )


def verify(
    tool: str,
    args: Json,
    happened: Callable[[StepResult], Any],
    *,
    result: Callable[[StepResult], Any] | None = None,
    after: str | float | None = None,
    otherwise: UnknownPolicy = "ask",
) -> Verify:
    """Return a read that finds out if a call with an unknown outcome was executed, for `run.call(on_unknown=…)`.

    Args:
        tool: The tool to read with.
        args: Its arguments.
        happened: Function of its result: was the call executed?
        result: Function of its result: the data of the step if it was executed.
        after: Longest time in which the server may still execute a call after it timed out. If it is not given,
            "not executed" counts only if the process of the server has ended.
        otherwise: What to do if the read fails, or the call may still be executed: `ask`, `fail` or `retry`.
    """
    seconds = None if after is None else _seconds("after", after)
    return Verify(tool=tool, params=args, happened=happened, result=result, after=seconds, otherwise=otherwise)


class _Group:
    """Branches that run side by side. If one fails, no new step begins in any branch."""

    def __init__(self, parent: _Group | None) -> None:
        self._parent = parent
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    @property
    def is_stopped(self) -> bool:
        return self._stopped or (self._parent is not None and self._parent.is_stopped)


class _GroupStopped(BaseException):
    """Raised at the next step of a branch if another branch has failed."""


class _Branch:
    """Position in the code: the prefix of paths, and numbers of steps without a name."""

    def __init__(self, prefix: str = "", group: _Group | None = None) -> None:
        self.prefix = prefix
        self.group = group
        self._counts: dict[str, int] = {}

    def path(self, name: str | None, kind: str) -> str:
        if name is None:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            name = f"{kind}#{self._counts[kind]}"
        elif name in self._counts:
            raise ValueError(f"the step name {name!r} is used twice")
        else:
            self._counts[name] = 1
        return f"{self.prefix}{name}"


_branch: contextvars.ContextVar[_Branch] = contextvars.ContextVar("toolway_workflow_branch")


class _Request:
    """A step that the code of a Python workflow waits for, and the future of its result."""

    def __init__(self, step: Step, path: str, group: _Group | None, future: asyncio.Future[Any]) -> None:
        self.step = step
        self.path = path
        self.group = group
        self.future = future
        self.scope: Scope = {"steps": {}, "name": step.name}


class RunContext:
    """The run as its workflow function sees it: steps, waits, questions, and time and randomness from the journal."""

    def __init__(self, record: RunRecord, code: CodeRun) -> None:
        self.id = record.id
        self.caller = record.caller
        self._code = code

    async def call(
        self,
        tool: str,
        args: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        effect: Effect | str | None = None,
        repeatable: bool = False,
        key_honoured: bool = False,
        timeout: str | float | None = None,
        retry: Retry = Retry(),  # noqa: B008 # immutable
        on_unknown: UnknownPolicy | Verify = "ask",
        undo: tuple[str, Callable[[StepResult], Json]] | None = None,
    ) -> StepResult:
        """Call a tool as a step. An unsafe call is made at most once, also if the process dies.

        Args:
            tool: Name of the tool, `server.tool`.
            args: Its arguments.
            name: Name of the step; needed only if the code may change while runs are open.
            effect: The author's statement `read`, `idempotent` or `unsafe`; without it the rules of the hub.
            repeatable: A failure that the tool reported may be retried.
            key_honoured: The server detects a repeated call by its idempotency key.
            timeout: Time for one attempt.
            retry: Attempts of the step.
            on_unknown: If the call may have been executed: `ask` a person, `fail`, `retry`, or `verify(…)`.
            undo: Tool and function of the result that gives its arguments, called if the run fails and is undone.

        Returns:
            The result of the tool.

        Raises:
            StepFailed: The tool reported a failure, or the call was not executed.
            StepUnknown: The call may have been executed, and `on_unknown` is `fail`.
        """
        path = _branch.get().path(name, tool)
        step = ToolStep(
            name=path,
            tool=tool,
            params=_as_json(dict(args or {})),
            effect=None if effect is None else Effect(effect),
            repeatable=repeatable,
            key_honoured=key_honoured,
            timeout=None if timeout is None else _seconds("timeout", timeout),
            retry=retry,
            on_unknown=on_unknown,
            undo=None if undo is None else Undo(tool=undo[0], params=undo[1]),
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

        It counts as unsafe unless `effect` says otherwise. An exception of the function is a failure of the step.
        """
        label = name or str(getattr(function, "__name__", "function"))
        path = _branch.get().path(name, FUNCTION_PREFIX + label)
        self._code.functions[path] = function
        step = ToolStep(
            name=path,
            tool=FUNCTION_PREFIX + label,
            effect=Effect(effect),
            timeout=_seconds("timeout", timeout),
            retry=retry,
            on_unknown=on_unknown,
        )
        return (await self._code.request(step, path))["data"]

    async def start(
        self,
        workflow: PythonWorkflow | Definition | Mapping[str, Any] | str | os.PathLike[str],
        inputs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
    ) -> Any:
        """Run another workflow as a child, which is started once, and return its output.

        Raises:
            StepFailed: The child failed, was cancelled or undone, or is stuck.
        """
        child = workflow if isinstance(workflow, PythonWorkflow) else read_definition(workflow)
        path = _branch.get().path(name, f"workflow:{child.name}")
        step = ChildStep(name=path, workflow=child, params=_as_json(dict(inputs or {})))
        return (await self._code.request(step, path))["data"]

    async def wait(self, duration: str | float, *, name: str | None = None) -> None:
        """Wait for some seconds, or a text such as `3d`. The run needs no memory meanwhile."""
        path = _branch.get().path(name, "wait")
        await self._code.request(WaitStep(name=path, seconds=_seconds("wait", duration)), path)

    async def approve(
        self,
        title: str,
        *,
        who: Sequence[str] = (),
        within: str | float | None = None,
        not_by_starter: bool = False,
        name: str | None = None,
    ) -> Json:
        """Wait for the approval of a person; return `by` and `note`.

        Raises:
            StepFailed: A person denied it, or did not answer in time.
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
        """Ask a person for data by a form (JSON Schema); return the answer."""
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
        path = _branch.get().path(name, kind)
        step = AskStep(
            name=path,
            title=title,
            approval=kind == "approve",
            form=form,
            who=tuple(who),
            not_by_starter=not_by_starter,
            within=None if within is None else _seconds("within", within),
        )
        return (await self._code.request(step, path))["data"]

    async def each(
        self, items: Iterable[T], function: Callable[[T], Awaitable[Any]], *, at_once: int = 1, name: str | None = None
    ) -> list[Any]:
        """Run a function for each item, at most `at_once` side by side; return the results in the order of the items.

        If one fails, no new step begins, steps under way end, and the first failure is raised.
        """
        return await self._run_branches([partial(function, item) for item in items], at_once, name or "each")

    async def gather(self, *branches: Coroutine[Any, Any, Any], name: str | None = None) -> list[Any]:
        """Run branches side by side and return their results, such as `run.gather(pay(run), write(run))`."""

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
        outer = _branch.get()
        path = outer.path(None, name)
        group = _Group(outer.group)
        results: list[Any] = [None] * len(branches)
        failures: dict[int, BaseException] = {}
        numbers = iter(range(len(branches)))

        async def work() -> None:
            for number in numbers:
                if group.is_stopped:
                    return
                _branch.set(_Branch(f"{path}[{number}]/", group))
                try:
                    results[number] = await branches[number]()
                except _GroupStopped:
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
            raise _GroupStopped
        return results

    def attempts(self, name: str) -> int:
        """Return how often the finished step with this name was begun: more than once after a crash or a retry."""
        return self._code.attempts(f"{_branch.get().prefix}{name}")

    def now(self) -> float:
        """Return the time in seconds since 1970. A replay returns the same."""
        return float(self._code.value("now", lambda: self._code.time))

    def uuid(self) -> str:
        """Return a random UUID. A replay returns the same."""
        return str(self._code.value("uuid", lambda: str(uuid.uuid4())))

    def random(self) -> float:
        """Return a random number from 0 to 1. A replay returns the same."""
        return float(self._code.value("random", random.random))


class CodeRun:
    """Execution of a workflow function: the steps it waits for, and its task."""

    def __init__(
        self,
        workflow: PythonWorkflow,
        call: Callable[[CallAction, Entry], Awaitable[Entry]],
        find_tool: Callable[[str], Awaitable[None]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._find_tool = find_tool
        self._clock = clock
        self._workflow = workflow
        self._call = call
        self._task: asyncio.Task[Any] | None = None
        self._requests: dict[str, _Request] = {}
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
        """Let the code run until it waits for steps; return the next actions of the run."""
        self._memory, self._life, self.time = memory, life, now
        if self._task is None:
            self._task = asyncio.create_task(self._execute(record))
        records: list[Entry] = []
        while True:
            await self._let_code_run()
            planner = _CodePlanner(
                record,
                memory,
                messages,
                timeout=self._workflow.definition.timeout,
                undo_on_failure=self._workflow.definition.undo_on_failure,
                live=live,
                life=life,
                now=now,
                terms=terms,
                expressions=_FunctionCalls(),
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
        """Return True if the engine must wait for the code, and not only for steps that are under way.

        The code awaits something that is no step, such as `asyncio.sleep`, or `has_news` is True.
        """
        return self.has_news or (self.is_open and not self._requests)

    @property
    def has_news(self) -> bool:
        """Return True if the code has requested a step, or has ended, since `plan` last decided."""
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
        """Make the call of a step: a tool, or a function of the code."""
        function = self.functions.get(action.path)
        if function is None or not action.tool.startswith(FUNCTION_PREFIX):
            return await self._call(action, intent)
        try:
            async with asyncio.timeout(action.timeout):
                value = _as_json(await function())
        except TimeoutError:
            error = {"code": "E-TIMEOUT", "message": f"{action.path} did not end in time", "executed": "unknown"}
            return replace(intent, state="unknown", body=error, ended=self._clock())
        except Exception as exc:
            error = {"code": "E-WORKFLOW-FAILED", "message": f"{type(exc).__name__}: {exc}"[:500], "executed": "yes"}
            return replace(intent, state="failed", body=error, ended=self._clock())
        return replace(intent, state="done", body={"data": value}, ended=self._clock())

    async def close(self) -> None:
        """End the function with `Suspended`; wait for its `finally` blocks."""
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
            task.exception()  # read, so that asyncio does not report it

    async def request(self, step: Step, path: str) -> Json:
        """Wait for a step of the workflow function, and return its result."""
        if isinstance(step, ToolStep) and not step.tool.startswith(FUNCTION_PREFIX):
            await self._find_tool(step.tool)  # without its definition it would count as unsafe
        if self._closed:
            raise Suspended
        if path in self._requests:
            raise ValueError(f"two steps have the path {path!r}: give them names")
        request = _Request(step, path, _branch.get().group, asyncio.get_running_loop().create_future())
        self._requests[path] = request
        self._count += 1
        self._requested.set()
        try:
            found: Json = await request.future
        finally:
            self._requests.pop(path, None)
        return found

    def value(self, kind: str, make: Callable[[], Any]) -> Any:
        """Return a value, such as a random number, that the journal has stored at this point of the code.

        If there is none, make the value and queue it for the journal.
        """
        if self._closed:
            raise Suspended
        path = _branch.get().path(None, kind)
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
        """Return how often the step at a path was begun."""
        return len(self._memory.entries.get(path, ()))

    def open_requests(self) -> list[_Request]:
        """Return the steps that the code waits for, in the order of their beginning."""
        return [each for each in self._requests.values() if not each.future.done()]

    def ending(self) -> Progress:
        """Return how the run ends if the workflow function has ended; "pending" if it has not."""
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
                return Ending("done", _as_json(self._task.result()))
            except TypeError as error:
                return Failure({"code": "E-WORKFLOW-FAILED", "message": f"the result is not JSON: {error}"})
        if isinstance(exc, StepFailed):
            return Failure(exc.error, isinstance(exc, StepUnknown))
        if isinstance(exc, ToolwayError):
            return Failure({"code": exc.code, "message": exc.message, "detail": exc.detail, "hint": exc.hint})
        return Failure({"code": "E-WORKFLOW-FAILED", "message": f"{type(exc).__name__}: {exc}"[:500]})

    async def _execute(self, record: RunRecord) -> Any:
        _branch.set(_Branch())
        return await self._workflow.function(RunContext(record, self), **(record.input or {}))

    async def _let_code_run(self) -> None:
        """Yield to the event loop until the code has requested no further step for some turns, or has ended."""
        assert self._task is not None
        idle = 0
        while idle < IDLE_TURNS and not self._task.done():
            count = self._count
            await asyncio.sleep(0)
            idle = 0 if self._count != count else idle + 1
        self._requested.clear()


class _CodePlanner(StepPlanner):
    def __init__(self, *arguments: Any, code: CodeRun, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._code = code
        self.resolved = 0

    def _walk(self) -> Progress:
        for request in self._code.open_requests():
            changed = self._find_change(request)
            if changed is not None:
                return changed
            progress = self._plan(request)
            if progress == "done":
                self.resolved += 1
                request.future.set_result(request.scope["steps"][request.step.name])
            elif isinstance(progress, Failure):
                self.resolved += 1
                request.future.set_exception((StepUnknown if progress.unknown else StepFailed)(progress.error))
        return self._code.ending() if self.resolved == 0 else "pending"

    def _plan(self, request: _Request) -> Progress:
        step, path = request.step, request.path
        has_begun = self._last(path) is not None or path in self._live
        if not has_begun and request.group is not None and request.group.is_stopped:
            self.resolved += 1
            request.future.set_exception(_GroupStopped())
            return "pending"
        try:
            if isinstance(step, ToolStep):
                return self._tool(step, path, request.scope, None)
            if isinstance(step, WaitStep):
                return self._wait(step, path, request.scope)
            if isinstance(step, ChildStep):
                return self._child(step, path, request.scope)
            assert isinstance(step, AskStep)
            return self._question(step, path, request.scope)
        except ExpressionError as exc:
            return Failure({"code": exc.code, "message": exc.message, "detail": exc.detail, "executed": "no"})

    def _find_change(self, request: _Request) -> Ending | None:
        """Return the end of a run as "stuck" if its journal has another step at this path than the code; else None."""
        entry, step = self._last(request.path), request.step
        if entry is None:
            return None
        if isinstance(step, ToolStep):
            same = entry.kind == "call" and entry.tool == step.tool and entry.args == step.params
        elif isinstance(step, ChildStep):
            same = (
                entry.kind == "child" and entry.tool == f"workflow:{step.workflow.name}" and entry.args == step.params
            )
        else:
            same = entry.kind == ("wait" if isinstance(step, WaitStep) else "ask")
        if same:
            return None
        return Ending(
            "stuck",
            None,
            {
                "code": "E-WORKFLOW-CHANGED",
                "message": f"the code calls something else at {request.path} than the journal has",
                "detail": f"journal: {entry.kind} {entry.tool} {str(entry.args)[:200]}",
                "hint": "run the code that started the run, or give changed steps new names",
                "executed": "no",
            },
        )


class _FunctionCalls:
    """Evaluator of the functions of a step: `verify`, `undo`. Values that are no functions stay as they are."""

    def render(self, value: Any, scope: Scope) -> Any:
        if not callable(value):
            return value
        return self._apply(value, scope["steps"][scope["name"]])

    def evaluate(self, expression: Any, scope: Scope) -> Any:
        return self._apply(expression, scope["reply"])

    def is_true(self, expression: Any, scope: Scope) -> bool:
        return bool(self._apply(expression, scope["reply"]))

    def _apply(self, function: Callable[[StepResult], Any], value: Json) -> Any:
        try:
            return _as_json(function(StepResult(value["data"], value["text"])))
        except Exception as exc:
            raise ExpressionError("a function of the workflow failed", detail=f"{type(exc).__name__}: {exc}") from exc


def _as_json(value: Any) -> Any:
    """Return a value in the form that the journal would return later. Raises `TypeError` if it is not JSON."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError) as exc:
        raise TypeError(f"{type(value).__name__} is not JSON: {exc}") from exc


def _seconds(key: str, value: str | float) -> float:
    seconds = read_duration(value)
    if seconds is None:
        raise ValueError(f"{key} is not a duration: write seconds, or 30s, 10m, 2h, 7d")
    return seconds
