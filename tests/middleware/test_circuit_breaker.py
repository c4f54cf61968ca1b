"""The breaker stage: which failures count against server or tool, and how a paused server is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.middleware.chain_lab import Clock, End, HeldEnd, a_call, a_reply, failure, fixed, outcomes, turns
from toolway.errors import (
    AccessDenied,
    CallError,
    CallTimeout,
    Certainty,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    ProtocolError,
    ServerUnavailable,
)
from toolway.middleware import circuit_breaker as circuit_breaker_module
from toolway.middleware.circuit_breaker import BreakerState, CircuitBreakers, circuit_breaker
from toolway.types import Call, CallResult, Middleware

pytestmark = pytest.mark.anyio

C0, C1, C2, C3 = Certainty


class Bench:
    """One server with its breakers, a clock, and a sign of life that can be had or not."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.board = CircuitBreakers(fixed(0.5))
        self.probes = 0
        self.sign_of_life: Callable[[], None] = lambda: None
        self.stage: Middleware = circuit_breaker(self.board, self.clock, self._probe)

    async def _probe(self, server: str) -> None:
        assert server == "s"
        self.probes += 1
        await asyncio.sleep(0)
        self.sign_of_life()

    def no_life(self) -> None:
        raise failure(C0)

    @property
    def server(self) -> BreakerState:
        return self.board.server("s").state

    @property
    def tool(self) -> BreakerState:
        return self.board.tool("s", "t").state

    async def fail(self, error: BaseException, times: int = 5, **facts: Any) -> None:
        for _ in range(times):
            await outcomes([self.stage(a_call(**facts), End(error))])


async def refused(stage: Middleware, call: Call | None = None) -> ServerUnavailable:
    end = End(a_reply())
    with pytest.raises(ServerUnavailable) as caught:
        await stage(call or a_call(), end)
    assert end.calls == []
    return caught.value


@pytest.mark.parametrize(
    ("error", "server", "tool"),
    [
        (
            ServerUnavailable("connection refused", certainty=C0, code="E-HTTP-CONNECT"),
            BreakerState.OPEN,
            BreakerState.CLOSED,
        ),
        (OutcomeUnknown("reset, 500", certainty=C2, code="E-HTTP-RESET"), BreakerState.OPEN, BreakerState.CLOSED),
        (CallTimeout("silence", certainty=C2), BreakerState.CLOSED, BreakerState.OPEN),
        (ProtocolError("an internal error", rpc_code=-32603, certainty=C2), BreakerState.CLOSED, BreakerState.OPEN),
        (ProtocolError("no answer at all", certainty=C2), BreakerState.CLOSED, BreakerState.OPEN),
    ],
    ids=["not reached", "lost", "silent", "internal", "no answer"],
)
async def test_failure_counts_against_the_server_or_the_tool(error, server, tool) -> None:
    bench = Bench()
    await bench.fail(error)
    assert (bench.server, bench.tool) == (server, tool)


@pytest.mark.parametrize(
    "error",
    [
        ProtocolError("invalid params", rpc_code=-32602, certainty=C1),
        ProtocolError("an error of the application", rpc_code=-5, certainty=C3),
        Overloaded("429", certainty=C1, retry_after=1.0),
        Overloaded("our own line is full", certainty=C0),
        AccessDenied("401", certainty=C1),
        NotFound("no such tool"),
        asyncio.CancelledError(),
    ],
    ids=["4xx", "application", "429", "our own shedding", "401", "unknown", "cancelled"],
)
async def test_failure_unrelated_to_the_server_does_not_count(error) -> None:
    bench = Bench()
    await bench.fail(error, 30)
    assert (bench.server, bench.tool) == (BreakerState.CLOSED, BreakerState.CLOSED)


async def test_tool_error_is_a_success_of_the_server() -> None:
    bench = Bench()
    for _ in range(3):
        await bench.fail(failure(C2), 4)
        assert (await bench.stage(a_call(), End(a_reply(isError=True)))).is_error
    assert (bench.server, bench.tool) == (BreakerState.CLOSED, BreakerState.CLOSED)


async def test_deadline_counts_against_a_silent_tool() -> None:
    bench = Bench()
    await bench.fail(asyncio.CancelledError(), deadline=bench.clock.now)  # `End` has sent it: C2
    assert (bench.server, bench.tool) == (BreakerState.CLOSED, BreakerState.OPEN)


async def test_deadline_does_not_count_when_nothing_was_sent() -> None:
    bench = Bench()

    async def never_sent(call: Call) -> CallResult:
        raise asyncio.CancelledError

    for _ in range(10):
        await outcomes([bench.stage(a_call(deadline=bench.clock.now), never_sent)])
    assert bench.tool is BreakerState.CLOSED


