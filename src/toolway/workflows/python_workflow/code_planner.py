"""Planner of the steps that a Python workflow function waits for. It does no I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from toolway.types import Json
from toolway.workflows.definition import (
    AskStep,
    ChildStep,
    Step,
    ToolStep,
    WaitStep,
)
from toolway.workflows.expressions import ExpressionError
from toolway.workflows.python_workflow.branches import Group, GroupStopped
from toolway.workflows.python_workflow.step_result import StepFailed, StepResult, StepUnknown, as_json
from toolway.workflows.step_planner import (
    Ending,
    Failure,
    Progress,
    Scope,
    StepPlanner,
)

if TYPE_CHECKING:
    from toolway.workflows.python_workflow.code_run import CodeRun


class StepRequest:
    """A step that a Python workflow is waiting for, and the future of its result."""

    def __init__(self, step: Step, path: str, group: Group | None, future: asyncio.Future[Any]) -> None:
        self.step = step
        self.path = path
        self.group = group
        self.future = future
        self.scope: Scope = {"steps": {}, "name": step.name}


class CodePlanner(StepPlanner):
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

    def _plan(self, request: StepRequest) -> Progress:
        step, path = request.step, request.path
        has_begun = self._last(path) is not None or path in self._live
        if not has_begun and request.group is not None and request.group.is_stopped:
            self.resolved += 1
            request.future.set_exception(GroupStopped())
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

    def _find_change(self, request: StepRequest) -> Ending | None:
        """Return an `Ending` in the state `stuck` if the code was changed, so the run cannot continue; else None.

        It was changed if it requests another step at a path than the journal has there.
        """
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
                "message": f"the code calls something else at {request.path} than the journal says",
                "detail": f"journal: {entry.kind} {entry.tool} {str(entry.args)[:200]}",
                "hint": "run the code that started the run, or rename the changed steps",
                "executed": "no",
            },
        )


class FunctionCalls:
    """Evaluates the functions that a Python step has in place of expressions (`verify`, `undo`).

    It returns values that are not functions unchanged.
    """

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
            return as_json(function(StepResult(value["data"], value["text"])))
        except Exception as exc:
            raise ExpressionError("a function of the workflow failed", detail=f"{type(exc).__name__}: {exc}") from exc
