"""What was called, what was answered, what really happened; and whether the three agree.

    history = History(effects="effects.txt")
    await history.call(lambda nonce: hub.call_tool("bank.pay", {"nonce": nonce}), unsafe=True, limit=5.0)
    ...
    assert check(history) == []

Each call carries a nonce of its own. The server says it back in its answer, and writes a line `call TAB nonce` into
the effects file when it does what must not be done twice, as the tool `counter` of our fake servers does. Then:

    I1  every call has exactly one outcome, in time
    I2  no answer reached another call
    I3  what must not happen twice did not; and it did happen where the answer says so
    I4  what happened is never reported as not executed

A failure is any exception with `.executed`: "no", "unknown" or "yes". Nothing else is asked of whoever is tested.
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

GRACE: Final = 1.0  # seconds after its limit within which a call must have ended

Kind = Literal["lost", "twice", "late", "silent", "misplaced", "repeated", "missing", "denied", "strange"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended, as its caller saw it."""

    name: str  # "ok", "tool_error", "cancelled", or the class of the exception
    executed: str | None  # "no", "unknown" or "yes"; None where the failure does not say
    at: float
    nonce: str | None = None  # that the answer carried
    attempts: int = 1


@dataclass(slots=True)
class Invocation:
    nonce: str
    unsafe: bool  # it must not be executed twice
    limit: float  # seconds it may take
    began: float
    target: str = ""
    effect: bool = True  # executing it leaves a line in the effects file
    outcomes: list[Outcome] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Violation:
    """One promise that was broken for one call."""

    rule: Literal["I1", "I2", "I3", "I4"]
    kind: Kind
    nonce: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule} {self.nonce}: {self.what}"


def nonce_of(reply: Any) -> str | None:
    """The nonce in the structured content of a reply, where there is one."""
    data = getattr(reply, "data", None)
    nonce = data.get("nonce") if isinstance(data, dict) else None
    return nonce if isinstance(nonce, str) else None


class History:
    """Records a run. `effects` is the file in which the servers write what they do."""

    def __init__(
        self,
        effects: str | PathLike[str] | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        nonce_of: Callable[[Any], str | None] = nonce_of,
    ) -> None:
        self.invocations: dict[str, Invocation] = {}
        self._file = Path(effects) if effects is not None else None
        self._now = now
        self._nonce_of = nonce_of
        self._run = uuid.uuid4().hex[:8]
        self._numbers = itertools.count()

    async def call(
        self,
        make: Callable[[str], Awaitable[Any]],
        *,
        unsafe: bool,
        limit: float,
        target: str = "",
        effect: bool = True,
    ) -> Any:
        """Make a call with a nonce of its own and record how it ends. Returns the reply, or None for a failure that
        says whether it was executed. Raises everything else."""
        nonce = self.begin(unsafe=unsafe, limit=limit, target=target, effect=effect)
        try:
            reply = await make(nonce)
        except asyncio.CancelledError:
            self.end(nonce, Outcome("cancelled", "unknown", self._now()))
            raise
        except Exception as exc:
            self.failed(nonce, exc)
            if not hasattr(exc, "executed"):
                raise
            return None
        self.answered(nonce, reply)
        return reply

    def begin(self, *, unsafe: bool, limit: float, target: str = "", effect: bool = True) -> str:
        """A call begins; its nonce."""
        nonce = f"{self._run}-{next(self._numbers)}"
        self.invocations[nonce] = Invocation(nonce, unsafe, limit, self._now(), target, effect)
        return nonce

    def answered(self, nonce: str, reply: Any) -> None:
        name = "tool_error" if getattr(reply, "is_error", False) else "ok"
        attempts = getattr(reply, "attempts", 1)
        self.end(nonce, Outcome(name, "yes", self._now(), self._nonce_of(reply), attempts))

    def failed(self, nonce: str, exc: BaseException) -> None:
        executed, attempts = getattr(exc, "executed", None), getattr(exc, "attempts", 1)
        self.end(nonce, Outcome(type(exc).__name__, executed, self._now(), attempts=attempts))

    def end(self, nonce: str, outcome: Outcome) -> None:
        """A call has an outcome; a second one is recorded too, for `check` to find."""
        self.invocations[nonce].outcomes.append(outcome)

    def effects(self) -> Counter[str]:
        """How often each nonce took effect."""
        if self._file is None or not self._file.exists():
            return Counter()
        lines = self._file.read_text(encoding="utf-8", errors="replace").splitlines()
        return Counter(line.rpartition("\t")[2] for line in lines)

    def outcomes(self) -> Counter[str]:
        """How many calls ended how."""
        return Counter(outcome.name for each in self.invocations.values() for outcome in each.outcomes)


def check(history: History) -> list[str]:
    """Every promise that was broken, as sentences; empty where all were kept."""
    return [str(violation) for violation in violations(history)]


def violations(history: History) -> Iterator[Violation]:
    """Every promise that was broken."""
    effects = history.effects()
    for call in history.invocations.values():
        yield from _one_outcome_in_time(call)
        yield from _own_answer(call)
        yield from _effects_as_said(call, effects.pop(call.nonce, 0))
    for nonce in effects:
        yield Violation("I3", "strange", nonce, "an effect of a call that nobody made")


def _one_outcome_in_time(call: Invocation) -> Iterator[Violation]:
    if len(call.outcomes) != 1:
        kind: Kind = "twice" if call.outcomes else "lost"
        yield Violation("I1", kind, call.nonce, f"{call.target} has {len(call.outcomes)} outcomes")
    for outcome in call.outcomes:
        took = outcome.at - call.began
        if took > call.limit + GRACE:
            yield Violation("I1", "late", call.nonce, f"{call.target} took {took:.1f} s of {call.limit:g} s")
        if outcome.executed not in ("no", "unknown", "yes"):
            yield Violation("I1", "silent", call.nonce, f"{outcome.name} does not say whether it was executed")


def _own_answer(call: Invocation) -> Iterator[Violation]:
    for outcome in call.outcomes:
        if outcome.nonce is not None and outcome.nonce != call.nonce:
            yield Violation("I2", "misplaced", call.nonce, f"{call.target} got the answer of {outcome.nonce}")


def _effects_as_said(call: Invocation, times: int) -> Iterator[Violation]:
    if call.unsafe and times > 1:
        yield Violation("I3", "repeated", call.nonce, f"{call.target} took effect {times} times")
    for outcome in call.outcomes:
        if outcome.name == "ok" and call.effect and not times:
            yield Violation("I3", "missing", call.nonce, f"{call.target} is said to be done and was not")
        if outcome.executed == "no" and times:
            yield Violation("I4", "denied", call.nonce, f"{call.target} happened, and {outcome.name} denies it")
