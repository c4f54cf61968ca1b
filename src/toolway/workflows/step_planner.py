"""Planner of one workflow step: decides from its journal entries on a call, a wait, a question or its result. No I/O.

An attempt that a crash interrupted is decided here (`_after_crash`, `_after_unknown`):

| the journal says        | read, idempotent, key honored  | unsafe                              |
|-------------------------|--------------------------------|-------------------------------------|
| nothing                 | call                           | write `begun`, then call            |
| `begun`, process ended  | call again, the same attempt   | `unknown`                           |
| `unknown`               | call again, within `retry`     | verify, ask, fail (`on_unknown`)    |
| `not_executed`          | next attempt, within `retry`   | next attempt, within `retry`        |
| needs an approval, or   | the same attempt, for a day    | the same attempt, for a day         |
| waits for its server    |                                |                                     |
| `failed`                | handlers, else the run fails   | the same                            |

`planner.py` uses it for definitions in files, `python_workflow/code_planner.py` for workflows in Python.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from toolway.config.agent_settings import Budget
from toolway.hub.call_policy import CallTerms
from toolway.outcomes import APPROVAL_CODE
from toolway.types import Effect, Json
from toolway.workflows.definition import AskStep, ChildStep, ToolStep, UnknownPolicy, Verify, WaitStep
from toolway.workflows.expressions import ExpressionError
from toolway.workflows.journal import DOUBT_VARIABLE, FINAL_STATES, Entry, RunMessage, RunRecord, RunState

SERVER_EXITED: Final = "E-STDIO-EXIT"  # of a call whose server process ended
TOOL_GONE_CODES: Final = frozenset(
    ("E-NOT-FOUND", "E-TOOL-ON-HOLD")
)  # the tool does not exist, or its definition changed
HOLD_POLL_S: Final = 10.0
HOLD_S: Final = 24 * 3600.0  # after it, the attempt has failed
ARGUMENTS_CODE: Final = "E-ARGUMENTS"  # the schema of the tool rejects the arguments
CHILD_POLL_INTERVAL_S: Final = 30.0  # a child run that ends also sends a message
_ITEM: Final = re.compile(r"\[(\d+)\](?=/|$)")


class CallAction(msgspec.Struct, frozen=True, kw_only=True):
    """Call of a step that the engine must make now. If it is unsafe, its journal entry must be on disk first."""

    path: str
    attempt: int
    tool: str
    args: Json
    effect: Effect
    timeout: float | None
    meta: Json | None  # the idempotency key, for a server that honors it
    settles_after: float  # seconds from now until the call has ended here
    is_local: bool = False  # its server ends with this process
    child: Any = None  # the workflow, if the action starts a child run or reads its state
    span: Any = None  # the `StepSpan` of its trace, if it is not the usual one
    budget: Budget | None = None  # limits of the agents in a child run
    began: float | None = None  # of an attempt that is repeated while it waits for an administrator


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Question of a run to a user: for an approval, for data by a form, or whether a call ran."""

    path: str
    kind: Literal["approve", "ask", "unknown"]
    title: str
    form: Json | None = None
    who: tuple[str, ...] = ()
    not_by: str | None = None
    until: float | None = None


class Ending(NamedTuple):
    """End of a workflow run: its final state, and its output or error."""

    state: RunState
    output: Any = None
    error: Json | None = None


class Decision(msgspec.Struct):
    """Next actions of a run, as the planner decided. If there are none, the run waits for its running calls."""

    records: list[Entry] = []  # facts to write
    calls: list[CallAction] = []
    questions: list[Question] = []
    due: float | None = None
    due_at_end: bool = False  # only because the time of the whole run ends then
    end: Ending | None = None
    undoing: bool = False

    @property
    def is_one_unsafe_call(self) -> bool:
        """Return True if the only next action is one unsafe call.

        Then nothing can be planned before the call has ended.
        """
        waits_only = (self.due is None or self.due_at_end) and not self.questions
        return waits_only and len(self.calls) == 1 and self.calls[0].effect is Effect.UNSAFE


class Failure(NamedTuple):
    """Failure of a step. If `unknown` is True, the step may have run."""

    error: Json
    unknown: bool = False


#: Progress of a block of steps: finished, not finished yet, failed, or the run ends here.
Progress: TypeAlias = "Literal['done', 'pending'] | Failure | Ending"
Scope: TypeAlias = dict[str, Any]


