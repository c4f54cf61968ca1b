"""Deadlines: one end, in time, with the truth about how far it got."""

from __future__ import annotations

import asyncio

import pytest

from tests.timing import within
from toolway.errors import CallTimeout
from toolway.middleware.deadline import deadline
from toolway.types import Call, CallResult, Certainty

pytestmark = pytest.mark.anyio


async def run(
    call: Call, phase: str = "queue", certainty: Certainty = Certainty.NOT_SENT, total: float = 0.1
) -> CallResult:
    stage = deadline(lambda c: total if c.timeout is None else c.timeout, asyncio.get_running_loop().time)

    async def last(inner: Call) -> CallResult:
        inner.state.phase, inner.state.certainty = phase, certainty
        await asyncio.sleep(5)
        return CallResult("s", "t", {})

    return await stage(call, last)


@pytest.mark.promise("B24")
async def test_unsent_call_that_times_out_was_not_executed() -> None:
    with pytest.raises(CallTimeout, match=r"timed out after [\d.]+ s") as caught:
        await run(Call("s.t", "tools/call", {}), "start")
    assert (caught.value.executed, caught.value.phase) == ("no", "start")


async def test_sent_call_that_times_out_is_unknown() -> None:
    with pytest.raises(CallTimeout) as caught:
        await run(Call("s.t", "tools/call", {}), "server", Certainty.UNKNOWN)
    assert (caught.value.executed, caught.value.phase) == ("unknown", "server")


async def test_timeout_of_the_caller_wins() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(CallTimeout):
        await run(Call("s.t", "tools/call", {}, timeout=0.1), total=30)
    assert loop.time() - began < within(1)


async def test_call_without_time_left_is_not_started() -> None:
    with pytest.raises(CallTimeout) as caught:
        await run(Call("s.t", "tools/call", {}, timeout=0.01), "server", Certainty.UNKNOWN)
    assert caught.value.executed == "no"
    assert caught.value.detail == "it was not started, because less than 0.05 s were left"
