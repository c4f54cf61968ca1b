"""A workflow definition: its steps, in the order and form of the file.

`reader.py` builds them from YAML or JSON, `planner.py` executes them. A definition never changes while a run uses it:
a run keeps the hash and the text of the definition that it was started with.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, TypeAlias

import msgspec

from toolway.config.agent_settings import AgentSettings, Budget
from toolway.types import Effect, Json
from toolway.workflows.schedule import Schedule

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")

AGENT_WORKFLOW: Final = "agent"  # name of the workflow of agent runs
AGENT_META_KEY: Final = "toolway/agent"  # `_meta` key of tools that start agents; agents do not see such tools
DEFAULT_VERIFY_DELAY_S: Final = 5.0  # before the read of `verify`

#: What happens to a step that may have run: ask a user, fail, or call again.
UnknownPolicy: TypeAlias = Literal["ask", "fail", "retry"]


class Retry(msgspec.Struct, frozen=True):
    """A step's attempts, and the waits between them. Each attempt is one call, including the hub's retries."""

    tries: int = 3
    wait: float = 5.0  # seconds before the second attempt
    factor: float = 2.0  # the wait grows by this factor
    at_most: float = 300.0  # longest wait
    on_answer: bool = False  # even if the tool itself reported a failure

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait after an attempt with this number."""
        return float(min(self.at_most, self.wait * self.factor ** min(attempt - 1, 64)))


class Verify(msgspec.Struct, frozen=True):
    """A read-only call that finds out whether an earlier call with an unknown outcome ran."""

    tool: str
    params: Any
    happened: Any  # expression over `reply`; in Python a function of the result
    result: Any = None  # expression over `reply`, or a function: the data of the step if it ran
    after: float | None = None  # seconds in which the server may still execute a call after its end
    otherwise: UnknownPolicy = "ask"  # if the read fails, or the call may still run

    def delay(self, timeout: float, *, has_ended: bool) -> float:
        """Return the seconds to wait before verifying a call with an unknown outcome.

        If the server's process has not ended, this is at least the call's time limit, because the server may still be
        executing the call.
        """
        if self.after is None:
            return DEFAULT_VERIFY_DELAY_S
        return self.after if has_ended else max(self.after, timeout)


class Undo(msgspec.Struct, frozen=True):
    """A tool call that reverses a finished step if the run fails."""

    tool: str
    params: Any


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What all workflow steps have in common: name, condition and failure handlers."""

    name: str
    condition: str | None = None  # expression; the step is skipped if it is false
    catch: tuple[Catch, ...] = ()


class Catch(msgspec.Struct, frozen=True, kw_only=True):
    """Handles the failure of a workflow step.

    It only handles a failure with an unknown outcome if `unknown` is true.
    """

    condition: str | None = None
    unknown: bool = False
    steps: tuple[Step, ...] = ()
    then: Literal["continue", "fail", "end"] = "continue"


class ToolStep(Step, frozen=True, kw_only=True):
    """Workflow step that calls one tool."""

    tool: str
    params: Any = {}
    assign: str | None = None  # variable that gets the data of the result
    effect: Effect | None = None  # statement of the author; None uses the rules of the hub
    repeatable: bool = False  # a failure that the tool reported may be retried
    key_honored: bool = False  # the server detects a repeated call by its idempotency key
    timeout: float | None = None  # seconds for one attempt
    retry: Retry = Retry()
    on_unknown: UnknownPolicy | Verify = "ask"
    undo: Undo | None = None
    span: Any = None  # the `StepSpan` of its trace, if it is not the usual one


class ForeachStep(Step, frozen=True, kw_only=True):
    """Workflow step whose inner steps run once for each item of a list."""

    items: str  # expression
    steps: tuple[Step, ...]
    at_once: int = 1
    keep_going: bool = False  # a failed item does not stop the rest


class ParallelStep(Step, frozen=True, kw_only=True):
    """Workflow step whose branches run in parallel. The first failure stops new steps in all of them."""

    branches: tuple[tuple[str, tuple[Step, ...]], ...]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One branch of a `SwitchStep`. A branch without a condition is always taken."""

    condition: str | None
    steps: tuple[Step, ...]


class SwitchStep(Step, frozen=True, kw_only=True):
    """Workflow step with several branches, of which the first with a true condition runs."""

    cases: tuple[Case, ...]


class RepeatStep(Step, frozen=True, kw_only=True):
    """A workflow step that repeats its inner steps until a condition is true, waiting in between."""

    until: str
    every: float
    at_most: int
    steps: tuple[Step, ...]


class WaitStep(Step, frozen=True, kw_only=True):
    """Workflow step that waits for a while, or until a time."""

    seconds: float | None = None
    until: str | None = None  # expression: a time as ISO 8601 text, timestamp or seconds since 1970


class AskStep(Step, frozen=True, kw_only=True):
    """Workflow step that asks a user for approval, or for data in a form."""

    title: str
    approval: bool
    form: Json | None = None  # JSON Schema of the answer
    who: tuple[str, ...] = ()  # names or roles that may answer; empty: every administrator
    not_by_starter: bool = False
    within: float | None = None  # seconds


