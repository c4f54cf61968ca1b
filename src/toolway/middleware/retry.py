"""Retry middleware: decides by effect and certainty whether a failed call is retried.

                C0 not sent   C1 rejected           C2 unknown    C3 executed
    READ        retry         retry after a wait    retry         no
    IDEMPOTENT  retry         retry after a wait    retry         no
    UNSAFE      retry         retry after a wait    NEVER         no

Retries may add at most a fifth to a server's load (`RetryBudget`). Decisions are pure functions; the clock, random
numbers, and sleep are arguments.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from toolway.config.schema import MAX_ATTEMPTS, RetryPolicy
from toolway.errors import CallError, Certainty, OutcomeUnknown
from toolway.middleware.circuit_breaker import BREAKER_OPEN_CODE
from toolway.types import Call, CallHandler, CallResult, Effect

MAX_RETRY_AFTER_S: Final = 60.0  # seconds; a longer Retry-After of a server means no retry
RETRY_AFTER_JITTER: Final = 0.1  # share added to a server's Retry-After, so clients do not all return at once
MAX_BREAKER_WAIT_S: Final = 1.0  # seconds; a call that is being retried waits for a circuit breaker that long
MIN_TIME_LEFT_S: Final = 0.05  # seconds; an attempt with less time left is not started

_RETRYABLE: Final = {
    (Effect.READ, Certainty.NOT_SENT): True,
    (Effect.READ, Certainty.REJECTED): True,
    (Effect.READ, Certainty.UNKNOWN): True,
    (Effect.READ, Certainty.EXECUTED): False,
    (Effect.IDEMPOTENT, Certainty.NOT_SENT): True,
    (Effect.IDEMPOTENT, Certainty.REJECTED): True,
    (Effect.IDEMPOTENT, Certainty.UNKNOWN): True,
    (Effect.IDEMPOTENT, Certainty.EXECUTED): False,
    (Effect.UNSAFE, Certainty.NOT_SENT): True,
    (Effect.UNSAFE, Certainty.REJECTED): True,
    (Effect.UNSAFE, Certainty.UNKNOWN): False,
    (Effect.UNSAFE, Certainty.EXECUTED): False,
}


def retry(
    policy_for: Callable[[Call], RetryPolicy],
    budget_for: Callable[[str], RetryBudget],
    now: Callable[[], float],
    random: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
    on_failed: Callable[[Call, CallError, float | None], None] = lambda *_: None,
    update: Callable[[Call], Call] = lambda call: call,
) -> RetryMiddleware:
    """Return middleware that retries a failed call if that is safe.

    `on_failed` is called for every failed attempt, with the seconds until the next attempt, or None for the last one.
    `update` returns the call with its effect as known now, because the first tool list may have arrived in the
    meantime.
    """

    return RetryMiddleware(policy_for, budget_for, now, random, sleep, on_failed, update)


class RetryMiddleware:
    """Middleware that retries a failed call; `retry` creates it."""

    def __init__(
        self,
        policy_for: Callable[[Call], RetryPolicy],
        budget_for: Callable[[str], RetryBudget],
        now: Callable[[], float],
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        on_failed: Callable[[Call, CallError, float | None], None],
        update: Callable[[Call], Call],
    ) -> None:
        self._policy_for = policy_for
        self._budget_for = budget_for
        self._now = now
        self._random = random
        self._sleep = sleep
        self._on_failed = on_failed
        self._update = update

    async def __call__(self, call: Call, next: CallHandler) -> CallResult:
        budget = self._budget_for(call.server)
        call.state.begin_attempt()
        budget.record_attempt(self._now())
        try:
            return await next(call)
        except CallError as exc:
            failure = exc
        return await self._retry_failed(call, next, budget, failure)

    async def resume(self, call: Call, wait: CallHandler, next: CallHandler) -> CallResult:
        """Await, with `wait`, the first attempt of a call, which was sent before the call entered the middleware chain.

        If it fails, retry it with `next`, if that is safe.
        """
        try:
            return await wait(call)
        except CallError as exc:
            failure = exc
        return await self._retry_failed(call, next, self._budget_for(call.server), failure)

    async def _retry_failed(self, call: Call, next: CallHandler, budget: RetryBudget, failure: CallError) -> CallResult:
        now, random, on_failed = self._now, self._random, self._on_failed
        call = self._update(call)
        policy, attempt = self._policy_for(call), call.state
        loss_backoff = backoff_delays(policy.initial_backoff, policy.backoff_multiplier, policy.max_backoff, random)
        throttle_backoff = backoff_delays(
            max(policy.rate_limited_backoff, policy.initial_backoff),
            policy.backoff_multiplier,
            policy.max_backoff,
            random,
        )
        while True:
            attempt.certainty = certainty = failure.certainty or Certainty.NOT_SENT
            facts = FailureFacts(
                call.effect,
                certainty,
                attempt.attempt_number,
                call.deadline - now(),
                failure.retry_after,
                failure.retryable or is_short_pause(failure, attempt.attempt_number),
            )
            backoff = throttle_backoff if certainty is Certainty.REJECTED else loss_backoff
            wait = next_delay(facts, policy, backoff, random)
            failure.attempts = attempt.attempt_number
            if wait is None or not budget.try_acquire(now()):
                if is_held_by_effect(facts, policy) and _may_declare_effect(call):
                    failure.hint = _with_effect_hint(failure, call.name)
                on_failed(call, failure, None)
                raise _with_overall_outcome(failure, attempt.overall_certainty())
            on_failed(call, failure, wait)
            attempt.phase = "retry"
            try:
                await self._sleep(wait)
                attempt.begin_attempt()
                return replace(await next(call), attempts=attempt.attempt_number)
            except CallError as exc:
                failure = exc
            finally:
                budget.release()


# -- decision ----------------------------------------------------------------------------------------------------------


class FailureFacts(msgspec.Struct, frozen=True):
    """What `next_delay` needs to know about a failed attempt."""

    effect: Effect
    certainty: Certainty
    attempts: int  # so far, including this one
    time_left_s: float  # seconds until the deadline
    retry_after: float | None = None  # seconds, if the server sent Retry-After
    retryable: bool = True  # False if the error makes a retry useless


def is_retryable(effect: Effect, certainty: Certainty) -> bool:
    """Return True if a call with this effect may be sent again after a failure with this certainty."""
    return _RETRYABLE[effect, certainty]


def next_delay(
    facts: FailureFacts, policy: RetryPolicy, backoff: Iterator[float], random: Callable[[], float]
) -> float | None:
    """Return the seconds to wait before the next attempt, or None for no retry."""
    if not facts.retryable or not is_retryable(facts.effect, facts.certainty):
        return None
    if facts.attempts >= min(policy.max_attempts, MAX_ATTEMPTS):
        return None
    if facts.retry_after is not None and facts.retry_after > MAX_RETRY_AFTER_S:
        return None
    if facts.retry_after is None:
        wait = next(backoff)
    elif facts.certainty is Certainty.NOT_SENT:  # our own estimate: it never shortens the configured delay
        wait = max(facts.retry_after, next(backoff))
    else:
        wait = facts.retry_after * (1 + RETRY_AFTER_JITTER * random())
    return wait if wait + MIN_TIME_LEFT_S < facts.time_left_s else None


def is_short_pause(failure: CallError, attempts: int) -> bool:
    """Return True if a retry found the circuit breaker open, perhaps due to its own attempts.

    A call's first attempt fails at once in that case, so no one waits for a server that is known to be down.
    """
    pause = failure.retry_after
    return failure.code == BREAKER_OPEN_CODE and attempts > 1 and pause is not None and pause <= MAX_BREAKER_WAIT_S


def is_held_by_effect(facts: FailureFacts, policy: RetryPolicy) -> bool:
    """Return True if a failed call would be retried if its tool's effect were known."""
    is_last = facts.attempts >= policy.max_attempts
    return facts.retryable and not is_last and facts.effect is Effect.UNSAFE and facts.certainty is Certainty.UNKNOWN