async def test_open_breaker_rejects_at_once_with_retry_after() -> None:
    bench = Bench()
    await bench.fail(failure(C0))
    bench.clock.now += 2
    error = await refused(bench.stage)
    assert (error.code, error.certainty, error.executed) == ("E-BREAKER-OPEN", C0, "no")
    assert (error.retry_after, error.retryable) == (3.0, False)
    assert (error.server, error.tool) == ("s", "t")


async def test_breakers_are_separate_per_server() -> None:
    bench = Bench()
    await bench.fail(failure(C0))
    await refused(bench.stage)
    other = Call("u.t", "tools/call", {}, server="u", name="t", deadline=2000.0)
    assert (await bench.stage(other, End(a_reply()))).text == "done"


async def test_breakers_are_separate_per_tool() -> None:
    bench = Bench()
    await bench.fail(ProtocolError("broken", certainty=C2))
    await refused(bench.stage)
    other = Call("s.u", "tools/call", {}, server="s", name="u", deadline=2000.0)
    assert (await bench.stage(other, End(a_reply()))).text == "done"


# -- the server is tried again -----------------------------------------------------------------------------------------


async def test_open_server_is_probed_twice_before_any_call() -> None:
    bench = Bench()
    await bench.fail(failure(C0))
    bench.clock.now += 5
    end = End(a_reply())
    probes_before_the_call: list[int] = []

    async def watch(call: Call) -> CallResult:
        probes_before_the_call.append(bench.probes)
        return await end(call)

    await bench.stage(a_call(), watch)
    assert (probes_before_the_call, bench.server) == ([2], BreakerState.CLOSED)


async def test_failed_probe_reopens_the_breaker_without_a_call() -> None:
    bench = Bench()
    await bench.fail(failure(C0))
    bench.clock.now += 5
    bench.sign_of_life = bench.no_life
    error = await refused(bench.stage)
    assert (bench.probes, bench.server, error.retry_after) == (1, BreakerState.OPEN, 10.0)


async def test_calls_during_a_probe_are_rejected_at_once() -> None:
    bench = Bench()
    await bench.fail(failure(C0))
    bench.clock.now += 5
    work = [bench.stage(a_call(), End(a_reply())) for _ in range(20)]
    found = await outcomes(work)
    assert sum(isinstance(o, CallResult) for o in found) == 1
    assert sum(isinstance(o, ServerUnavailable) for o in found) == 19
    assert bench.probes == 2


async def test_caller_cancelled_during_a_probe_allows_the_next() -> None:
    bench = Bench()
    await bench.fail(failure(C0))
    bench.clock.now += 5
    leaving = asyncio.ensure_future(bench.stage(a_call(), End(a_reply())))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert leaving.cancelled()
    assert (await bench.stage(a_call(), End(a_reply()))).text == "done"


# -- a tool is tried again ---------------------------------------------------------------------------------------------


async def test_tool_is_tried_by_one_call_at_a_time() -> None:
    bench = Bench()
    await bench.fail(ProtocolError("broken", certainty=C2))
    bench.clock.now += 5
    end = HeldEnd()
    first = asyncio.ensure_future(bench.stage(a_call(), end))
    await end.reached()
    await refused(bench.stage)
    end.answer(a_reply())
    await first
    assert bench.tool is BreakerState.HALF_OPEN
    await bench.stage(a_call(), End(a_reply()))
    assert (bench.tool, bench.probes) == (BreakerState.CLOSED, 0)


@pytest.mark.parametrize(
    "end_of_trial",
    [failure(C1), failure(C0), failure(C2), asyncio.CancelledError()],
    ids=["refused", "not sent", "lost", "left"],
)
async def test_inconclusive_tool_trial_allows_the_next(end_of_trial) -> None:
    bench = Bench()
    await bench.fail(ProtocolError("broken", certainty=C2))
    bench.clock.now += 5
    await bench.fail(end_of_trial, 1)
    assert bench.tool is BreakerState.HALF_OPEN
    assert (await bench.stage(a_call(), End(a_reply()))).text == "done"


@pytest.mark.parametrize("leaves", [False, True], ids=["answered", "cancelled"])
async def test_end_of_an_earlier_call_does_not_end_the_trial(leaves) -> None:
    bench, end = Bench(), HeldEnd()
    old = asyncio.ensure_future(bench.stage(a_call(), end))
    await end.reached()
    await bench.fail(ProtocolError("broken", certainty=C2))
    bench.clock.now += 5
    trial = asyncio.ensure_future(bench.stage(a_call(), end))
    await end.reached(2)
    old.cancel() if leaves else end.answer(a_reply(), 0)
    await asyncio.gather(old, return_exceptions=True)
    try:
        await refused(bench.stage)
    finally:
        trial.cancel()
        await asyncio.gather(trial, return_exceptions=True)