class RunMemory:
    """Journal entries of a run, and values computed from them that are expensive to compute again.

    It exists only while the run is in memory.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries: dict[str, list[Entry]] = {}
        self.begun_items: dict[str, set[int]] = {}
        self.values: dict[str, Any] = {}  # conditions and lists, by path
        self.finished: set[str] = set()  # items of a foreach
        self.results: dict[str, list[Any]] = {}  # of a foreach, by path
        self.cursors: dict[str, int] = {}  # first item of a foreach that is not finished, by path
        self.undoable: dict[str, tuple[float, ToolStep, Scope]] = {}
        self.spent = Budget(requests=0)  # by the agents of child runs that have ended
        self.granted: dict[str, Budget] = {}  # limits of child runs that have not ended, by path
        self._ended_children: set[str] = set()
        self.passed: tuple[int, Scope] | None = None  # finished steps of the definition, and what they gave
        self.has_unknown = False  # a step may change its outcome after it was passed: a user settles it
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Add a journal entry, or replace the entry with the same path and attempt."""
        if entry.state == "unknown":
            self.has_unknown, self.passed = True, None
        if entry.kind == "child":
            self._add_child(entry)
        attempts = self.entries.setdefault(entry.path, [])
        for number, known in enumerate(attempts):
            if known.attempt == entry.attempt:
                attempts[number] = entry
                return
        attempts.append(entry)
        for match in _ITEM.finditer(entry.path) if "[" in entry.path else ():
            self.begun_items.setdefault(entry.path[: match.start()], set()).add(int(match[1]))

    def _add_child(self, entry: Entry) -> None:
        """Update the budgets that child runs have used or were granted, from the journal entry of one child run.

        If a child run has ended without a report of what it used, all that it was granted counts as used.
        """
        body: Json = entry.body if isinstance(entry.body, dict) else {}
        limits = body.get("budget")
        granted = msgspec.convert(limits, Budget) if limits is not None else self.granted.get(entry.path)
        if entry.state in ("done", "failed"):
            self.granted.pop(entry.path, None)
            if entry.path not in self._ended_children:
                self._ended_children.add(entry.path)
                usage = body.get("usage")
                used = Budget.from_usage(usage) if usage is not None else granted
                self.spent = self.spent if used is None else self.spent.plus(used)
        elif granted is not None:
            self.granted[entry.path] = granted


class StepExpressions(Protocol):
    """Evaluator of a step's expressions, or of its functions in a Python workflow.

    Each method may raise `ExpressionError`.
    """

    def render(self, value: Any, scope: Scope) -> Any: ...

    def evaluate(self, expression: Any, scope: Scope) -> Any: ...

    def is_true(self, expression: Any, scope: Scope) -> bool: ...


class RunRules(NamedTuple):
    """What a workflow says about its whole run."""

    timeout: float | None
    undo_on_failure: bool
    budget: Budget | None = None  # of all agent steps together