def _may_declare_effect(call: Call) -> bool:
    """Return True if nothing says whether the tool may run again, so a hint about that helps."""
    settings = call.policy.settings if call.policy is not None else None
    declared = settings is not None and (settings.effect is not None or settings.idempotent is not None)
    return call.method == "tools/call" and call.idempotent is None and not declared


def _with_effect_hint(failure: CallError, tool: str) -> str:
    why = (
        "not repeated because the tool doesn't say that it is safe to repeat: set effect or idempotent for it, "
        f'such as "tools": {{"{tool}": {{"effect": "idempotent"}}}}'
    )
    if why in failure.hint:  # another gateway has said it
        return failure.hint
    return f"{failure.hint}; {why}" if failure.hint else why


def backoff_delays(base: float, multiplier: float, cap: float, random: Callable[[], float]) -> Iterator[float]:
    """Yield retry delays in seconds with full jitter: random, below a growing ceiling."""
    ceiling = base
    while True:
        yield min(cap, ceiling) * random()
        ceiling = min(cap, ceiling * multiplier)


def _with_overall_outcome(failure: CallError, certainty: Certainty) -> CallError:
    """Return the error of a call after its last attempt: the last failure, or `OutcomeUnknown`.

    `OutcomeUnknown` replaces the failure if an earlier attempt may have run.
    """
    if certainty <= (failure.certainty or Certainty.NOT_SENT) or certainty.executed == "no":
        return failure
    whole = OutcomeUnknown(
        f"an earlier attempt of {failure.server}.{failure.tool} may have run; last error: {failure.message}",
        server=failure.server,
        tool=failure.tool,
        certainty=certainty,
        attempts=failure.attempts,
        retry_after=failure.retry_after,
        detail=failure.detail,
        hint=failure.hint,
        code=failure.code,
    )
    whole.__cause__ = failure
    return whole


