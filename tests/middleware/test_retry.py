"""Retries: what may be repeated, how long is waited, and when it is over."""

from __future__ import annotations

import asyncio
from itertools import islice, product

import pytest

from tests.middleware.chain_lab import Clock, End, a_call, a_reply, failure, fixed, outcomes
from toolway.config.schema import RetryPolicy
from toolway.errors import CallError, Certainty
from toolway.middleware.circuit_breaker import BREAKER_OPEN_CODE
from toolway.middleware.retry import FailureFacts, RetryBudget, backoff_delays, is_retryable, next_delay, retry
from toolway.types import Call, CallResult, Effect, Middleware

pytestmark = pytest.mark.anyio

C0, C1, C2, C3 = Certainty
READ, IDEMPOTENT, UNSAFE = Effect
AGAIN = {
    READ: (True, True, True, False),
    IDEMPOTENT: (True, True, True, False),
    UNSAFE: (True, True, False, False),
}
TABLE = [(effect, certainty, AGAIN[effect][certainty]) for effect, certainty in product(Effect, Certainty)]


def facts(
    effect: Effect = READ, certainty: Certainty = C0, attempts: int = 1, left: float = 1000.0, **more
) -> FailureFacts:
    return FailureFacts(effect, certainty, attempts, left, **more)


def waiting(known: FailureFacts, policy: RetryPolicy = RetryPolicy(), dice: float = 0.5) -> float | None:  # noqa: B008  frozen
    return next_delay(known, policy, iter([0.03]), fixed(dice))


def a_stage(
    clock: Clock,
    budget: RetryBudget | None = None,
    policy: RetryPolicy = RetryPolicy(),  # noqa: B008  frozen
    dice: float = 0.5,
) -> Middleware:
    budget = budget or RetryBudget()
    return retry(lambda _: policy, lambda _: budget, clock, fixed(dice), clock.sleep)


async def fails(stage: Middleware, call: Call, end: End) -> CallError:
    with pytest.raises(CallError) as caught:
        await stage(call, end)
    return caught.value


# -- the table ---------------------------------------------------------------------------------------------------------


def test_table_has_twelve_rows() -> None:
    assert len(TABLE) == 12


@pytest.mark.parametrize(("effect", "certainty", "again"), TABLE)
def test_retryable_is_decided_by_the_table(effect, certainty, again) -> None:
    assert is_retryable(effect, certainty) is again
    assert (waiting(facts(effect, certainty)) is not None) is again


@pytest.mark.parametrize(("effect", "certainty", "again"), TABLE)
@pytest.mark.promise("B7", "C5")
async def test_stage_retries_as_the_table_allows(effect, certainty, again) -> None:
    end = End(failure(certainty), a_reply())
    (outcome,) = await outcomes([a_stage(Clock())(a_call(effect), end)])
    assert len(end.calls) == (2 if again else 1)
    assert isinstance(outcome, CallResult) is again


@pytest.mark.promise("B7")
async def test_possibly_executed_unsafe_call_is_never_retried() -> None:
    lost = failure(C2)
    end = End(lost, a_reply())
    error = await fails(a_stage(Clock()), a_call(UNSAFE), end)
    assert error is lost
    assert (len(end.calls), error.executed, error.attempts) == (1, "unknown", 1)


async def test_failure_without_a_certainty_was_not_sent() -> None:
    end = End(CallError("no idea"), a_reply())
    await a_stage(Clock())(a_call(UNSAFE), end)
    assert len(end.calls) == 2


async def test_tool_error_is_an_answer() -> None:
    end = End(a_reply("no such file", isError=True), a_reply())
    assert (await a_stage(Clock())(a_call(READ), end)).is_error
    assert len(end.calls) == 1


# -- how often ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("allowed", "made"), [(0, 1), (1, 1), (2, 2), (3, 3), (6, 6), (21, 21)])
@pytest.mark.user_trial("5")
async def test_configured_number_of_attempts_is_made(allowed, made) -> None:
    end = End(failure(C0))
    error = await fails(a_stage(Clock(), policy=RetryPolicy(max_attempts=allowed)), a_call(READ, deadline=1e9), end)
    assert (len(end.calls), error.attempts) == (made, made)


@pytest.mark.promise("C5")
def test_default_is_three_attempts() -> None:
    assert waiting(facts(attempts=2)) is not None
    assert waiting(facts(attempts=3)) is None


def test_non_retryable_failure_is_not_retried() -> None:
    assert waiting(facts(retryable=False)) is None
    assert waiting(facts(certainty=C1, retry_after=1.0, retryable=False)) is None


async def test_non_retryable_server_error_is_not_retried() -> None:
    end = End(failure(C0, retryable=False), a_reply())
    await fails(a_stage(Clock()), a_call(READ), end)
    assert len(end.calls) == 1