class StepPlanner:
    """Planner of a run's steps at one moment. Subclasses implement `_walk`, which knows the order of the steps."""

    def __init__(
        self,
        run: RunRecord,
        memory: RunMemory,
        messages: Sequence[RunMessage],
        *,
        rules: RunRules,
        live: frozenset[str],
        life: int,
        now: float,
        terms: Callable[[str], CallTerms | None],
        expressions: StepExpressions,
    ) -> None:
        self._run = run
        self._memory = memory
        self._messages = messages
        self._timeout, self._undo_on_failure, self._budget = rules
        self._live = live
        self._life = life
        self._now = now
        self._terms = terms
        self._expressions = expressions
        self._decision = Decision()
        self._stopped: Json | None = None  # nothing new begins: cancelled, or too late

    def decide(self) -> Decision:
        """Return the next actions of the run."""
        cancel = next((each for each in self._messages if each.kind == "cancel"), None)
        ends = self._run.created + self._timeout if self._timeout is not None else None
        if cancel is not None:
            self._stopped = {
                "code": "E-WORKFLOW-CANCELLED",
                "message": f"cancelled by {cancel.by}" if cancel.by else "cancelled",
            }
        elif ends is not None and self._now >= ends:
            self._stopped = {"code": "E-WORKFLOW-TIMEOUT", "message": "the run did not end in time"}
        progress = self._walk()
        if self._stopped is not None:
            self._end_stopped(cancel)
        elif isinstance(progress, Failure):
            self._end_failed(progress)
        elif isinstance(progress, Ending):
            self._end(progress)
        elif ends is not None:
            self._decision.due_at_end = self._decision.due is None
            self._wait_until(ends)
        return self._decision

    def _walk(self) -> Progress:
        """Plan all steps that can begin now.

        Return the progress of the run: "pending", "done", a failure or an ending.
        """
        raise NotImplementedError

    # -- the end

    def _end(self, ending: Ending) -> None:
        """Decide that the run ends with `ending`, unless some of its calls are still running."""
        if not self._live:
            self._decision.calls.clear()
            self._decision.questions.clear()
            self._decision.end = ending

    def _end_stopped(self, cancel: RunMessage | None) -> None:
        assert self._stopped is not None
        if self._live:
            return
        unknown = self._unknown_paths()
        error = {**self._stopped, "executed": "unknown" if unknown else "no", "unknown_steps": unknown}
        if cancel is None:
            self._end_failed(Failure(error, bool(unknown)))
        elif cancel.body.get("undo") or self._is_undoing():  # an undo that has begun ends
            self._end_failed(Failure(error, bool(unknown)), "cancelled", undo=True)
        else:
            self._end(Ending("cancelled", None, error))

    def _end_failed(self, failure: Failure, state: RunState = "failed", *, undo: bool = False) -> None:
        if not (undo or self._undo_on_failure) or not self._memory.undoable:
            is_stuck = state == "failed" and self._has_changed_tool(failure.error)
            self._end(Ending("stuck" if is_stuck else state, None, failure.error))
            return
        if self._live:
            return
        if unknown := self._unknown_paths():
            # A step that may have happened cannot be undone or left: a user decides first.
            for path in unknown:
                self._ask_unknown(path, failure.error.get("message", ""))
            return
        self._stopped = None
        self._decision.undoing = True
        ordered = sorted(
            self._memory.undoable.items(), key=lambda each: each[1][0]
        )  # of equal times the order of steps
        for path, (_, step, scope) in reversed(ordered):
            assert step.undo is not None
            reverse = ToolStep(name=step.name, tool=step.undo.tool, params=step.undo.params)
            try:
                undone = self._tool(reverse, f"undo/{path}", scope, None)
            except ExpressionError as exc:
                undone = Failure(error_of(exc))
            if isinstance(undone, Failure):
                self._end(Ending("stuck", None, {**undone.error, "while": f"undoing {path}", "cause": failure.error}))
                return
            if undone != "done":
                return
        self._end(Ending("undone", None, failure.error))

    def _has_changed_tool(self, error: Json) -> bool:
        """Return True if a step did not run because its tool is gone or has changed. A user may correct that.

        Arguments that do not match the schema of the tool count only if the run has waited, or a process has ended,
        since the run began. Otherwise the definition or the inputs of the run are wrong.
        """
        if error.get("executed") != "no" or "run" in error:  # of a child run
            return False
        if error.get("code") == ARGUMENTS_CODE:
            entries = (each for attempts in self._memory.entries.values() for each in attempts)
            return any(each.kind in ("wait", "ask", "child") or each.life != self._life for each in entries)
        return error.get("code") in TOOL_GONE_CODES

    def _is_undoing(self) -> bool:
        return any(f"undo/{path}" in self._memory.entries for path in self._memory.undoable)

    def _unknown_paths(self) -> list[str]:
        found = []
        for path, attempts in self._memory.entries.items():
            last = attempts[-1]
            if last.effect == Effect.UNSAFE and (
                last.state == "unknown" or (last.state == "begun" and path not in self._live)
            ):
                settled = self._settle(last)
                if settled.state in ("unknown", "begun"):
                    found.append(path)
        return found

    # -- waits and questions

    def _wait(self, step: WaitStep, path: str, scope: Scope) -> Progress:
        def end() -> float:
            if step.seconds is not None:
                return self._now + step.seconds
            return _as_time(self._expressions.evaluate(step.until or "", scope))

        if not self._pass_time(path, end):
            return "pending"
        scope["steps"][step.name] = step_value("done")
        return "done"

    def _pass_time(self, path: str, end: Callable[[], float]) -> bool:
        """Return True if the wait at this path is over; begin the wait if the journal does not have it.

        The journal stores the end of a wait as an absolute time.
        """
        entry = self._last(path)
        if entry is None:
            if self._stopped is not None:
                return False
            entry = self._record(
                Entry(path=path, state="waiting", kind="wait", began=self._now, body={"until": end()}, life=self._life)
            )
        if entry.state == "done":
            return True
        if self._now < entry.body["until"]:
            self._wait_until(entry.body["until"])
            return False
        self._record(replace(entry, state="done", ended=self._now))
        return True

    def _question(self, step: AskStep, path: str, scope: Scope) -> Progress:
        entry = self._last(path)
        if entry is None:
            if self._stopped is not None:
                return "pending"
            title = str(self._expressions.render(step.title, scope))
            until = self._now + step.within if step.within is not None else None
            entry = self._record(
                Entry(
                    path=path,
                    state="waiting",
                    kind="ask",
                    began=self._now,
                    life=self._life,
                    body={"title": title, "until": until},
                )
            )
        if entry.state == "waiting":
            answered = self._answer(step, path, entry)
            if answered is None:
                return "pending"
            entry = self._record(answered)
        if entry.state == "failed":
            return Failure(entry.body)
        scope["steps"][step.name] = step_value("done", entry.body)
        return "done"

    def _answer(self, step: AskStep, path: str, entry: Entry) -> Entry | None:
        until = entry.body["until"]
        for message in self._messages:
            if message.kind != "answer" or message.path != path or (until is not None and message.at > until):
                continue
            if step.approval and not message.body.get("yes"):
                note = message.body.get("note") or ""
                text = f"{path} was denied{f' by {message.by}' if message.by else ''}{f': {note}' if note else ''}"
                error = {"code": "E-WORKFLOW-DENIED", "message": text, "executed": "no", "step": path}
                return replace(entry, state="failed", ended=self._now, body=error)
            data = {"by": message.by, "note": message.body.get("note")} if step.approval else message.body.get("data")
            return replace(entry, state="done", ended=self._now, body=data)
        if until is not None and self._now >= until:
            error = {"code": "E-WORKFLOW-EXPIRED", "message": f"{path} was not answered in time", "executed": "no"}
            return replace(entry, state="failed", ended=self._now, body={**error, "step": path})
        if self._stopped is None:
            self._decision.questions.append(
                Question(
                    path=path,
                    kind="approve" if step.approval else "ask",
                    title=entry.body["title"],
                    form=step.form,
                    who=step.who,
                    not_by=self._run.caller if step.not_by_starter else None,
                    until=until,
                )
            )
            if until is not None:
                self._wait_until(until)
        return None

    # -- child runs

    def _child(self, step: ChildStep, path: str, scope: Scope) -> Progress:
        if path in self._live:
            return "pending"
        entry = self._last(path)
        if entry is not None and entry.state == "waiting":
            entry = self._read_child(path, entry)
            if entry.state == "waiting" and self._now < (ready := (entry.ended or 0.0) + CHILD_POLL_INTERVAL_S):
                self._wait_until(ready)
                return "pending"
        if entry is None or entry.state not in ("done", "failed"):
            if self._stopped is not None:
                return "pending"
            limits = None
            is_started = entry is not None and isinstance(entry.body, dict) and "run" in entry.body
            if not is_started and self._budget is not None and step.uses_models:
                limits = self._grant(self._budget, step.own_budget, path)
                if limits is None:
                    return "pending"  # until other children have ended
                if limits.is_used_up:
                    return Failure(_budget_error(self._budget, path))
            args = entry.args if entry is not None else self._expressions.render(step.params, scope)
            self._decision.calls.append(
                CallAction(
                    path=path,
                    attempt=1,
                    tool=f"workflow:{step.workflow.name}",
                    args=args,
                    effect=Effect.IDEMPOTENT,  # the key of the child is the path
                    timeout=None,
                    meta=None,
                    settles_after=0.0,
                    child=step.workflow,
                    budget=limits,
                )
            )
            return "pending"
        if entry.state == "failed":
            return Failure({**entry.body, "step": path}, entry.body.get("executed") == "unknown")
        data = step.data_of(entry.body["data"])
        scope["steps"][step.name] = step_value("done", data, data if isinstance(data, str) else None)
        if step.assign is not None:
            scope[step.assign] = data
        return "done"

    def _grant(self, budget: Budget, own: Budget | None, path: str) -> Budget | None:
        """Return the budget for the agents of a new child run: the part of `budget` that other child runs leave over.

        It is at most the child's own limit (`own`). None if nothing is left now, but running child runs may leave
        something when they end.
        """
        known = self._memory.granted.get(path)
        if known is not None:
            return known
        left = budget.minus(self._memory.spent.plus(Budget(requests=0, seconds=self._now - self._run.created)))
        others = [each for other, each in self._memory.granted.items() if other != path]
        for each in others:
            left = left.minus(replace(each, seconds=None))  # they use the same seconds
        if left.is_used_up and others:
            return None
        if left.is_used_up:
            return left
        granted = self._memory.granted[path] = left if own is None else own.within(left)
        return granted

    def _read_child(self, path: str, entry: Entry) -> Entry:
        """Return the journal entry of a child run; if the message that the child has ended has arrived, update it."""
        for message in self._messages:
            if message.kind == "child" and message.path == path:
                return self._record(child_outcome(entry, message.body, self._now))
        return entry

    # -- calls

    def _tool(self, step: ToolStep, path: str, scope: Scope, assign: str | None) -> Progress:
        if path in self._live:
            return "pending"
        entry = self._last(path)
        if entry is None:
            args = self._expressions.render(step.params, scope)
            if not self._may_be_lost(step):
                return self._call(step, path, 1, args)
            entry = self._record_lost(step, path, args)
        if entry.state == "begun":
            again = self._after_crash(step, path, entry)
            if again is not None:
                return again
            entry = self._memory.entries[path][-1]
        if entry.state == "unknown":
            entry = self._settle(entry)
        if entry.state == "unknown":
            progress = self._after_unknown(step, path, entry, scope)
            if progress is not None:
                return progress
            entry = self._memory.entries[path][-1]
        if entry.state == "not_executed" and not self._has_failed_as_unknown(step, entry):
            return self._retry(step, path, entry)
        if entry.state in ("failed", "not_executed"):
            may_repeat = self._effect(step, entry) is not Effect.UNSAFE or step.repeatable
            if entry.state == "failed" and step.retry.on_answer and may_repeat and entry.attempt < step.retry.tries:
                return self._retry(step, path, entry)
            return Failure({**entry.body, "step": path})
        scope["steps"][step.name] = step_value("done", entry.body["data"], entry.body.get("text"))
        if assign is not None:
            data = entry.body["data"]
            scope[assign] = data if data is not None else entry.body.get("text")
        if step.undo is not None and path not in self._memory.undoable:
            self._memory.undoable[path] = (entry.ended or 0.0, step, scope)
        if self._has_failed_as_unknown(step, entry):
            error = {"code": "E-WORKFLOW-UNKNOWN", "message": f"{step.tool} had an unknown outcome", "executed": "yes"}
            return Failure({**error, "step": path})
        return "done"

    def _has_failed_as_unknown(self, step: ToolStep, entry: Entry) -> bool:
        """Return True if the step failed because its outcome was unknown, and a user has stated the outcome since.

        Only steps with `on_unknown: fail` fail so. The run stays failed: the statement only decides what is undone.
        """
        return step.on_unknown == "fail" and entry.via == "settle"

    def _may_be_lost(self, step: ToolStep) -> bool:
        """Return True if a step without an entry may have run, because the journal has lost entries."""
        is_doubtful = bool((self._run.variables or {}).get(DOUBT_VARIABLE))
        return is_doubtful and self._stopped is None and _effect(step, self._terms(step.tool)) is Effect.UNSAFE

    def _record_lost(self, step: ToolStep, path: str, args: Json) -> Entry:
        """Record that the outcome of an unsafe step is unknown, because it may have been begun before."""
        body = {
            "code": "E-WORKFLOW-UNKNOWN",
            "message": f"the journal has lost entries, and {step.tool} may have been called before",
            "executed": "unknown",
        }
        return self._record(
            Entry(
                path=path,
                state="unknown",
                tool=step.tool,
                effect=Effect.UNSAFE,
                args=args,
                body=body,
                life=self._life,
                began=self._now,
                ended=self._now,
            )
        )

    def _after_crash(self, step: ToolStep, path: str, entry: Entry) -> Progress | None:
        """Decide about a call that a crash has interrupted: repeat it if it is a read or idempotent.

        If it is unsafe, record its outcome as unknown and return None.
        """
        if self._effect(step, entry) is not Effect.UNSAFE:
            return self._call(step, path, entry.attempt, entry.args)
        self._record(
            replace(
                entry,
                state="unknown",
                ended=self._now,
                body={
                    "code": "E-WORKFLOW-UNKNOWN",
                    "message": f"{entry.tool} was begun, and the process ended before its result was stored",
                    "executed": "unknown",
                },
            )
        )
        return None

    def _after_unknown(self, step: ToolStep, path: str, entry: Entry, scope: Scope) -> Progress | None:
        """Decide about a call that may have run: retry, verify, fail or ask a user.

        None if its outcome is known now.
        """
        if self._effect(step, entry) is not Effect.UNSAFE:
            return self._retry(step, path, entry)
        policy: UnknownPolicy
        note = ""
        if isinstance(step.on_unknown, Verify):
            verified = self._verify(step, step.on_unknown, path, entry, scope)
            if verified is None or verified == "pending":
                return verified
            policy = step.on_unknown.otherwise
            if verified == "open":
                note = f" {step.on_unknown.tool} does not show it, but the server may still run it."
        else:
            policy = step.on_unknown
        if policy == "retry":
            return self._retry(step, path, entry)
        if policy == "fail":
            return Failure({**entry.body, "step": path}, unknown=True)
        self._ask_unknown(path, f"{entry.body.get('message', '')}.{note}" if note else entry.body.get("message", ""))
        return "pending"

    def _verify(
        self, step: ToolStep, verify: Verify, path: str, entry: Entry, scope: Scope
    ) -> Literal["pending", "failed", "open"] | None:
        """Find out whether a call with an unknown outcome ran, by a call of the read-only tool in `verify`.

        Return None if the outcome is known now, "pending" if the read has not ended, "failed" if it failed. Return
        "open" if the read does not show the call, but the server may still execute it: its process has not ended, and
        the author did not state how long the server may take (`after`).
        """
        delay = verify.delay(time_limit(step, self._terms(step.tool)), has_ended=_server_has_ended(entry, self._life))
        ready = max(entry.settles or 0.0, entry.ended or 0.0) + delay
        if self._now < ready:
            self._wait_until(ready)
            return "pending"
        inner = {**scope, "steps": dict(scope["steps"])}
        reader = ToolStep(name="verify", tool=verify.tool, params=verify.params, effect=Effect.READ, on_unknown="fail")
        try:
            progress = self._tool(reader, f"{path}/verify{entry.attempt}", inner, None)
            if progress == "pending":
                return "pending"
            if progress != "done":
                return "failed"
            found = {**scope, "reply": inner["steps"]["verify"]}
            happened = self._expressions.is_true(verify.happened, found)
            result = self._expressions.evaluate(verify.result, found) if happened and verify.result else None
        except ExpressionError:
            return "failed"
        if happened:
            self._record(replace(entry, state="done", via="verify", ended=self._now, body={"data": result}))
        else:
            read = self._last(f"{path}/verify{entry.attempt}")
            if verify.after is None and (read is None or not _server_has_ended(entry, read.life)):
                return "open"
            self._record(replace(entry, state="not_executed", via="verify", ended=self._now))
        return None

    def _settle(self, entry: Entry) -> Entry:
        """Return the journal entry of a call with an unknown outcome, with the outcome that a user has stated.

        If no user has stated it, return the entry unchanged.
        """
        for message in self._messages:
            if message.kind == "settle" and message.path == entry.path:
                if message.body.get("attempt", entry.attempt) != entry.attempt:
                    continue
                if message.body.get("happened"):
                    body = {"data": message.body.get("result"), "settled_by": message.by}
                    return self._record(replace(entry, state="done", via="settle", ended=self._now, body=body))
                return self._record(replace(entry, state="not_executed", via="settle", ended=self._now))
        return entry

    def _ask_unknown(self, path: str, message: str) -> None:
        if any(each.path == path for each in self._decision.questions):
            return
        entry = self._memory.entries[path][-1]
        self._decision.questions.append(
            Question(path=path, kind="unknown", title=f"Did {entry.tool} run? {message}".strip())
        )

    def _retry(self, step: ToolStep, path: str, entry: Entry) -> Progress:
        attempts = self._memory.entries[path]
        extra = sum(1 for each in attempts if each.via)  # proved later: not an attempt of the server
        body = entry.body if isinstance(entry.body, dict) else {}
        limit = step.retry.tries + extra
        is_held = body.get("code") == APPROVAL_CODE or (
            body.get("code") == SERVER_EXITED and step.on_unknown != "fail"  # `verify` then asks a user
        )
        if entry.state == "not_executed" and is_held:
            waiting = self._hold(step, path, entry)
            if waiting is not None:
                return waiting
        if _is_last_attempt(entry, limit):
            if self._is_resumed(attempts, limit):
                return self._call(step, path, entry.attempt + 1, entry.args)
            return Failure({**body, "step": path}, unknown=entry.state == "unknown")
        ended = entry.ended if entry.ended is not None else self._now
        ready = ended + (0.0 if entry.via else step.retry.delay(entry.attempt))
        if self._now < ready:
            self._wait_until(ready)
            return "pending"
        return self._call(step, path, entry.attempt + 1, entry.args)

    def _hold(self, step: ToolStep, path: str, entry: Entry) -> Progress | None:
        """Repeat a call that was not sent, every ten seconds and as the same attempt: an administrator must approve it.

        Or the process of its server has ended so often that it is started again only later (its restart limit). Return
        None after a day: then the attempt has failed.
        """
        ended = entry.ended if entry.ended is not None else self._now
        if ended - entry.began >= HOLD_S:
            return None
        ready = ended + HOLD_POLL_S
        if self._now < ready:
            self._wait_until(ready)
            return "pending"
        return self._call(step, path, entry.attempt, entry.args, entry.began)

    def _is_resumed(self, attempts: Sequence[Entry], limit: int) -> bool:
        """Return True if the last attempt of a step did not run, and a user has resumed the run since.

        Each attempt after which the run became stuck needs its own `resume` message.
        """
        if attempts[-1].state != "not_executed":
            return False
        stuck = sum(1 for each in attempts if each.state == "not_executed" and _is_last_attempt(each, limit))
        return stuck <= sum(1 for message in self._messages if message.kind == "resume")

    def _call(self, step: ToolStep, path: str, attempt: int, args: Json, began: float | None = None) -> Progress:
        if self._stopped is not None:
            return "pending"
        terms = self._terms(step.tool)
        self._decision.calls.append(
            CallAction(
                path=path,
                attempt=attempt,
                tool=step.tool,
                args=args,
                effect=_effect(step, terms),
                timeout=step.timeout,
                meta=self._key_meta(step, terms, path),
                settles_after=time_limit(step, terms),
                is_local=terms is not None and terms.is_local,
                span=step.span,
                began=began,
            )
        )
        return "pending"

    def _effect(self, step: ToolStep, entry: Entry) -> Effect:
        """Return the effect class of a step: as its author states it, else by the rules of the hub for its tool.

        If the author states nothing, a step that was unsafe when it was begun stays unsafe.
        """
        terms = self._terms(step.tool)
        is_stated = step.effect is not None or honours_key(step, terms)
        if entry.effect == Effect.UNSAFE and not is_stated:
            return Effect.UNSAFE
        return _effect(step, terms)

    def _key_meta(self, step: ToolStep, terms: CallTerms | None, path: str) -> Json | None:
        """Return the `_meta` with the idempotency key of a step, which is the same for all its attempts.

        None if the server does not detect repeated calls by a key.
        """
        if terms is None or terms.idempotency_meta_key is None or not step.key_honored:
            return None
        return {terms.idempotency_meta_key: f"{self._run.id}/{path}"[-255:]}

    # -- helpers

    def _last(self, path: str) -> Entry | None:
        attempts = self._memory.entries.get(path)
        return attempts[-1] if attempts else None

    def _record(self, entry: Entry) -> Entry:
        self._memory.add(entry)
        self._decision.records.append(entry)
        return entry

    def _value(self, path: str, compute: Callable[[], Any]) -> Any:
        if path not in self._memory.values:
            self._memory.values[path] = compute()
        return self._memory.values[path]

    def _condition(self, path: str, expression: str, scope: Scope) -> bool:
        return bool(self._value(path, lambda: self._expressions.is_true(expression, scope)))

    def _wait_until(self, due: float) -> None:
        self._decision.due = due if self._decision.due is None else min(due, self._decision.due)


