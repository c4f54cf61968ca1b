"""Slots: bounded, fair, and always given back."""

from __future__ import annotations

import asyncio

import pytest

from toolway.config.schema import Limits
from toolway.errors import Overloaded
from toolway.middleware.concurrency import ConcurrencyLimiter, concurrency
from toolway.types import Call, CallResult

pytestmark = pytest.mark.anyio


async def test_at_most_the_limit_run_at_once_and_all_run() -> None:
    slots = ConcurrencyLimiter(Limits(max_concurrent=3, max_queued=100))
    stage = concurrency(lambda _: slots, lambda _: 5.0, asyncio.get_running_loop().time)
    running, most = 0, 0

    async def last(call: Call) -> CallResult:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return CallResult("s", "t", {})

    await asyncio.gather(*(stage(Call("s.t", "tools/call", {}), last) for _ in range(50)))
    assert (most, running) == (3, 0)


async def test_full_queue_is_rejected_at_once_and_slow_one_in_time() -> None:
    slots = ConcurrencyLimiter(Limits(max_concurrent=1, max_queued=1))
    stage = concurrency(lambda _: slots, lambda _: 0.05, asyncio.get_running_loop().time)

    async def slow(call: Call) -> CallResult:
        await asyncio.sleep(0.3)
        return CallResult("s", "t", {})

    calls = [asyncio.ensure_future(stage(Call("s.t", "tools/call", {}), slow)) for _ in range(3)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refused = [o for o in outcomes if isinstance(o, Overloaded)]
    assert len(refused) == 2
    assert {o.executed for o in refused} == {"no"}


async def test_caller_leaving_the_queue_takes_no_slot() -> None:
    slots = ConcurrencyLimiter(Limits(max_concurrent=1, max_queued=10))
    assert await slots.acquire()
    leaving = asyncio.create_task(slots.acquire())
    staying = asyncio.create_task(slots.acquire())
    await asyncio.sleep(0)
    slots.release()  # it is the first one's turn in the moment he leaves
    leaving.cancel()
    assert await asyncio.wait_for(staying, 30) is True
    slots.release()
    assert await asyncio.wait_for(slots.acquire(), 30) is True
