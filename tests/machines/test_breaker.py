"""Breakers under any sequence of overlapping calls, against a model that looks at the whole history every time."""

from __future__ import annotations

import asyncio

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from tests.machines.clock import LoopMachine
from tests.middleware.chain_lab import HeldEnd, a_call, a_reply, failure
from toolway.errors import CallError, Certainty, OutcomeUnknown, ProtocolError, ServerUnavailable
from toolway.middleware.circuit_breaker import BreakerState, CircuitBreakers, circuit_breaker
from toolway.types import CallResult

CLOSED, OPEN, HALF_OPEN = BreakerState

NOBODYS, SERVERS, TOOLS = "nobody's fault", "the server's", "the tool's"
LOST, REFUSED = "the connection was lost", "the connection was refused"
FAULTS = (NOBODYS, SERVERS, LOST, REFUSED, TOOLS, TOOLS)
Trial = asyncio.Task[CallResult]


class Model:
    """What the rules say of one breaker, judged by what has ended since it last closed."""

    def __init__(self) -> None:
        self.position = CLOSED
        self.ended: list[tuple[float, bool]] = []
        self.openings = 0
        self.until = 0.0
        self.closed_at = 0.0
        self.good_trials = 0
        self.trial: Trial | None = None
        self.lost_at = -1.0

    def look(self, now: float) -> None:
        if self.position is OPEN and now >= self.until:
            self.position, self.good_trials, self.trial = HALF_OPEN, 0, None

    def good(self, now: float) -> None:
        self.trial = None
        if self.position is CLOSED:
            self.ended.append((now, True))
        elif self.position is HALF_OPEN:
            self.good_trials += 1
            if self.good_trials == 2:
                self.position, self.closed_at, self.ended = CLOSED, now, []

    def bad(self, now: float, roll: float, began: float, fault: str = SERVERS) -> None:
        is_away = fault in (LOST, REFUSED)
        if self.position is CLOSED:
            if is_away and began < self.lost_at:
                return  # of the same loss
            self.lost_at = now if is_away else self.lost_at
            self.ended.append((now, False))
            if not self._too_many(now):
                return
            self.openings = 0 if now - self.closed_at >= 300 else self.openings
            recent = [good for at, good in self.ended if at > now - 10]
            if fault is LOST and self.closed_at and now - self.closed_at <= 10 and not any(recent):
                is_away = False  # it answers probes and loses every call
        if is_away:
            self.position, self.until, self.trial = OPEN, now + 1.0 - 0.2 * roll, None
            return
        pause = 5.0 * 2**self.openings * (0.8 + 0.4 * roll)
        self.position, self.until, self.trial = OPEN, now + min(60.0, pause), None
        self.openings += 1

    def _too_many(self, now: float) -> bool:
        in_a_row = [good for _, good in self.ended[-5:]]
        recent = [good for at, good in self.ended if at > now - 10]
        return in_a_row == [False] * 5 or (len(recent) >= 20 and 2 * recent.count(False) >= len(recent))