def child_outcome(entry: Entry, child: Json, now: float) -> Entry:
    """Return the journal entry of a step that started a child run, from the child's state, output, error and usage."""
    earlier = entry.body if isinstance(entry.body, dict) else {}
    known = {**earlier, **child}
    facts = {key: known[key] for key in ("run", "budget", "usage", "seconds") if known.get(key) is not None}
    if child["state"] == "done":
        return replace(entry, kind="child", state="done", ended=now, body={"data": child["output"], **facts})
    if child["state"] not in FINAL_STATES:
        return replace(entry, kind="child", state="waiting", ended=now, body=facts)
    cause = child["error"] or {}
    error = {
        "code": cause.get("code") or "E-WORKFLOW",
        "message": f"the run {child['run']} is {child['state']}: {cause.get('message', '')}",
        **{key: cause[key] for key in ("detail", "hint") if cause.get(key)},
        "executed": cause.get("executed", "yes"),
        **facts,
    }
    return replace(entry, kind="child", state="failed", ended=now, body=error)


def _is_last_attempt(entry: Entry, limit: int) -> bool:
    """Return True if no automatic attempt follows this one: `limit` is reached, or its error is not retryable.

    After that, only a user can let the step be attempted again, by resuming the run.
    """
    return entry.attempt >= limit or (isinstance(entry.body, dict) and entry.body.get("retryable") is False)


