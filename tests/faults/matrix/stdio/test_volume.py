"""Stdio servers that write too much, write too slowly, or stop reading."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.faults.fault_lab import ERAS, first_time, lab, odd_server, server
from tests.faults.footprint import rss
from tests.timing import within
from toolway import Limits, OutcomeUnknown, Overloaded, ProtocolError, Timeout
from toolway.testing import fake_server
from toolway.upstream.transports import message_stream, stdio

pytestmark = pytest.mark.anyio

PAD = "x" * 200_000  # more than a pipe holds


@ERAS
@pytest.mark.fault("A10")
@pytest.mark.parametrize("tool", ["bad", "bad_read"])
async def test_half_message_then_silence_restarts_the_link(
    tool: str, era: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_stream, "MIN_MESSAGE_RATE", (10 * 1024, 0.5))
    async with lab({"bad": first_time(tmp_path, "half_line", era=era)}) as bench:
        outcome = await bench.call(f"bad.{tool}", {"effect": True}, timeout=15)
        if tool == "bad":
            outcome.expect(ProtocolError, "unknown")
            assert outcome.seconds < within(3)
        else:
            outcome.expect(None)
        (await bench.call("bad.counter", timeout=15)).expect(None)
        assert bench.hub.status()["bad"].restarts == 1


@ERAS
@pytest.mark.fault("A11")
async def test_line_just_over_the_limit_fails_its_call_only(era: str) -> None:
    async with lab({"bad": fake_server(era=era)}) as bench:
        over = await bench.call("bad.bad", {"mode": "line_mb=8.39", "effect": True}, timeout=20)
        over.expect(ProtocolError, "unknown")
        (await bench.call("bad.counter", timeout=15)).expect(None)
        assert bench.hub.status()["bad"].restarts == 0


@ERAS
@pytest.mark.fault("A11")
async def test_line_just_below_the_limit_is_accepted_without_delay(era: str) -> None:
    async with lab({"bad": fake_server(era=era)}, memory=64) as bench:
        (await bench.call("bad.bad", {"mode": "line_mb=8.38", "effect": True}, timeout=20)).expect(None)


@ERAS
@pytest.mark.fault("A11")
async def test_fifty_megabyte_line_is_skipped_and_link_survives(era: str) -> None:
    async with lab({"bad": fake_server(era=era)}) as bench:
        over = await bench.call("bad.bad", {"mode": "line_mb=50", "effect": True}, timeout=30)
        over.expect(ProtocolError, "unknown")
        (await bench.call("bad.counter", timeout=30)).expect(None)
        assert bench.hub.status()["bad"].restarts == 0


@ERAS
@pytest.mark.fault("A11")
async def test_endless_line_fails_its_call_and_then_its_link(era: str) -> None:
    async with lab({"bad": fake_server(era=era)}) as bench:
        over = await bench.call("bad.bad", {"mode": "endless_line=300", "effect": True}, timeout=30)
        over.expect(ProtocolError, "unknown")
        await bench.until(lambda: bench.hub.status()["bad"].restarts == 1, 20)
        (await bench.call("bad.counter", timeout=20)).expect(None)


@pytest.mark.alone
@pytest.mark.fault("A11")
async def test_flood_of_heavy_lines_stays_within_memory_limit() -> None:
    async with lab({"bad": odd_server("heavy_lines=25")}, memory=48) as bench:
        (await bench.call("bad.bad", {"effect": True}, timeout=60)).expect(None)


@ERAS
@pytest.mark.fault("A12")
async def test_answer_arriving_byte_by_byte_fails_its_call(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert message_stream.MIN_MESSAGE_RATE == (10 * 1024, 10.0)
    monkeypatch.setattr(message_stream, "MIN_MESSAGE_RATE", (10 * 1024, 0.5))
    async with lab({"bad": fake_server("one_byte_per_second=0.05", era=era)}) as bench:
        slow = (await bench.call("bad.bad", {"effect": True}, timeout=30)).expect(ProtocolError, "unknown")
        assert slow.seconds < within(4)
        (await bench.call("bad.counter", timeout=15)).expect(None)


@ERAS
@pytest.mark.fault("A16")
async def test_call_not_fully_read_is_sent_to_the_next_process(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Timeout().write == 10
    monkeypatch.setattr(stdio, "STDIN_CLOSE_TIMEOUT_S", 0.3)
    async with lab({"bad": server("stops_reading", era=era, timeout=Timeout(30, write=0.7))}) as bench:
        (await bench.call("bad.bad", {"effect": True})).expect(None)
        in_the_pipe = bench.start("bad.counter")
        await asyncio.sleep(0.05)
        cut = bench.start("bad.counter", {"pad": PAD})
        behind = [bench.start("bad.counter", {"pad": PAD}) for _ in range(3)]
        (await in_the_pipe).expect(OutcomeUnknown, "unknown")
        for call in (cut, *behind):
            (await call).expect(None)
        assert bench.hub.status()["bad"].restarts == 1


@ERAS
@pytest.mark.fault("A16")
async def test_calls_to_non_reading_server_queue_then_are_rejected(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "STDIN_CLOSE_TIMEOUT_S", 0.3)
    limits, timeout = Limits(max_concurrent=2, max_queued=3), Timeout(30, write=0.7)
    async with lab({"bad": server("stops_reading", era=era, limits=limits, timeout=timeout)}) as bench:
        (await bench.call("bad.bad", {"effect": True})).expect(None)
        calls = [bench.start("bad.counter", {"pad": PAD}) for _ in range(8)]
        outcomes = await asyncio.gather(*calls)
        for refused in outcomes[5:]:
            assert refused.expect(Overloaded, "no").seconds < within(0.3)
        for late in outcomes[:5]:
            late.expect(None)


@ERAS
@pytest.mark.alone
@pytest.mark.fault("A18")
async def test_gigabyte_on_stderr_delays_no_call_and_tail_is_kept(era: str) -> None:
    async with lab({"bad": fake_server(era=era)}) as bench:
        before = rss()
        flooded = bench.start("bad.bad", {"mode": "stderr_flood=1074", "effect": True}, timeout=60)
        beside = [await bench.call("bad.counter") for _ in range(20)]
        assert all(call.expect(None).seconds < within(1) for call in beside)
        (await flooded).expect(None)
        assert rss() - before < 8
        tail = bench.hub.status()["bad"].stderr
        assert 0 < len(tail) <= Limits().stderr_bytes == 64 * 1024
