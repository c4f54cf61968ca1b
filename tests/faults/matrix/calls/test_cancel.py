"""Callers that leave, at every point of a call."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.faults.effects_log import Outcome
from tests.faults.fault_lab import ERAS, Bench, lab, server
from tests.timing import within
from toolway import CallTimeout, Hub, Limits
from toolway.config.schema import RetryPolicy
from toolway.events import CallFinished
from toolway.hub.environment import HubEnvironment

pytestmark = [pytest.mark.anyio, pytest.mark.fault("C1")]


@asynccontextmanager
async def reported_ends(hub: Hub) -> AsyncIterator[list[tuple[str, str, str]]]:
    """The reported ends of calls to the bad server: (tool, code, executed)."""
    told: list[tuple[str, str, str]] = []

    async def listen() -> None:
        async for event in hub.events():
            if isinstance(event, CallFinished) and event.name.startswith("bad."):
                told.append((event.name, event.code, event.executed))  # noqa: PERF401  seen while it grows

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0)
    try:
        yield told
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def leave(call: asyncio.Task[Outcome]) -> None:
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    assert call.cancelled()


async def slot_is_back(bench: Bench) -> None:
    """With one slot in all, the next call shows that it is free."""
    assert (await bench.call("bad.counter", timeout=5)).expect(None).seconds < within(1)


@ERAS
async def test_cancelled_queued_call_is_never_sent(era: str) -> None:
    async with (
        lab({"bad": server(era=era, limits=Limits(max_concurrent=1))}) as bench,
        reported_ends(bench.hub) as told,
    ):
        first = bench.start("bad.sleep", {"seconds": 0.4})
        await asyncio.sleep(0.05)
        queued = bench.start("bad.counter")
        await bench.until(lambda: bench.hub._core._upstreams.limiters["bad"].queued == 1, 2)
        await leave(queued)
        (await first).expect(None)
        await slot_is_back(bench)
        assert bench.happened(bench.calls[1]) == 0
        assert ("bad.counter", "cancelled", "no") in told


@ERAS
async def test_cancelled_sent_call_is_cancelled_at_server_and_unknown(era: str) -> None:
    async with (
        lab({"bad": server(era=era, limits=Limits(max_concurrent=1))}) as bench,
        reported_ends(bench.hub) as told,
    ):
        sent = bench.start("bad.sleep", {"seconds": 30})
        await asyncio.sleep(0.1)
        await leave(sent)
        await slot_is_back(bench)
        async with asyncio.timeout(2):
            while not (await bench.hub.call_tool("bad.stats")).data["cancelled"]:
                await asyncio.sleep(0.02)
        assert ("bad.sleep", "cancelled", "unknown") in told


@ERAS
async def test_cancelled_call_with_effect_is_reported_unknown(era: str) -> None:
    async with lab({"bad": server("never", era=era)}) as bench, reported_ends(bench.hub) as told:
        sent = bench.start("bad.bad", {"effect": True})
        await bench.until(lambda: bench.calls and bench.happened(bench.calls[0]), 2)
        await leave(sent)
        await slot_is_back(bench)
        assert ("bad.bad", "cancelled", "unknown") in told


@ERAS
async def test_cancelled_call_reports_no_more_progress(era: str) -> None:
    async with lab({"bad": server(era=era, limits=Limits(max_concurrent=1))}) as bench:
        heard: list[float] = []
        arguments = {"n": 1000, "seconds": 0.01}
        call = bench.start("bad.progress", arguments, progress_callback=lambda *report: heard.append(report[0]))
        await bench.until(lambda: len(heard) > 3, 2)
        await leave(call)
        count = len(heard)
        await slot_is_back(bench)
        assert len(heard) == count


@ERAS
async def test_call_cancelled_between_attempts_is_not_retried(era: str) -> None:
    patient, world = RetryPolicy(initial_backoff=30, max_backoff=30), HubEnvironment(random=lambda: 0.9)
    servers = {"bad": server(era=era, retry=patient)}
    async with lab(servers, environment=world) as bench, reported_ends(bench.hub) as told:
        call = bench.start("bad.bad_read", {"mode": "nan", "effect": True})
        await bench.until(lambda: bench.hub._core._upstreams.retry_budgets["bad"].active == 1, 2)
        await leave(call)
        assert bench.hub._core._upstreams.retry_budgets["bad"].active == 0
        await slot_is_back(bench)
        assert bench.happened(bench.calls[0]) == 1
        assert ("bad.bad_read", "cancelled", "unknown") in told


@ERAS
async def test_call_cancelled_before_second_attempt_is_unknown(era: str) -> None:
    bad = server(era=era, limits=Limits(max_concurrent=1), retry=RetryPolicy(initial_backoff=0.4, max_backoff=0.4))
    world = HubEnvironment(random=lambda: 0.99)
    async with lab({"bad": bad}, environment=world) as bench, reported_ends(bench.hub) as told:
        call = bench.start("bad.bad_read", {"mode": "nan", "effect": True})
        await bench.until(lambda: bench.hub._core._upstreams.retry_budgets["bad"].active == 1, 2)
        first = bench.start("bad.sleep", {"seconds": 1})
        await bench.until(lambda: bench.hub._core._upstreams.limiters["bad"].queued == 1, 2)
        await leave(call)
        (await first).expect(None)
        assert ("bad.bad_read", "cancelled", "unknown") in told


@ERAS
@pytest.mark.fault("A16")
@pytest.mark.parametrize("key", [None, "once"])
async def test_call_timing_out_half_written_may_still_execute(key: str | None, era: str) -> None:
    """What was begun is written to its end, because half a message would spoil the next one."""
    async with lab({"bad": server(era=era)}) as bench:
        os.kill(bench.pid("bad"), signal.SIGSTOP)
        cut = await bench.call("bad.counter", {"pad": "x" * 200_000}, timeout=0.5, idempotency_key=key)
        os.kill(bench.pid("bad"), signal.SIGCONT)
        await bench.until(lambda: bench.happened(cut), 5)
        cut.expect(CallTimeout, "unknown")