def _budget_error(budget: Budget, path: str) -> Json:
    limits = {unit: value for unit, value in msgspec.structs.asdict(budget).items() if value is not None}
    return {
        "code": "E-AGENT-BUDGET",
        "message": "the agent steps of the workflow have used up its budget",
        "detail": ", ".join(f"{value:g} {unit}" for unit, value in limits.items()),
        "hint": "raise budget in the workflow file, or limit the budget of each agent step",
        "executed": "no",
        "step": path,
    }


def _server_has_ended(entry: Entry, life: int) -> bool:
    """Return True if the server process that received a call with an unknown outcome has ended.

    `life` is the number of the process that executes the runs now (`RunJournal.life`). A process takes the runs only
    after the local servers of the previous one have ended (`SqliteJournal`).
    """
    code = entry.body.get("code") if isinstance(entry.body, dict) else None
    return code == SERVER_EXITED or (entry.local and entry.life != life)


def _effect(step: ToolStep, terms: CallTerms | None) -> Effect:
    """Return the effect class of a step: as its author states it, else by the rules of the hub for its tool.

    It is always IDEMPOTENT if the server detects repeated calls by their idempotency key.
    """
    if honours_key(step, terms):
        return Effect.IDEMPOTENT
    if step.effect is not None:
        return step.effect
    return terms.effect if terms is not None else Effect.UNSAFE


