"""Shared work: it continues while anyone waits, and no longer."""

from __future__ import annotations

import asyncio
import gc

import pytest

from tests.middleware.chain_lab import HeldEnd, a_call, a_reply, failure, turns
from toolway.errors import Certainty, OutcomeUnknown
from toolway.middleware.single_flight import InFlightCall, InFlightCalls
from toolway.types import CallResult, CallState

pytestmark = pytest.mark.anyio


async def boarded(
    flights: InFlightCalls, end: HeldEnd, count: int = 1
) -> tuple[InFlightCall, list[asyncio.Task[CallResult]]]:
    flight = flights.start("k", lambda _: end(a_call()), CallState())
    joined = [asyncio.create_task(flights.join(flight, CallState())) for _ in range(count)]
    await end.reached()
    assert flight.waiters == count
    return flight, joined


async def leave(task: asyncio.Task[CallResult]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_all_waiters_get_the_same_answer() -> None:
    flights, end = InFlightCalls(), HeldEnd()
    _, joined = await boarded(flights, end, 5)
    end.answer(a_reply("once"))
    assert [reply.text for reply in await asyncio.gather(*joined)] == ["once"] * 5
    assert len(end.calls) == 1


async def test_all_waiters_get_the_same_failure() -> None:
    flights, end = InFlightCalls(), HeldEnd()
    _, joined = await boarded(flights, end, 3)
    end.answer(failure(Certainty.UNKNOWN))
    found = await asyncio.gather(*joined, return_exceptions=True)
    assert [type(error) for error in found] == [OutcomeUnknown] * 3


async def test_work_continues_for_the_remaining_waiters() -> None:
    flights, end = InFlightCalls(), HeldEnd()
    flight, joined = await boarded(flights, end, 3)
    await leave(joined[0])
    await leave(joined[2])
    assert (end.cancelled, flight.waiters) == (0, 1)
    end.answer(a_reply("still"))
    assert (await joined[1]).text == "still"


async def test_work_is_cancelled_when_the_last_waiter_leaves() -> None:
    flights, end = InFlightCalls(), HeldEnd()
    flight, joined = await boarded(flights, end, 3)
    for task in joined:
        await leave(task)
    await turns()
    assert (end.cancelled, flight.work.cancelled(), flights.get("k")) == (1, True, None)


async def test_finished_work_is_forgotten() -> None:
    flights, end = InFlightCalls(), HeldEnd()
    flight, joined = await boarded(flights, end)
    assert flights.get("k") is flight
    end.answer(a_reply())
    await joined[0]
    await turns()
    assert (flights.get("k"), len(flights), end.cancelled) == (None, 0, 0)


async def test_failure_without_waiters_is_not_logged() -> None:
    flights, complaints = InFlightCalls(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    async def stubborn(_: object) -> CallResult:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise failure(Certainty.UNKNOWN) from None
        raise AssertionError

    flight = flights.start("k", stubborn, CallState())
    joined = asyncio.create_task(flights.join(flight, CallState()))
    await turns()
    await leave(joined)
    await turns()
    assert flight.work.done()
    del flight, joined
    gc.collect()
    await turns()
    assert complaints == []
