"""Record of the calls, results and effects of a test run, and a check that the three agree.

    history = History(effects="effects.txt")
    await history.call(lambda nonce: hub.call_tool("bank.pay", {"nonce": nonce}), unsafe=True, time_limit=5.0)
    ...
    assert check(history) == []

Each call carries its own nonce. The server returns the nonce in its result. When it executes an effect that must not
happen twice, it writes a line `call TAB nonce` to the effects file, like the tool `counter` of the fake servers. Then:

    I1  every call has exactly one outcome, in time
    I2  no result reached another call
    I3  an unsafe effect happened at most once, and it did happen if the result says so
    I4  an effect that happened is never reported as not executed

A failure is any exception with `.executed`: "no", "unknown" or "yes". The tested code needs nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal

GRACE_S: Final = 1.0  # seconds after its time limit within which a call must have ended

ViolationKind = Literal["lost", "twice", "late", "silent", "misplaced", "repeated", "missing", "denied", "strange"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a recorded call as its caller saw it: success or failure, executed or not."""

    name: str  # "ok", "tool_error", "cancelled", or the class of the exception
    executed: str | None  # "no", "unknown" or "yes"; None if the failure does not say
    ended_at: float
    nonce: str | None = None  # nonce in the result
    attempts: int = 1


@dataclass(slots=True)
class Invocation:
    """One recorded call of a test run: its nonce, its time limit and its outcomes so far."""

    nonce: str
    unsafe: bool  # it must not run twice
    time_limit: float  # seconds
    started_at: float
    target: str = ""
    has_effect: bool = True  # executing it leaves a line in the effects file
    outcomes: list[Outcome] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant of a test run (I1 to I4 of this module), with the call's nonce."""

    rule: Literal["I1", "I2", "I3", "I4"]
    kind: ViolationKind
    nonce: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule} {self.nonce}: {self.message}"


def extract_nonce(result: Any) -> str | None:
    """Return the field `nonce` in the structured content of a tool result; None if missing."""
    data = getattr(result, "data", None)
    nonce = data.get("nonce") if isinstance(data, dict) else None
    return nonce if isinstance(nonce, str) else None


class History:
    """Recorder of a test run's calls and their outcomes.

    `effects` is the file to which the called servers write a line for each executed effect.
    """

    def __init__(
        self,
        effects: str | PathLike[str] | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        extract_nonce: Callable[[Any], str | None] = extract_nonce,
    ) -> None:
        self.invocations: dict[str, Invocation] = {}
        self._effects_file = Path(effects) if effects is not None else None
        self._now = now
        self._extract_nonce = extract_nonce
        self._run_id = uuid.uuid4().hex[:8]
        self._call_numbers = itertools.count()

    async def call(
        self,
        make_call: Callable[[str], Awaitable[Any]],
        *,
        unsafe: bool,
        time_limit: float,
        target: str = "",
        has_effect: bool = True,
    ) -> Any:
        """Make a call with a new nonce and record its outcome.

        Returns the result. Returns None for a failure with the attribute `executed`, and raises every other
        failure.
        """
        nonce = self.start_call(unsafe=unsafe, time_limit=time_limit, target=target, has_effect=has_effect)
        try:
            result = await make_call(nonce)
        except asyncio.CancelledError:
            self.record_outcome(nonce, Outcome("cancelled", "unknown", self._now()))
            raise
        except Exception as exc:
            self.record_failure(nonce, exc)
            if not hasattr(exc, "executed"):
                raise
            return None
        self.record_result(nonce, result)
        return result

    def start_call(self, *, unsafe: bool, time_limit: float, target: str = "", has_effect: bool = True) -> str:
        """Record the start of a call and return the new nonce that the call must carry."""
        nonce = f"{self._run_id}-{next(self._call_numbers)}"
        self.invocations[nonce] = Invocation(nonce, unsafe, time_limit, self._now(), target, has_effect)
        return nonce

    def record_result(self, nonce: str, result: Any) -> None:
        name = "tool_error" if getattr(result, "is_error", False) else "ok"
        attempts = getattr(result, "attempts", 1)
        self.record_outcome(nonce, Outcome(name, "yes", self._now(), self._extract_nonce(result), attempts))

    def record_failure(self, nonce: str, exc: BaseException) -> None:
        executed, attempts = getattr(exc, "executed", None), getattr(exc, "attempts", 1)
        self.record_outcome(nonce, Outcome(type(exc).__name__, executed, self._now(), attempts=attempts))

    def record_outcome(self, nonce: str, outcome: Outcome) -> None:
        """Record an outcome of a call. A second outcome is recorded too, so `check` finds it."""
        self.invocations[nonce].outcomes.append(outcome)

    def count_effects(self) -> Counter[str]:
        """Return how often each call ran, by nonce, from the effects file."""
        if self._effects_file is None or not self._effects_file.exists():
            return Counter()
        lines = self._effects_file.read_text(encoding="utf-8", errors="replace").splitlines()
        return Counter(line.rpartition("\t")[2] for line in lines)

    def count_outcomes(self) -> Counter[str]:
        """Return the number of recorded calls for each name of an outcome."""
        return Counter(outcome.name for each in self.invocations.values() for outcome in each.outcomes)


def check(history: History) -> list[str]:
    """Return every broken invariant of a test run as text; empty if all hold."""
    return [str(violation) for violation in find_violations(history)]


def find_violations(history: History) -> Iterator[Violation]:
    """Yield every broken invariant of a test run, given its recorded calls and effects."""
    effects = history.count_effects()
    for call in history.invocations.values():
        yield from _check_single_outcome(call)
        yield from _check_nonce(call)
        yield from _check_effects(call, effects.pop(call.nonce, 0))
    for nonce in effects:
        yield Violation("I3", "strange", nonce, "effect of an unknown call")


def _check_single_outcome(call: Invocation) -> Iterator[Violation]:
    if len(call.outcomes) != 1:
        kind: ViolationKind = "twice" if call.outcomes else "lost"
        yield Violation("I1", kind, call.nonce, f"{call.target} has {len(call.outcomes)} outcomes")
    for outcome in call.outcomes:
        took = outcome.ended_at - call.started_at
        if took > call.time_limit + GRACE_S:
            yield Violation("I1", "late", call.nonce, f"{call.target} took {took:.1f} s of {call.time_limit:g} s")
        if outcome.executed not in ("no", "unknown", "yes"):
            yield Violation("I1", "silent", call.nonce, f"{outcome.name} does not say whether the call ran")


def _check_nonce(call: Invocation) -> Iterator[Violation]:
    for outcome in call.outcomes:
        if outcome.nonce is not None and outcome.nonce != call.nonce:
            yield Violation("I2", "misplaced", call.nonce, f"{call.target} got the result of {outcome.nonce}")


def _check_effects(call: Invocation, effect_count: int) -> Iterator[Violation]:
    if call.unsafe and effect_count > 1:
        yield Violation("I3", "repeated", call.nonce, f"{call.target} took effect {effect_count} times")
    for outcome in call.outcomes:
        if outcome.name == "ok" and call.has_effect and not effect_count:
            yield Violation("I3", "missing", call.nonce, f"{call.target} is reported as executed but had no effect")
        if outcome.executed == "no" and effect_count:
            yield Violation("I4", "denied", call.nonce, f"{call.target} took effect, but {outcome.name} denies it")