def time_limit(step: ToolStep, terms: CallTerms | None) -> float:
    """Return the seconds that one attempt of a step may take: by the step itself, else by the rules of its tool."""
    return step.timeout if step.timeout is not None else (terms.timeout if terms is not None else 60.0)


def honours_key(step: ToolStep, terms: CallTerms | None) -> bool:
    """Return True if the step and the server's settings say that the server detects repeated calls by their key."""
    return step.key_honored and terms is not None and terms.idempotency_meta_key is not None


def step_value(state: str, data: Any = None, text: str | None = None, error: Json | None = None) -> Json:
    """Return the value of `steps.NAME` in expressions: an object with state, data, text and error."""
    return {"state": state, "data": data, "text": text, "error": error}


def error_of(exc: ExpressionError) -> Json:
    """Return the stored error of a step whose expression cannot be evaluated."""
    return {"code": exc.code, "message": exc.message, "detail": exc.detail, "executed": "no", "retryable": False}


def _as_time(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    try:
        found = datetime.datetime.fromisoformat(str(value))
    except ValueError as exc:
        raise ExpressionError(f"{value!r} is not a time", hint="use 2026-12-31T08:00:00Z") from exc
    return (found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)).timestamp()


def entry_for(action: CallAction, life: int, now: float, lease_s: float = 0.0) -> Entry:
    """Return the intent of a call: the journal entry that must be on disk before an unsafe call is sent.

    In a cluster, the call is sent within `lease_s` seconds, the duration of the node's lease, or not at all.
    """
    return Entry(
        path=action.path,
        attempt=action.attempt,
        state="begun",
        tool=action.tool,
        effect=action.effect,
        args=action.args,
        life=life,
        began=now if action.began is None else action.began,
        settles=now + lease_s + action.settles_after,
        local=action.is_local and not lease_s,
    )
