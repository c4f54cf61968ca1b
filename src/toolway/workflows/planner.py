"""Planner of workflow runs: decides the next actions of a run from its definition and journal. It does no I/O.

Read this first. `plan` walks the definition from its beginning. It skips each step whose outcome is in the journal; the
first step without an outcome gives an action: a call, a wait, a question. So an interrupted run continues from its
journal, and a run that waits does not need memory. `step_planner.py` decides about one step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from toolway.config.agent_settings import Budget
from toolway.hub.call_policy import CallTerms
from toolway.types import Json
from toolway.workflows.definition import (
    AskStep,
    ChildStep,
    Definition,
    EndStep,
    ForeachStep,
    ParallelStep,
    RepeatStep,
    SetStep,
    Step,
    SwitchStep,
    ToolStep,
    WaitStep,
)
from toolway.workflows.expressions import ExpressionError, Expressions
from toolway.workflows.journal import BUDGET_VARIABLE, RunMessage, RunRecord
from toolway.workflows.step_planner import (
    Decision,
    Ending,
    Failure,
    Progress,
    RunMemory,
    RunRules,
    Scope,
    StepPlanner,
    error_of,
    step_value,
)

MAX_ITEMS: Final = 10_000


def plan(
    definition: Definition,
    run: RunRecord,
    memory: RunMemory,
    messages: Sequence[RunMessage],
    *,
    live: frozenset[str],
    life: int,
    now: float,
    terms: Callable[[str], CallTerms | None],
    expressions: Expressions,
) -> Decision:
    """Return the next actions of a run.

    `live` are the paths of the steps whose calls run in this process now. `terms` returns the call rules of a tool;
    None if the tool is not known.
    """
    planner = _DefinitionPlanner(
        definition, run, memory, messages, live=live, life=life, now=now, terms=terms, expressions=expressions
    )
    return planner.decide()


class _DefinitionPlanner(StepPlanner):
    def __init__(self, definition: Definition, run: RunRecord, *arguments: Any, **named: Any) -> None:
        super().__init__(
            run,
            *arguments,
            rules=RunRules(definition.timeout, definition.undo_on_failure, budget_of(definition, run)),
            **named,
        )
        self._definition = definition

    def _walk(self) -> Progress:
        first, scope = self._memory.passed or (0, self._first_scope())
        steps = self._definition.steps
        for index in range(first, len(steps)):
            progress = self._step(steps[index], steps[index].name, scope)
            if progress != "done":
                return progress
            if not self._memory.has_unknown:
                self._memory.passed = (index + 1, scope)
        return self._finish(scope) if self._stopped is None else "done"

    def _first_scope(self) -> Scope:
        return {
            "inputs": self._run.input,
            "input": self._run.input,
            "variables": self._run.names,
            **self._run.names,
            "steps": {},
            "run": {"id": self._run.id, "started": self._run.created, "caller": self._run.caller},
        }

    def _finish(self, scope: Scope) -> Ending:
        if self._definition.outputs is None:
            done = [each for each in scope["steps"].values() if each["state"] == "done"]
            return Ending("done", done[-1]["data"] if done else None)
        try:
            return Ending("done", self._expressions.render(self._definition.outputs, scope))
        except ExpressionError as exc:
            return Ending("failed", None, error_of(exc))

    def _block(self, steps: Sequence[Step], prefix: str, scope: Scope) -> Progress:
        for step in steps:
            progress = self._step(step, f"{prefix}{step.name}", scope)
            if progress != "done":
                return progress
        return "done"

    def _step(self, step: Step, path: str, scope: Scope) -> Progress:
        try:
            if step.condition is not None and not self._condition(f"{path}?", step.condition, scope):
                scope["steps"][step.name] = step_value("skipped")
                return "done"
            progress = self._execute(step, path, scope)
        except ExpressionError as exc:
            progress = Failure(error_of(exc))
        if isinstance(progress, Failure):
            scope["steps"][step.name] = step_value("failed", error=progress.error)
            return self._handle(step, path, scope, progress)
        return progress

    def _execute(self, step: Step, path: str, scope: Scope) -> Progress:
        if isinstance(step, ToolStep):
            return self._tool(step, path, scope, step.assign)
        if isinstance(step, ForeachStep):
            return self._foreach(step, path, scope)
        if isinstance(step, ParallelStep):
            return self._parallel(step, path, scope)
        if isinstance(step, SwitchStep):
            return self._switch(step, path, scope)
        if isinstance(step, RepeatStep):
            return self._repeat(step, path, scope)
        if isinstance(step, WaitStep):
            return self._wait(step, path, scope)
        if isinstance(step, AskStep):
            return self._question(step, path, scope)
        if isinstance(step, ChildStep):
            return self._child(step, path, scope)
        if isinstance(step, SetStep):
            values = self._value(path, lambda: self._expressions.render(step.values, scope))
            scope.update(values)
            scope["steps"][step.name] = step_value("done", values)
            return "done"
        assert isinstance(step, EndStep)
        if step.failure is not None:
            text = self._expressions.render(step.failure, scope)
            return Failure({"code": "E-WORKFLOW-FAILED", "message": str(text), "executed": "yes", "step": path})
        return Ending("done", self._expressions.render(step.output, scope))

    def _handle(self, step: Step, path: str, scope: Scope, failure: Failure) -> Progress:
        """Run the steps of the first `catch` handler that matches the failure of a step.

        Return the progress after that. A failure with an unknown outcome is handled only by a handler with `unknown`.
        """
        for number, handler in enumerate(step.catch):
            inner = {**scope, "error": failure.error}
            try:
                if failure.unknown and not handler.unknown:
                    continue
                if handler.condition is not None and not self._expressions.is_true(handler.condition, inner):
                    continue
            except ExpressionError as exc:
                return Failure(error_of(exc))
            progress = self._block(handler.steps, f"{path}/catch{number or ''}/", inner)
            if progress != "done":
                return progress
            if handler.then == "fail":
                return failure
            return "done" if handler.then == "continue" else Ending("done", None)
        return failure

    def _foreach(self, step: ForeachStep, path: str, scope: Scope) -> Progress:
        items = self._value(path, lambda: _as_items(self._expressions.evaluate(step.items, scope), step.items))
        begun = self._memory.begun_items.get(path, set())
        results = self._memory.results.setdefault(path, [None] * len(items))
        first = self._memory.cursors.get(path, 0)  # all items before it are finished
        active = 0
        failure: Failure | None = None
        pending = False
        for index in range(first, len(items)):
            item, item_path = items[index], f"{path}[{index}]"
            if item_path in self._memory.finished:
                if index == self._memory.cursors.get(path, 0):
                    self._memory.cursors[path] = index + 1
                continue
            if index not in begun and (active >= step.at_once or (failure is not None and not step.keep_going)):
                pending = pending or failure is None
                if len(begun) <= index:  # items begin in order: none after this one has begun
                    break
                continue
            inner = {**scope, "steps": dict(scope["steps"]), "item": item, "index": index}
            progress = self._block(step.steps, f"{item_path}/", inner)
            if isinstance(progress, Ending):
                return progress
            if isinstance(progress, Failure):
                failure = failure or progress
                results[index] = {"error": progress.error}
            elif progress == "pending":
                active += 1
                pending = True
            else:
                last = inner["steps"].get(step.steps[-1].name)
                results[index] = last["data"] if last is not None else None
                self._memory.finished.add(item_path)
        if active or (pending and failure is None) or any(each.startswith(f"{path}[") for each in self._live):
            return "pending"
        if failure is not None and not step.keep_going:
            return failure
        if pending:
            return "pending"
        scope["steps"][step.name] = step_value("done", results)
        return "done"

    def _parallel(self, step: ParallelStep, path: str, scope: Scope) -> Progress:
        failure: Failure | None = None
        pending = False
        results: Json = {}
        calls = len(self._decision.calls)
        for name, steps in step.branches:
            inner = {**scope, "steps": dict(scope["steps"])}
            progress = self._block(steps, f"{path}/{name}/", inner)
            if isinstance(progress, Ending):
                return progress
            if isinstance(progress, Failure):
                failure = failure or progress
            elif progress == "pending":
                pending = True
            last = inner["steps"].get(steps[-1].name)
            results[name] = last["data"] if last is not None else None
        if failure is not None:
            # Nothing new begins; calls in flight and open questions are waited for.
            del self._decision.calls[calls:]
            prefix = f"{path}/"
            open_paths = [*self._live, *(each.path for each in self._decision.questions)]
            return "pending" if any(each.startswith(prefix) for each in open_paths) else failure
        if pending:
            return "pending"
        scope["steps"][step.name] = step_value("done", results)
        return "done"

    def _switch(self, step: SwitchStep, path: str, scope: Scope) -> Progress:
        for number, case in enumerate(step.cases):
            if case.condition is not None and not self._condition(f"{path}/{number}?", case.condition, scope):
                continue
            progress = self._block(case.steps, f"{path}/", scope)
            if progress == "done":
                scope["steps"][step.name] = step_value("done", scope["steps"].get(case.steps[-1].name, {}).get("data"))
            return progress
        scope["steps"][step.name] = step_value("skipped")
        return "done"

    def _repeat(self, step: RepeatStep, path: str, scope: Scope) -> Progress:
        for index in range(step.at_most):
            inner = {**scope, "steps": dict(scope["steps"]), "index": index}
            progress = self._block(step.steps, f"{path}[{index}]/", inner)
            if progress != "done":
                return progress
            last = inner["steps"].get(step.steps[-1].name)
            if self._condition(f"{path}[{index}]?", step.until, inner):
                scope["steps"][step.name] = step_value("done", last["data"] if last is not None else None)
                return "done"
            if index + 1 < step.at_most and not self._pass_time(
                f"{path}[{index}]/wait", lambda: self._now + step.every
            ):
                return "pending"
        return Failure(
            {"code": "E-WORKFLOW-REPEAT", "message": f"{path} was repeated {step.at_most} times", "executed": "yes"}
        )


def budget_of(definition: Definition, run: RunRecord) -> Budget | None:
    """Return the budget for all agent steps of a run: the definition's budget, limited by the parent run's."""
    limits = (run.variables or {}).get(BUDGET_VARIABLE)
    if limits is None:
        return definition.budget
    outer = msgspec.convert(limits, Budget)
    return outer if definition.budget is None else definition.budget.within(outer)


def _as_items(value: Any, expression: str) -> list[Any]:
    if not isinstance(value, list):
        raise ExpressionError(f"{expression!r} is not a list", detail=f"its value is {str(value)[:100]}")
    if len(value) > MAX_ITEMS:
        raise ExpressionError(f"{expression!r} has too many items", detail=f"{len(value)}, limit {MAX_ITEMS}")
    return value
