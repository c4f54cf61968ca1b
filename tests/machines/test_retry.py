"""Many calls running at once through the retry stage: every attempt is one that the table and the budget allow."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from tests.machines.clock import LoopMachine
from tests.middleware.chain_lab import failure
from toolway.config.schema import RetryPolicy
from toolway.errors import CallError, Certainty
from toolway.middleware.retry import RetryBudget, retry
from toolway.types import Call, CallResult, Effect

C0, C1, C2, C3 = Certainty
NEVER = {(Effect.UNSAFE, C2), *((effect, C3) for effect in Effect)}  # the table, by what it forbids
LEEWAY = 1e-6


@dataclass(frozen=True)
class Failed:
    """An attempt that failed, and what the rules say about the next one."""

    at: float
    error: CallError
    certainty: Certainty
    wait: tuple[float, float] | None  # the shortest and the longest; None if it is the last one


@dataclass(eq=False)
class RunningCall:
    """One call, and what has happened to it."""

    call: Call
    allowed: int
    task: asyncio.Task[CallResult] = field(init=False)
    attempts: int = 0
    failures: list[Failed] = field(default_factory=list)
    answer: asyncio.Future[CallResult] | None = None  # of the running attempt

    @property
    def running(self) -> bool:
        return not self.task.done()

    @property
    def retrying(self) -> bool:
        """It waits for its next attempt, or makes it."""
        return self.running and len(self.failures) > 0

    def wait_after(self, now: float, error: CallError, certainty: Certainty) -> tuple[float, float] | None:
        left = self.call.deadline - now
        if (self.call.effect, certainty) in NEVER or self.attempts >= min(self.allowed, 5):
            return None
        if not error.retryable or left <= 0:
            return None
        if error.retry_after is not None:
            return (error.retry_after, error.retry_after * 1.1) if error.retry_after <= min(60, left) else None
        refused = certainty is C1
        earlier = sum((f.certainty is C1) == refused and f.error.retry_after is None for f in self.failures)
        return 0.0, min(20.0, (1.0 if refused else 0.05) * 2**earlier)


class RetryMachine(LoopMachine):
    def __init__(self) -> None:
        super().__init__()
        self.budget = RetryBudget()
        self.roll = 0.5
        self.all: list[RunningCall] = []
        self.calls_at: list[float] = []
        self.retries_at: list[float] = []
        self.stage = retry(
            lambda call: RetryPolicy(max_attempts=self.running_call(call).allowed),
            lambda _: self.budget,
            self.loop.time,
            lambda: self.roll,
            asyncio.sleep,
        )

    def running_call(self, call: Call) -> RunningCall:
        return next(made_call for made_call in self.all if made_call.call is call)

    @property
    def waiting(self) -> list[RunningCall]:
        return [made_call for made_call in self.all if made_call.answer is not None]

    @property
    def running(self) -> list[RunningCall]:
        return [made_call for made_call in self.all if made_call.running]

    # -- the end of the pipeline --------------------------------------------------------------------------------------

    async def end(self, call: Call) -> CallResult:
        made_call = self.running_call(call)
        made_call.attempts += 1
        if made_call.attempts == 1:
            self.calls_at.append(self.loop.time())
        self.check_attempt(made_call)
        made_call.answer = self.loop.create_future()
        try:
            return await made_call.answer
        finally:
            made_call.answer = None

    def check_attempt(self, made_call: RunningCall) -> None:
        assert made_call.attempts == len(made_call.failures) + 1
        if made_call.failures:
            last, now = made_call.failures[-1], self.loop.time()
            assert last.wait is not None, f"sent again after {last}"
            assert last.wait[0] - LEEWAY <= now - last.at <= last.wait[1] + LEEWAY
            assert now < made_call.call.deadline

    # -- what happens -------------------------------------------------------------------------------------------------

    @rule(effect=st.sampled_from(Effect), allowed=st.integers(1, 6), time=st.sampled_from([0.1, 5.0, 70.0, 900.0]))
    def begins(self, effect: Effect, allowed: int, time: float) -> None:
        call = Call("s.t", "tools/call", {}, server="s", name="t", effect=effect, deadline=self.loop.time() + time)
        made_call = RunningCall(call, allowed)
        self.all.append(made_call)
        made_call.task = self.loop.create_task(self.reached(call))
        self.loop.turn(3)

    async def reached(self, call: Call) -> CallResult:
        return await self.stage(call, self.end)

    @precondition(lambda self: self.waiting)
    @rule(
        which=st.integers(0, 100),
        certainty=st.sampled_from(Certainty),
        asked=st.sampled_from([None, None, 0.0, 1.0, 59.9, 60.0, 60.1, 1e9]),
        retryable=st.sampled_from([True, True, True, False]),
        roll=st.sampled_from([0.0, 0.5, 0.999]),
    )
    def fails(self, which: int, certainty: Certainty, asked: float | None, retryable: bool, roll: float) -> None:
        self.roll = roll
        self.fail(self.waiting[which % len(self.waiting)], certainty, asked, retryable)

    @precondition(lambda self: len(self.waiting) > 3)
    @rule(certainty=st.sampled_from([C0, C1, C2]))
    def all_fail(self, certainty: Certainty) -> None:
        for made_call in self.waiting:
            self.fail(made_call, certainty, None, True)

    def fail(self, made_call: RunningCall, certainty: Certainty, asked: float | None, retryable: bool) -> None:
        now, error = self.loop.time(), failure(certainty, retry_after=asked, retryable=retryable)
        failed = Failed(now, error, certainty, made_call.wait_after(now, error, certainty))
        affordable = self.affordable(made_call)
        refused = self.budget.denied
        made_call.failures.append(failed)
        assert made_call.answer is not None
        made_call.answer.set_exception(error)
        self.loop.turn(3)
        if made_call.running:
            assert failed.wait is not None and affordable
            self.retries_at.append(now)
        else:
            self.check_end(made_call, failed, refused=self.budget.denied > refused, affordable=affordable)

    def affordable(self, made_call: RunningCall) -> bool:
        """The budget, by all calls of the last ten seconds. The attempt that failed has left it already."""
        oldest = int(self.loop.time()) - 10
        calls = sum(int(at) > oldest for at in self.calls_at)
        retries = sum(int(at) > oldest for at in self.retries_at)
        others = sum(each.retrying for each in self.all if each is not made_call)
        return others < 3 or retries + 1 <= 0.2 * calls

    def check_end(self, made_call: RunningCall, failed: Failed, *, refused: bool, affordable: bool) -> None:
        error = made_call.task.exception()
        assert isinstance(error, CallError)
        assert failed.error in (error, error.__cause__)
        assert error.attempts == made_call.attempts
        assert error.executed == max(f.certainty for f in made_call.failures).executed
        if refused:
            assert not affordable
        elif failed.wait is not None:  # the only reason left: no time for the wait and an attempt
            assert made_call.call.deadline - failed.at <= failed.wait[1] + 0.05

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 100))
    def succeeds(self, which: int) -> None:
        made_call = self.waiting[which % len(self.waiting)]
        assert made_call.answer is not None
        made_call.answer.set_result(CallResult("s", "t", {}))
        self.loop.turn(3)
        assert made_call.task.result().attempts == made_call.attempts

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 100))
    def leaves(self, which: int) -> None:
        made_call = self.running[which % len(self.running)]
        made = made_call.attempts
        made_call.task.cancel()
        self.loop.turn(3)
        assert made_call.task.cancelled()
        assert made_call.attempts == made

    @rule(seconds=st.sampled_from([0.01, 0.1, 1.0, 5.0, 11.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.loop.wait(seconds)

    @invariant()
    def budget_counts_running_retries(self) -> None:
        assert self.budget.active == sum(made_call.retrying for made_call in self.all)

    def finish(self) -> None:
        for made_call in self.running:
            made_call.task.cancel()
        self.loop.turn()
        assert self.budget.active == 0


def test_every_attempt_is_allowed_by_table_and_budget() -> None:
    run_state_machine_as_test(RetryMachine)
