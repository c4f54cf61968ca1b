"""The retry stage: whether a call that failed is tried again, from what it does and how far it got.

              C0 not sent   C1 refused            C2 possible   C3 executed
    READ      again         again after the wait  again         no
    IDEMPOTENT again        again after the wait  again         no
    UNSAFE    again         again after the wait  NEVER         no

Decisions are plain functions of facts; the clock, the dice and the waiting are handed in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from toolway.config.spec import Retry
from toolway.errors import CallError, Certainty, OutcomeUnknown
from toolway.model import Call, Effect, Next, Reply, Stage
from toolway.resilience.budget import Budget

MAX_ATTEMPTS: Final = 5  # whatever the settings say
LONGEST_WAIT: Final = 60.0  # a server that asks for more is not waited for
JITTER_AFTER: Final = 0.1  # on top of a wait that the server named, so that not all come back at once
LEAST_LEFT: Final = 0.05  # an attempt with less time than this is not begun

_AGAIN: Final = {
    (Effect.READ, Certainty.C0): True,
    (Effect.READ, Certainty.C1): True,
    (Effect.READ, Certainty.C2): True,
    (Effect.READ, Certainty.C3): False,
    (Effect.IDEMPOTENT, Certainty.C0): True,
    (Effect.IDEMPOTENT, Certainty.C1): True,
    (Effect.IDEMPOTENT, Certainty.C2): True,
    (Effect.IDEMPOTENT, Certainty.C3): False,
    (Effect.UNSAFE, Certainty.C0): True,
    (Effect.UNSAFE, Certainty.C1): True,
    (Effect.UNSAFE, Certainty.C2): False,
    (Effect.UNSAFE, Certainty.C3): False,
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known when an attempt has failed."""

    effect: Effect
    certainty: Certainty
    attempts: int  # made so far, this one included
    left: float  # seconds until the deadline
    retry_after: float | None = None  # seconds, where the server named them
    retryable: bool = True  # False where the failure says that trying again is useless


def may_repeat(effect: Effect, certainty: Certainty) -> bool:
    """The table: may a call of this effect be sent again after a failure of this certainty?"""
    return _AGAIN[effect, certainty]


def wait_before_retry(facts: Facts, policy: Retry, backoff: Iterator[float], dice: Callable[[], float]) -> float | None:
    """Seconds to wait before the next attempt, or None where there is none."""
    if not facts.retryable or not may_repeat(facts.effect, facts.certainty):
        return None
    if facts.attempts >= min(policy.attempts, MAX_ATTEMPTS):
        return None
    if facts.retry_after is not None:
        if facts.retry_after > LONGEST_WAIT:
            return None
        wait = facts.retry_after * (1 + JITTER_AFTER * dice())
    else:
        wait = next(backoff)
    return wait if wait + LEAST_LEFT < facts.left else None


def delays(base: float, multiplier: float, cap: float, dice: Callable[[], float]) -> Iterator[float]:
    """Waits with full jitter: each is random between nothing and a ceiling that grows."""
    ceiling = base
    while True:
        yield min(cap, ceiling) * dice()
        ceiling = min(cap, ceiling * multiplier)


def _as_a_whole(failure: CallError, certainty: Certainty) -> CallError:
    """The last failure, told of the whole call: if an earlier attempt may have run, so may the call."""
    if certainty <= (failure.certainty or Certainty.C0) or certainty.executed == "no":
        return failure
    whole = OutcomeUnknown(
        f"an earlier attempt of {failure.server}.{failure.tool} may have been executed, and then: {failure.what}",
        server=failure.server,
        tool=failure.tool,
        certainty=certainty,
        attempts=failure.attempts,
        retry_after=failure.retry_after,
        evidence=failure.evidence,
        fix=failure.fix,
        code=failure.code,
    )
    whole.__cause__ = failure
    return whole


def retry(
    policy_of: Callable[[Call], Retry],
    budget_of: Callable[[str], Budget],
    now: Callable[[], float],
    dice: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
    on_failed: Callable[[Call, CallError, float | None], None] = lambda *_: None,
) -> Stage:
    """`on_failed` hears of every try that failed, and of the wait before the next one, where there is one."""

    async def stage(call: Call, next: Next) -> Reply:
        budget = budget_of(call.server)
        call.attempt.begin()
        budget.attempt(now())
        try:
            return await next(call)
        except CallError as exc:
            failure = exc
        return await again(call, next, budget, failure)

    async def again(call: Call, next: Next, budget: Budget, failure: CallError) -> Reply:
        policy, attempt = policy_of(call), call.attempt
        lost = delays(policy.delay, policy.multiplier, policy.cap, dice)
        throttled = delays(policy.throttled_delay, policy.multiplier, policy.cap, dice)
        while True:
            attempt.certainty = certainty = failure.certainty or Certainty.C0
            facts = Facts(
                call.effect,
                certainty,
                attempt.number,
                call.deadline - now(),
                failure.retry_after,
                failure.retryable,
            )
            backoff = throttled if certainty is Certainty.C1 else lost
            wait = wait_before_retry(facts, policy, backoff, dice)
            failure.attempts = attempt.number
            if wait is None or not budget.allow(now()):
                on_failed(call, failure, None)
                raise _as_a_whole(failure, attempt.judge())
            on_failed(call, failure, wait)
            attempt.phase = "retry"
            try:
                await sleep(wait)
                attempt.begin()
                return replace(await next(call), attempts=attempt.number)
            except CallError as exc:
                failure = exc
            finally:
                budget.done()

    return stage
