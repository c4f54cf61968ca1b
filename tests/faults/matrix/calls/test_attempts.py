"""Attempts that take too long, or fail before the server's tools are known."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.faults.fault_lab import ERAS, WAYS, lab, server
from tests.faults.matrix.http.web_servers import web
from tests.timing import within
from toolway import CallTimeout, OutcomeUnknown, RetryPolicy
from toolway.config.schema import ToolSettings
from toolway.testing import FakeHttp

pytestmark = pytest.mark.anyio

IMPATIENT = RetryPolicy(attempt_timeout=0.4)
PLACES = pytest.mark.parametrize("place", ["stdio", "modern", "legacy", "sse"])


def silent(place: str, tool: str, times: int) -> Any:
    """A server that does not answer the first calls of a tool."""
    mode = f"never;on={tool};times={times};effect=1"
    return server(mode) if place == "stdio" else web(place, modes=[mode])


@PLACES
@pytest.mark.fault("C12")
@pytest.mark.promise("A11")
async def test_hanging_read_is_retried_within_its_deadline(place: str) -> None:
    async with lab({"bad": silent(place, "bad_read", 2)}) as bench:
        read = (await bench.call("bad.bad_read", {"effect": True}, timeout=20, retry=IMPATIENT)).expect(None)
        assert read.reply is not None and read.reply.attempts == 3
        assert read.seconds >= 0.8


@PLACES
@pytest.mark.fault("C12")
@pytest.mark.promise("A11")
async def test_hanging_unsafe_call_is_unknown_and_not_repeated(place: str) -> None:
    async with lab({"bad": silent(place, "bad", 1)}) as bench:
        lost = (await bench.call("bad.bad", {"effect": True}, timeout=20, retry=IMPATIENT)).expect(
            CallTimeout, "unknown"
        )
        assert lost.error is not None and lost.error.attempts == 1
        assert lost.seconds < within(3)
        assert "an attempt of bad.bad timed out after 0.4 s" in lost.error.message
        (await bench.call("bad.counter")).expect(None)


@ERAS
@pytest.mark.fault("C12")
async def test_attempt_timeout_starts_when_the_server_runs(era: str) -> None:
    settings = {"counter": ToolSettings(retry=IMPATIENT)}
    async with lab({}) as bench:
        await bench.add("late", server("slow_start=1", era=era, tools=settings))
        done = (await bench.call("late.counter", timeout=20)).expect(None)
        assert done.reply is not None and done.reply.attempts == 1


@pytest.mark.fault("C12")
async def test_abandoned_attempt_is_cancelled_at_the_server() -> None:
    fake = FakeHttp(era="legacy", modes=["never;on=bad_read;times=1"])
    async with lab({"bad": fake}) as bench:
        (await bench.call("bad.bad_read", {"effect": True}, timeout=20, retry=IMPATIENT)).expect(None)
        await bench.until(lambda: fake.stats.requests["notifications/cancelled"], 5)


@WAYS
@pytest.mark.fault("C13")
@pytest.mark.promise("B35")
async def test_first_read_after_a_start_is_retried(era: str) -> None:
    fake = web(era, modes=["status=500;on=bad_read;times=1"])
    async with fake, lab({}) as bench:
        fake.server.effects_path = str(bench.effects)
        await bench.add("late", {"url": fake.url})
        assert bench.hub.known_tools(server="late") == []
        read = (await bench.call("late.bad_read")).expect(None)
        assert read.reply is not None and read.reply.attempts == 2


@ERAS
@pytest.mark.fault("C13")
async def test_first_unsafe_call_after_a_start_is_not_repeated(era: str) -> None:
    fake = web(era, modes=["status=500;on=bad;times=1;effect=1"])
    async with fake, lab({}) as bench:
        fake.server.effects_path = str(bench.effects)
        await bench.add("late", {"url": fake.url})
        lost = (await bench.call("late.bad", {"effect": True})).expect(OutcomeUnknown, "unknown")
        assert lost.error is not None and lost.error.attempts == 1
        await asyncio.sleep(0)
        assert bench.happened(lost) == 1
