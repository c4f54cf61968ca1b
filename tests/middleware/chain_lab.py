"""What the tests of the stages act with: a clock that moves only by waiting, calls, failures, and an end to reach."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from toolway.errors import CallError, Certainty, OutcomeUnknown, ProtocolError, ServerUnavailable
from toolway.middleware.idempotency import IdempotencyStore, idempotency
from toolway.middleware.replay import replay
from toolway.types import Call, CallResult, Effect, Middleware

KIND_OF = {
    Certainty.NOT_SENT: ServerUnavailable,
    Certainty.REJECTED: ProtocolError,
    Certainty.UNKNOWN: OutcomeUnknown,
    Certainty.EXECUTED: ProtocolError,
}


class Clock:
    """Its own time."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.naps: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


class End:
    """The end of the pipeline: plays what it was given, one after the other, and the last for ever."""

    def __init__(self, *outcomes: CallResult | BaseException) -> None:
        self._outcomes = list(outcomes)
        self.calls: list[Call] = []

    async def __call__(self, call: Call) -> CallResult:
        self.calls.append(call)
        call.state.certainty = Certainty.UNKNOWN
        outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class HeldEnd:
    """An end that answers on request."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.cancelled = 0
        self._answers: list[asyncio.Future[CallResult]] = []

    async def __call__(self, call: Call) -> CallResult:
        self.calls.append(call)
        call.state.certainty, call.state.phase = Certainty.UNKNOWN, "server"
        answer: asyncio.Future[CallResult] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        try:
            return await answer
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def reached(self, count: int = 1) -> None:
        while len(self.calls) < count:
            await asyncio.sleep(0)

    def answer(self, outcome: CallResult | CallError, number: int = -1) -> None:
        if isinstance(outcome, CallResult):
            self._answers[number].set_result(outcome)
        else:
            self._answers[number].set_exception(outcome)


def keyed_stage(store: IdempotencyStore) -> Middleware:
    """The stages of idempotency keys: the one that claims a key, and the one that answers, without gates in between."""
    claim, answer = idempotency(store), replay()
    return lambda call, next: claim(call, lambda claimed: answer(claimed, next))


def a_call(effect: Effect = Effect.UNSAFE, **facts: Any) -> Call:
    facts.setdefault("deadline", 1060.0)
    params = {"name": "t", "arguments": facts.pop("arguments", {"a": 1})}
    return Call("s.t", "tools/call", params, server="s", name="t", effect=effect, **facts)


def a_reply(text: str = "done", **raw: Any) -> CallResult:
    return CallResult("s", "t", {"content": [{"type": "text", "text": text}], **raw})


def failure(
    certainty: Certainty, *, retry_after: float | None = None, retryable: bool = True, hint: str = "", code: str = ""
) -> CallError:
    kind: type[CallError] = KIND_OF[certainty]
    error = kind("it failed", server="s", tool="t", certainty=certainty, retry_after=retry_after, hint=hint)
    error.code = code or error.code
    error.retryable = retryable
    return error


async def outcomes(work: Sequence[Awaitable[CallResult]]) -> list[CallResult | BaseException]:
    return await asyncio.gather(*work, return_exceptions=True)


async def turns(count: int = 10) -> None:
    """Let everything that can continue continue."""
    for _ in range(count):
        await asyncio.sleep(0)


def fixed(value: float) -> Callable[[], float]:
    """Dice that always fall the same way."""
    return lambda: value