# -- budget ------------------------------------------------------------------------------------------------------------

BUDGET_WINDOW_S: Final = 10  # seconds
RETRY_SHARE: Final = 0.2  # retries per call of the window
MIN_RETRIES: Final = 3  # concurrent retries that are always allowed


class RetryBudget:
    """Limits a server's retries to a share of its calls in the last 10 s.

    A few concurrent retries are always allowed. No I/O: the time is an argument.
    """

    def __init__(self, share: float = RETRY_SHARE, min_retries: int = MIN_RETRIES) -> None:
        self._share = share
        self._min_retries = min_retries
        self._attempts = [0] * BUDGET_WINDOW_S
        self._retries = [0] * BUDGET_WINDOW_S
        self._second = 0
        self.active = 0
        self.denied = 0

    def record_attempt(self, now: float) -> None:
        """Count the first attempt of a call; the number of retries is limited to a share of these."""
        if int(now) != self._second:
            self._advance(now)
        self._attempts[self._second % BUDGET_WINDOW_S] += 1

    def try_acquire(self, now: float) -> bool:
        """Take one retry from the server's retry budget. Return False if the budget is used up.

        Call `release` after the retry.
        """
        self._advance(now)
        used, attempts = sum(self._retries), sum(self._attempts)
        if self.active >= self._min_retries and used + 1 > self._share * attempts:
            self.denied += 1
            return False
        self._retries[self._second % BUDGET_WINDOW_S] += 1
        self.active += 1
        return True

    def release(self) -> None:
        """Record that a retry has ended. Call it once per retry that `try_acquire` allowed."""
        self.active -= 1

    def _advance(self, now: float) -> None:
        """Move the time window of the budget to `now`: reset the counts of seconds that are too old."""
        second = int(now)
        if second == self._second:
            return
        for passed in range(min(second - self._second, BUDGET_WINDOW_S)):
            self._attempts[(second - passed) % BUDGET_WINDOW_S] = 0
            self._retries[(second - passed) % BUDGET_WINDOW_S] = 0
        self._second = max(second, self._second)