# -- how long ----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("B8", "C5")
def test_backoff_is_random_below_a_doubling_ceiling() -> None:
    ceilings = [0.05 * 2**n for n in range(9)]
    assert list(islice(backoff_delays(0.05, 2.0, 20.0, fixed(1.0)), 9)) == pytest.approx(ceilings)
    assert list(islice(backoff_delays(0.05, 2.0, 20.0, fixed(0.5)), 9)) == pytest.approx([c / 2 for c in ceilings])
    assert list(islice(backoff_delays(0.05, 2.0, 20.0, fixed(0.0)), 9)) == [0.0] * 9


def test_no_backoff_is_longer_than_the_cap() -> None:
    waits = list(islice(backoff_delays(0.05, 2.0, 20.0, fixed(1.0)), 2000))
    assert max(waits) == waits[-1] == 20.0
    assert list(islice(backoff_delays(30.0, 2.0, 20.0, fixed(1.0)), 3)) == [20.0, 20.0, 20.0]


@pytest.mark.parametrize(("certainty", "base"), [(C0, 0.05), (C1, 1.0), (C2, 0.05)])
async def test_first_backoff_is_short_after_a_loss_long_if_rejected(certainty, base) -> None:
    clock = Clock()
    end = End(failure(certainty), failure(certainty), a_reply())
    await a_stage(clock, dice=0.999)(a_call(READ), end)
    assert clock.naps == pytest.approx([0.999 * base, 0.999 * base * 2])


@pytest.mark.parametrize(
    ("dice", "factor"), [(0.0, 1.0), (0.5, 1.05), (0.999999, 1.0999999)], ids=["exactly", "in between", "a tenth more"]
)
@pytest.mark.parametrize("asked", [0.0, 0.5, 7.0, 60.0])
def test_retry_after_is_kept_with_a_tenth_of_jitter(asked, dice, factor) -> None:
    assert waiting(facts(certainty=C1, retry_after=asked), dice=dice) == pytest.approx(asked * factor)


def test_retry_after_above_a_minute_is_not_waited_for() -> None:
    assert waiting(facts(certainty=C1, retry_after=60.001)) is None
    assert waiting(facts(certainty=C1, retry_after=1e9)) is None


@pytest.mark.parametrize("dice", [0.0, 0.5, 0.999999])
def test_wait_beyond_the_deadline_is_not_started(dice) -> None:
    for left in (-1.0, 0.0, 5.0, 10.0):
        assert waiting(facts(certainty=C1, retry_after=10.0, left=left), dice=dice) is None
    assert waiting(facts(certainty=C1, retry_after=10.0, left=11.1), dice=dice) is not None


def test_attempt_without_time_left_is_not_started() -> None:
    assert waiting(facts(left=0.08)) is None  # 0.03 of waiting and 0.05 that an attempt needs
    assert waiting(facts(left=0.081)) == 0.03


@pytest.mark.user_trial("4")
@pytest.mark.parametrize("own_estimate", [None, 0.05, 0.9])
async def test_configured_backoff_applies_despite_a_shorter_estimate(own_estimate) -> None:
    clock = Clock()
    began, times = clock.now, []

    async def refused(call: Call) -> CallResult:
        times.append(clock.now - began)
        raise failure(C0, retry_after=own_estimate)

    policy = RetryPolicy(max_attempts=6, initial_backoff=1.0, backoff_multiplier=2.0)
    with pytest.raises(CallError):
        await a_stage(clock, policy=policy, dice=1.0)(a_call(UNSAFE), refused)
    assert times == pytest.approx([0, 1, 3, 7, 15, 31])


@pytest.mark.user_trial("4")
async def test_rejected_call_is_not_retried_sooner_than_configured() -> None:
    clock = Clock()
    policy = RetryPolicy(initial_backoff=5.0)
    await a_stage(clock, policy=policy, dice=1.0)(a_call(READ), End(failure(C1), a_reply()))
    assert clock.naps == [5.0]


@pytest.mark.user_trial("5")
async def test_breaker_opened_by_own_retries_does_not_end_them() -> None:
    clock = Clock()
    is_open = failure(C0, retry_after=0.8, retryable=False, code=BREAKER_OPEN_CODE)
    end = End(failure(C0), is_open, a_reply())
    await a_stage(clock, dice=1.0)(a_call(READ), end)
    assert clock.naps == [0.05, 0.8]
    await fails(a_stage(clock), a_call(READ), End(is_open, a_reply()))  # a later call is rejected at once
    long = failure(C0, retry_after=5.0, retryable=False, code=BREAKER_OPEN_CODE)
    await fails(a_stage(clock), a_call(READ), End(failure(C0), long, a_reply()))


@pytest.mark.user_trial("6")
async def test_unrepeated_unsafe_failure_names_the_setting() -> None:
    lost = failure(C2, hint="see the log")
    error = await fails(a_stage(Clock()), a_call(UNSAFE), End(lost))
    assert error.hint.startswith("see the log; not repeated because the tool doesn't say that it is safe to repeat: ")
    assert '"effect": "idempotent"' in error.hint
    once = RetryPolicy(max_attempts=1)
    for unexplained in (
        await fails(a_stage(Clock(), policy=once), a_call(UNSAFE), End(failure(C2))),
        await fails(a_stage(Clock()), a_call(UNSAFE, idempotent=False), End(failure(C2))),
        await fails(a_stage(Clock()), a_call(UNSAFE), End(failure(C2, retryable=False))),
        await fails(a_stage(Clock()), a_call(READ), End(failure(C2))),
        await fails(a_stage(Clock()), a_call(UNSAFE), End(failure(C3))),
    ):
        assert "not repeated" not in unexplained.hint