async def test_internal_error_in_a_trial_does_not_block_the_tool() -> None:
    bench = Bench()
    await bench.fail(ProtocolError("broken", certainty=C2))
    bench.clock.now += 5
    await bench.fail(ZeroDivisionError(), 1)
    bench.clock.now += 3600
    assert (await bench.stage(a_call(), End(a_reply()))).text == "done"


# -- the board ---------------------------------------------------------------------------------------------------------


async def test_restarted_server_starts_with_closed_breakers() -> None:
    bench = Bench()
    await bench.fail(failure(C0))
    await bench.fail(ProtocolError("broken", certainty=C2))
    bench.board.remove_server("s")
    assert (bench.server, bench.tool) == (BreakerState.CLOSED, BreakerState.CLOSED)
    bench.board.remove_server("unknown")


async def test_reconnect_resets_the_server_breaker_but_not_its_tools() -> None:
    bench = Bench()
    await bench.fail(failure(C0))
    await bench.fail(ProtocolError("broken", certainty=C2), deadline=1e9)
    bench.board.on_reconnect("s")
    await bench.fail(ProtocolError("broken", certainty=C2))
    bench.board.on_reconnect("s")
    assert (bench.server, bench.tool) == (BreakerState.CLOSED, BreakerState.OPEN)


def test_tool_breakers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker_module, "MAX_TOOL_BREAKERS", 10)
    board = CircuitBreakers(fixed(0.5))
    first = board.tool("s", "0")
    for n in range(30):
        board.tool("s", str(n))
    assert board.tool("s", "29") is board.tool("s", "29")
    assert board.tool("s", "0") is not first


async def test_call_sent_before_the_breaker_opened_gets_its_answer() -> None:
    bench, end = Bench(), HeldEnd()
    slow = asyncio.ensure_future(bench.stage(a_call(), end))
    await end.reached()
    await bench.fail(failure(C0))
    end.answer(a_reply("late"))
    assert (await slow).text == "late"
    await turns()
    await refused(bench.stage)


async def test_errors_pass_through_unchanged() -> None:
    for error in (failure(C0), failure(C1), failure(C2), failure(C3)):
        with pytest.raises(CallError) as caught:
            await Bench().stage(a_call(), End(error))
        assert caught.value is error


async def test_process_exit_does_not_count() -> None:
    bench = Bench()
    bench.stage = circuit_breaker(bench.board, bench.clock, bench._probe, lambda _: True)
    await bench.fail(failure(C2), 10)
    assert bench.server is BreakerState.CLOSED


# -- shared with others-------------------------------------------------------------------------------------------------


def _record_openings(bench: Bench) -> list[tuple[object, ...]]:
    heard: list[tuple[object, ...]] = []
    bench.board.on_opened = lambda *what: heard.append(what)
    bench.board.on_manual_change = lambda *what: heard.append(("person", *what))
    return heard


async def test_opened_breaker_is_reported_once() -> None:
    bench = Bench()
    heard = _record_openings(bench)
    await bench.fail(failure(C0), times=4)
    assert heard == []
    await bench.fail(failure(C0), times=3)
    assert heard == [("s", "", 5.0)]
    await bench.fail(CallTimeout("silence", certainty=C2))
    bench.clock.now += 5.0
    bench.sign_of_life = bench.no_life
    await refused(bench.stage)
    assert heard[1:] == [("s", "", 10.0)]  # it was tried, and opened again


async def test_opened_tool_breaker_is_reported_with_its_tool() -> None:
    bench = Bench()
    heard = _record_openings(bench)
    await bench.fail(CallTimeout("silence", certainty=C2))
    assert heard == [("s", "t", 5.0)]


async def test_remote_report_is_applied_and_not_reported_again() -> None:
    bench = Bench()
    heard = _record_openings(bench)
    bench.board.apply_remote("s", "", 3.0, bench.clock(), manual=False)
    assert (await refused(bench.stage)).retry_after == 3.0
    bench.clock.now += 3.0
    await bench.stage(a_call(), End(a_reply()))
    assert (bench.probes, bench.server, heard) == (2, BreakerState.CLOSED, [])


async def test_manual_trip_and_reset_are_reported_and_applied() -> None:
    bench, other = Bench(), Bench()
    heard = _record_openings(bench)
    bench.board.trip("s", "t", bench.clock())
    bench.board.reset("s", "t")
    assert heard == [("person", "s", "t", 60.0), ("person", "s", "t", 0.0)]
    other.board.tool("s", "t").record_success(other.clock())
    seen = []
    for wait in (60.0, 0.0):
        other.board.apply_remote("s", "t", wait, other.clock(), manual=True)
        seen.append(other.tool)
    assert seen == [BreakerState.OPEN, BreakerState.CLOSED]  # whatever we have seen ourselves