class ChildStep(Step, frozen=True, kw_only=True):
    """Workflow step that runs another workflow once and waits for it."""

    workflow: Any  # the Definition, or a Python workflow
    params: Any = {}
    assign: str | None = None

    def data_of(self, output: Any) -> Any:
        """Return this step's data for later steps, taken from its child run's output."""
        return output

    @property
    def uses_models(self) -> bool:
        """Return True if the child workflow has agent steps. This workflow's budget then applies to them."""
        return isinstance(self.workflow, Definition) and bool(self.workflow.agent_steps())

    @property
    def own_budget(self) -> Budget | None:
        """Return the budget in the child workflow's definition, or None."""
        return self.workflow.budget if isinstance(self.workflow, Definition) else None


class AgentRuns(msgspec.Struct, frozen=True):
    """Refers to the built-in Python workflow that runs agents.

    The engine must have received that workflow in its argument `code`.
    """

    name: str = AGENT_WORKFLOW


class AgentStep(ChildStep, frozen=True, kw_only=True):
    """Workflow step in which a model works on a prompt with tools, as a child run.

    Its answer is the data of the step.
    """

    workflow: Any = AgentRuns()
    settings: AgentSettings

    def data_of(self, output: Any) -> Any:
        return output["output"]

    @property
    def uses_models(self) -> bool:
        return True

    @property
    def own_budget(self) -> Budget | None:
        return self.settings.budget


class SetStep(Step, frozen=True, kw_only=True):
    """Workflow step that sets variables to values computed from other data."""

    values: Json


class EndStep(Step, frozen=True, kw_only=True):
    """Workflow step that ends the run, with its output or with a failure."""

    output: Any = None
    failure: str | None = None  # text of the failure; None ends the run well


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow: inputs, steps, outputs, and what happens if it fails."""

    name: str
    description: str = ""
    inputs: Json | None = None  # JSON Schema
    timeout: float | None = None  # seconds for the whole run
    undo_on_failure: bool = False
    schedule: Schedule | None = None
    budget: Budget | None = None  # of all agent steps together
    steps: tuple[Step, ...]
    outputs: Any = None
    body: Json  # the definition as it was written
    hash: str

    def walk(self) -> list[Step]:
        """Return all steps, including nested ones, in file order."""
        found: list[Step] = []
        _collect(self.steps, found)
        return found

    def agent_steps(self) -> list[AgentStep]:
        """Return the agent steps of this workflow and its child workflows."""
        found: list[AgentStep] = []
        for step in self.walk():
            if isinstance(step, AgentStep):
                found.append(step)
            elif isinstance(step, ChildStep) and isinstance(step.workflow, Definition):
                found += step.workflow.agent_steps()
        return found

    def tool_names(self) -> set[str]:
        """Return the names of all tools that this workflow and its child workflows may call."""
        names: set[str] = set()
        for step in self.walk():
            if isinstance(step, ToolStep):
                names |= _tools_of(step)
            elif isinstance(step, ChildStep) and isinstance(step.workflow, Definition):
                names |= step.workflow.tool_names()
        return names

    def tools_beside(self, part: Step | Definition | None = None) -> set[str]:
        """Return patterns of tools whose results an agent step, or a child step's workflow, may have read.

        These are the tools of all other steps, including those that the agents of other steps may use.
        """
        found: set[str] = set()
        for step in self.walk():
            if step is part:
                continue
            if isinstance(step, ToolStep):
                found |= _tools_of(step)
            elif isinstance(step, AgentStep):
                found |= step.settings.all_tools()
            elif isinstance(step, ChildStep) and isinstance(step.workflow, Definition) and step.workflow is not part:
                found |= step.workflow.tools_beside()
        return found


def _tools_of(step: ToolStep) -> set[str]:
    names = {step.tool}
    if isinstance(step.on_unknown, Verify):
        names.add(step.on_unknown.tool)
    if step.undo is not None:
        names.add(step.undo.tool)
    return names


def read_duration(value: Any) -> float | None:
    """Return the seconds in a number or a string such as `30s`, `10m`, `2h`, or `7d`, or None for anything else."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        return float(match[1]) * _SECONDS[match[2]]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e10:
        return None
    return float(value)


def inner_blocks(step: Step) -> list[tuple[Step, ...]]:
    """Return the lists of steps that are nested in a step, such as the branches of a `ParallelStep`."""
    blocks: list[tuple[Step, ...]] = []
    if isinstance(step, ForeachStep | RepeatStep):
        blocks.append(step.steps)
    elif isinstance(step, ParallelStep):
        blocks.extend(steps for _, steps in step.branches)
    elif isinstance(step, SwitchStep):
        blocks.extend(case.steps for case in step.cases)
    blocks.extend(handler.steps for handler in step.catch)
    return blocks


def _collect(steps: tuple[Step, ...], found: list[Step]) -> None:
    for step in steps:
        found.append(step)
        if type(step) is ToolStep and not step.catch:  # most steps
            continue
        for block in inner_blocks(step):
            _collect(block, found)