async def test_long_retry_after_reaches_the_caller_at_once() -> None:
    clock = Clock()
    error = await fails(a_stage(clock), a_call(READ), End(failure(C1, retry_after=61.0), a_reply()))
    assert (error.retry_after, clock.naps, error.attempts) == (61.0, [], 1)


@pytest.mark.promise("B7")
async def test_unsafe_call_waits_for_retry_after_too() -> None:
    clock = Clock()
    end = End(failure(C1, retry_after=2.0), a_reply())
    await a_stage(clock)(a_call(UNSAFE), end)
    assert clock.naps == pytest.approx([2.1])
    assert len(end.calls) == 2


@pytest.mark.promise("C5")
async def test_deadline_ends_retrying() -> None:
    clock = Clock()
    end = End(failure(C1, retry_after=20.0))
    error = await fails(a_stage(clock, policy=RetryPolicy(max_attempts=5)), a_call(READ, deadline=clock.now + 50), end)
    assert (len(end.calls), error.retry_after) == (3, 20.0)
    assert clock.now < 1050


# -- the truth about the whole -----------------------------------------------------------------------------------------


async def test_possibly_executed_earlier_attempt_is_not_forgotten() -> None:
    error = await fails(a_stage(Clock()), a_call(READ), End(failure(C2), failure(C0)))
    assert (error.certainty, error.executed, error.attempts) == (C2, "unknown", 3)


async def test_answer_reports_its_attempts() -> None:
    assert (await a_stage(Clock())(a_call(READ), End(a_reply()))).attempts == 1
    assert (await a_stage(Clock())(a_call(READ), End(failure(C0), failure(C2), a_reply()))).attempts == 3


async def test_unsent_attempts_report_not_executed() -> None:
    error = await fails(a_stage(Clock()), a_call(UNSAFE), End(failure(C0), failure(C1), failure(C0)))
    assert error.executed == "no"


async def test_waiting_call_reports_its_retry_phase() -> None:
    call, seen = a_call(READ), []

    async def nap(seconds: float) -> None:
        seen.append((call.state.phase, call.state.attempt_number, call.state.overall_certainty()))

    stage = retry(lambda _: RetryPolicy(), lambda _: RetryBudget(), Clock(), fixed(0.5), nap)
    await stage(call, End(failure(C2), a_reply()))
    assert seen == [("retry", 1, C2)]
    assert (call.state.phase, call.state.attempt_number) == ("queue", 2)


# -- the budget --------------------------------------------------------------------------------------------------------


async def test_exhausted_budget_fails_the_call_with_its_own_error() -> None:
    clock, budget = Clock(), RetryBudget(min_retries=0)
    own = failure(C0)
    error = await fails(a_stage(clock, budget), a_call(READ), End(own, a_reply()))
    assert error is own
    assert (clock.naps, budget.denied, budget.active) == ([], 1, 0)


async def test_retry_is_given_back_however_it_ends() -> None:
    budget, clock = RetryBudget(), Clock()
    stage = a_stage(clock, budget)
    await stage(a_call(READ), End(failure(C0), a_reply()))
    await fails(stage, a_call(READ), End(failure(C0)))
    with pytest.raises(ZeroDivisionError):
        await stage(a_call(READ), End(failure(C0), ZeroDivisionError()))
    with pytest.raises(asyncio.CancelledError):
        await stage(a_call(READ), End(failure(C0), asyncio.CancelledError()))
    assert budget.active == 0


async def test_caller_leaving_during_the_wait_gives_its_retry_back() -> None:
    budget, asleep = RetryBudget(), asyncio.Event()

    async def nap(seconds: float) -> None:
        asleep.set()
        await asyncio.Event().wait()

    end = End(failure(C2), a_reply())
    call = a_call(READ)
    stage = retry(lambda _: RetryPolicy(), lambda _: budget, Clock(), fixed(0.5), nap)
    task = asyncio.ensure_future(stage(call, end))
    await asleep.wait()
    assert budget.active == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (task.cancelled(), budget.active, len(end.calls)) == (True, 0, 1)
    assert call.state.overall_certainty() is C2


async def test_storm_of_failing_calls_stays_within_the_budget() -> None:
    """300 calls at once, each of which could be tried three times."""
    budget, gate = RetryBudget(), asyncio.Event()
    sent = 0

    async def end(call: Call) -> CallResult:
        nonlocal sent
        sent += 1
        await gate.wait()
        raise failure(C0)

    stage = a_stage(Clock(), budget)
    work = [asyncio.ensure_future(stage(a_call(READ), end)) for _ in range(300)]
    await asyncio.sleep(0)
    gate.set()
    assert not any(isinstance(o, CallResult) for o in await outcomes(work))
    assert 300 < sent <= 300 * 1.25 + 3
    assert budget.active == 0
