"""Many callers at once."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.fault_lab import ERAS, Bench, lab, server
from toolway import CallError, Limits
from toolway.middleware.circuit_breaker import CircuitBreaker
from toolway.testing import fake_server
from toolway.types import Call

pytestmark = [pytest.mark.anyio, pytest.mark.alone]


async def call_as(bench: Bench, caller: str, seconds: float) -> None:
    """Make a call as `caller` through the whole middleware chain."""
    params = {"name": "bad.sleep", "arguments": {"seconds": seconds}}
    await bench.hub._core.calls._chain(Call("bad.sleep", "tools/call", params, caller=caller))


async def flood(bench: Bench, calls: int) -> list[asyncio.Task[None]]:
    """One caller wants far more than there is."""
    tasks = [asyncio.create_task(call_as(bench, "flood", 0.1)) for _ in range(calls)]
    await asyncio.sleep(0.02)
    return tasks


@ERAS
@pytest.mark.fault("C4")
async def test_flooding_caller_leaves_others_their_share(era: str) -> None:
    async with lab({"bad": server(era=era, limits=Limits(max_concurrent=4, max_queued=200))}) as bench:
        flooding = await flood(bench, 60)
        # It gets the next free slot, and four calls run next to it. At the end of the line of all, 56 would go before.
        passed = []
        for _ in range(3):
            before = sum(task.done() for task in flooding)
            await call_as(bench, "quiet", 0.01)
            passed.append(sum(task.done() for task in flooding) - before)
        assert max(passed) <= 20, passed
        await asyncio.gather(*flooding)


@ERAS
@pytest.mark.fault("C4")
async def test_caller_filling_the_queue_does_not_block_others(era: str) -> None:
    async with lab({"bad": server(era=era, limits=Limits(max_concurrent=4, max_queued=20))}) as bench:
        flooding = await flood(bench, 60)
        try:
            await call_as(bench, "quiet", 0.01)
            assert sum(task.done() and task.exception() is None for task in flooding) <= 12  # of 24 that were accepted
        finally:
            done = await asyncio.gather(*flooding, return_exceptions=True)
        assert any(isinstance(each, CallError) for each in done)


@ERAS
@pytest.mark.fault("C10")
async def test_request_ids_on_a_link_are_unique(era: str) -> None:
    async with lab({"bad": fake_server(era=era)}) as bench:
        for _ in range(6):
            for call in [bench.start("bad.counter") for _ in range(50)]:
                (await call).expect(None)
        # The fake writes the id of the request next to the nonce.
        ids = [line.partition("\t")[0] for line in bench.effects.read_text().splitlines()]
        assert len(set(ids)) == len(ids) == 300


@ERAS
@pytest.mark.fault("C11")
@pytest.mark.parametrize("breakers", [True, False])
async def test_retries_add_at_most_a_fifth_to_a_failing_servers_load(
    breakers: bool, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not breakers:  # then only the budget is in the way
        monkeypatch.setattr(CircuitBreaker, "_has_too_many_failures", lambda *_: False)
    count = 400
    # The storm's callers are in this process: their own work delays everyone in it.
    async with lab({"bad": server(era=era)}, calm=False) as bench:
        calls = [bench.start("bad.bad_read", {"mode": "nan", "effect": True}, timeout=30) for _ in range(count)]
        outcomes = await asyncio.gather(*calls)
        assert not any(each.ok for each in outcomes)
        made = sum(bench.happened(each) for each in outcomes)
        assert made <= 1.2 * count + 3
        assert breakers or made > count