class BreakerMachine(LoopMachine):
    """One tool of one server. Calls overlap, and may end long after the breaker that they passed has opened."""

    def __init__(self) -> None:
        super().__init__()
        self.board = CircuitBreakers(lambda: self.roll)
        self.stage = circuit_breaker(self.board, self.loop.time, self.probe)
        self.end = HeldEnd()
        self.roll = 0.5
        self.alive = True
        self.away = False  # it refuses connections, where it is not alive
        self.probes = 0
        self.server, self.tool = Model(), Model()
        self.under_way: dict[Trial, int] = {}  # and the number of its answer
        self.began: dict[Trial, float] = {}

    async def probe(self, server: str) -> None:
        self.probes += 1
        if not self.alive:
            raise an_error(REFUSED) if self.away else failure(Certainty.NOT_SENT)

    # -- what happens -------------------------------------------------------------------------------------------------

    @rule(gap=st.sampled_from([0.1, 0.4, 1.0, 3.0, 5.0, 12.0, 75.0, 301.0]))
    def time_passes(self, gap: float) -> None:
        self.loop.wait(gap)

    @rule(alive=st.booleans(), away=st.booleans(), roll=st.sampled_from([0.0, 0.25, 0.5, 0.999]))
    def the_world_changes(self, alive: bool, away: bool, roll: float) -> None:
        self.alive, self.away, self.roll = alive, away, roll

    @rule(count=st.sampled_from([1, 1, 2, 6]))
    def calls_begin(self, count: int) -> None:
        for _ in range(count):
            self.one_begins()

    def one_begins(self) -> None:
        made, probes = len(self.end.calls), self.probes
        expected, asked = self.expected()
        task = self.loop.create_task(self.made())
        self.loop.turn(6)
        assert self.probes - probes == asked
        if expected is None:
            assert len(self.end.calls) == made + 1
            self.under_way[task], self.began[task] = made, self.loop.time()
            self.tool.trial = task if self.tool.position is HALF_OPEN else None
        else:
            assert len(self.end.calls) == made
            self.check_refusal(task, expected)

    async def made(self) -> CallResult:
        return await self.stage(a_call(deadline=1e9), self.end)

    def expected(self) -> tuple[float | None, int]:
        """The reported wait of the call (None if it is made), and the number of probes."""
        now, asked = self.loop.time(), 0
        self.server.look(now)
        while self.server.position is HALF_OPEN:
            asked += 1
            fault = REFUSED if self.away else SERVERS
            self.server.good(now) if self.alive else self.server.bad(now, self.roll, now, fault)
        if self.server.position is OPEN:
            return self.server.until - now, asked
        self.tool.look(now)
        if self.tool.position is OPEN:
            return self.tool.until - now, asked
        return (0.5 if self.tool.trial is not None else None), asked

    def check_refusal(self, task: Trial, wait: float) -> None:
        error = task.exception()
        assert isinstance(error, ServerUnavailable)
        assert (error.code, error.executed, error.retryable) == ("E-BREAKER-OPEN", "no", False)
        assert error.retry_after is not None and abs(error.retry_after - wait) < 1e-6

    @precondition(lambda self: self.under_way)
    @rule(which=st.integers(0, 100), count=st.integers(1, 8))
    def some_succeed(self, which: int, count: int) -> None:
        for task, number in self.chosen(which, count):
            self.end.answer(a_reply(), number)
            self.ended(task, NOBODYS, good=True)

    @precondition(lambda self: self.under_way)
    @rule(which=st.integers(0, 100), count=st.integers(1, 8), fault=st.sampled_from(FAULTS))
    def some_fail(self, which: int, count: int, fault: str) -> None:
        for task, number in self.chosen(which, count):
            self.end.answer(an_error(fault), number)
            self.ended(task, fault, good=False)

    @precondition(lambda self: self.under_way)
    @rule(which=st.integers(0, 100))
    def one_leaves(self, which: int) -> None:
        for task, _ in self.chosen(which, 1):
            task.cancel()
            self.ended(task, NOBODYS, good=False)

    def chosen(self, which: int, count: int) -> list[tuple[Trial, int]]:
        known = list(self.under_way.items())
        return [known.pop(which % len(known)) for _ in range(min(count, len(known)))]

    def ended(self, task: Trial, fault: str, *, good: bool) -> None:
        self.loop.turn(6)
        assert task.cancelled() or (task.exception() is None) is good
        del self.under_way[task]
        began = self.began.pop(task)
        self.report(self.tool, task is self.tool.trial, SERVERS if fault is TOOLS else "", good, began)
        self.report(self.server, False, fault if fault in (SERVERS, LOST, REFUSED) else "", good, began)
        if task is self.tool.trial:
            self.tool.trial = None

    def report(self, model: Model, trial: bool, fault: str, good: bool, began: float) -> None:
        """A call from before the breaker opened does not affect its state now."""
        if model.position is CLOSED or trial:
            if fault:
                model.bad(self.loop.time(), self.roll, began, fault)
            elif good:
                model.good(self.loop.time())

    # -- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def breakers_match_their_models(self) -> None:
        assert self.board.server("s").state is self.server.position
        assert self.board.tool("s", "t").state is self.tool.position


def an_error(fault: str) -> CallError:
    if fault is TOOLS:
        return ProtocolError("an internal error", rpc_code=-32603, certainty=Certainty.UNKNOWN)
    if fault is LOST:
        return OutcomeUnknown("reset", certainty=Certainty.UNKNOWN, code="E-HTTP-RESET")
    if fault is REFUSED:
        return ServerUnavailable("refused", certainty=Certainty.NOT_SENT, code="E-HTTP-CONNECT")
    return failure(Certainty.UNKNOWN if fault is SERVERS else Certainty.REJECTED)


def test_breakers_match_their_models() -> None:
    run_state_machine_as_test(BreakerMachine)
