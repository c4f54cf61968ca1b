"""Stdio servers that exit, freeze, or close a pipe during a call."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from tests.faults.fault_lab import ERAS, Bench, Stopwatch, first_time, lab, odd_server, server
from tests.faults.footprint import alive, command, descendants
from tests.timing import QUIET, within
from toolway import CallTimeout, HealthCheck, OutcomeUnknown
from toolway.testing import fake_server
from toolway.upstream.transports import stdio

pytestmark = pytest.mark.anyio

WAYS = pytest.mark.parametrize(
    "way",
    [
        pytest.param("exit_mid_call", marks=pytest.mark.fault("A4"), id="exits"),
        pytest.param("exit_held_stdout", marks=pytest.mark.fault("A6"), id="exits-while-a-child-holds-its-stdout"),
    ],
)


async def check_works_again(bench: Bench) -> None:
    """The next process works, and there was one restart."""
    (await bench.call("bad.counter", timeout=15)).expect(None)
    assert bench.hub.status()["bad"].restarts == 1


@ERAS
@WAYS
async def test_unsafe_call_is_unknown_when_its_server_exits(way: str, era: str) -> None:
    async with lab({"bad": fake_server(way, era=era)}) as bench:
        lost = (await bench.call("bad.bad", {"effect": True})).expect(OutcomeUnknown, "unknown")
        assert lost.seconds < within(1)
        assert bench.happened(lost) == 1
        await check_works_again(bench)


@ERAS
@WAYS
async def test_read_is_repeated_on_next_process_after_server_exit(way: str, era: str, tmp_path: Path) -> None:
    async with lab({"bad": first_time(tmp_path, way, era=era)}) as bench:
        done = (await bench.call("bad.bad_read", {"effect": True}, timeout=15)).expect(None)
        assert done.reply is not None
        assert done.reply.attempts == 2
        assert bench.happened(done) == 2
        await check_works_again(bench)


@ERAS
@pytest.mark.fault("A6")
async def test_exit_is_noticed_while_child_holds_stdout(era: str) -> None:
    async with lab({"bad": fake_server("exit_held_stdout", era=era)}) as bench:
        watch = Stopwatch(bench.reaper_pid(), bench.pid("bad"))
        (await bench.call("bad.bad", {"effect": True})).expect(OutcomeUnknown, "unknown")
        assert watch.seconds < within(0.5)
        await bench.until(lambda: not children_left(bench), 2)
        await check_works_again(bench)


def children_left(bench: Bench) -> list[str]:
    left = (pid for pid in descendants(bench.reaper_pid()) if alive(pid))
    return [each for pid in left if (each := command(pid)).startswith("sleep")]


@pytest.mark.alone
@pytest.mark.fault("A4")
async def test_complete_answer_counts_when_server_exits_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stdio, "EXIT_GRACE_S", 0.01 if QUIET else 0.1)  # shorter than it takes to decode the answer
    async with lab({"bad": odd_server("heavy_farewell")}, memory=128) as bench:
        (await bench.call("bad.bad", {"effect": True}, timeout=20)).expect(None)
        (await bench.call("bad.counter", timeout=15)).expect(None)


@ERAS
@pytest.mark.fault("A5")
@pytest.mark.parametrize("tool", ["bad", "bad_read"])
async def test_server_killed_during_a_call_is_noticed_at_once(tool: str, era: str, tmp_path: Path) -> None:
    async with lab({"bad": first_time(tmp_path, "never", era=era)}) as bench:
        call = bench.start(f"bad.{tool}", {"effect": True}, timeout=15)
        await bench.until(lambda: bench.calls and bench.happened(bench.calls[-1]), 5)
        watch = Stopwatch(bench.reaper_pid())
        os.kill(bench.pid("bad"), signal.SIGKILL)
        await bench.until(lambda: bench.hub.status()["bad"].pid is None or call.done(), 5)
        assert watch.seconds < within(0.5)
        if tool == "bad":
            (await call).expect(OutcomeUnknown, "unknown")
        else:
            (await call).expect(None)
        await check_works_again(bench)


@ERAS
@pytest.mark.fault("A17")
async def test_server_that_closes_stdout_is_replaced(era: str) -> None:
    async with lab({"bad": fake_server("closes_stdout", era=era)}) as bench:
        first = bench.pid("bad")
        (await bench.call("bad.bad", {"effect": True})).expect(OutcomeUnknown, "unknown")
        await bench.until(lambda: not alive(first), 6)
        await check_works_again(bench)


@ERAS
@pytest.mark.fault("A17")
async def test_server_that_closes_stdin_is_replaced(era: str) -> None:
    async with lab({"bad": fake_server("closes_stdin", era=era)}) as bench:
        first = bench.pid("bad")
        (await bench.call("bad.bad", {"effect": True})).expect(None)
        await asyncio.sleep(0.1)  # it closes its stdin after the answer
        (await bench.call("bad.counter", timeout=20)).expect(None)
        await bench.until(lambda: not alive(first), 6)
        await check_works_again(bench)


@ERAS
@pytest.mark.fault("A22")
async def test_frozen_server_is_restarted_and_sent_calls_are_unknown(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `during_calls=False` the deadline of a call comes first: for servers that answer nothing while they work."""
    monkeypatch.setattr(stdio, "STDIN_CLOSE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(stdio, "SIGTERM_TIMEOUT_S", 0.3)
    health = HealthCheck(interval=0.2, timeout=1.0)
    servers = {
        "bad": server("sigstop", era=era, health=msgspec.structs.replace(health, during_calls=False)),
        "strict": server("sigstop", era=era, health=health),
    }
    async with lab(servers) as bench:
        first = bench.pid("bad")
        (await bench.call("strict.sleep", {"seconds": 2}, echoes=False)).expect(
            None
        )  # it answers pings during the call
        at_the_deadline = bench.start("bad.bad", {"effect": True}, timeout=2.5)
        early = bench.start("strict.bad", {"effect": True})
        assert (await early).expect(OutcomeUnknown, "unknown").seconds < within(6)
        (await at_the_deadline).expect(CallTimeout, "unknown")
        await bench.until(lambda: not alive(first), 6)
        await check_works_again(bench)


@ERAS
@pytest.mark.fault("A29")
@pytest.mark.promise("A9", "C9")
async def test_hung_server_is_restarted_and_reads_are_repeated(
    era: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stdio, "STDIN_CLOSE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(stdio, "SIGTERM_TIMEOUT_S", 0.3)
    health = HealthCheck(timeout=1.2)
    async with lab({"bad": first_time(tmp_path, "sigstop;on=bad", era=era, health=health)}) as bench:
        (await bench.call("bad.sleep", {"seconds": 2}, echoes=False)).expect(None)  # it answers pings during the call
        lost = bench.start("bad.bad", {"effect": True})
        read = bench.start("bad.sleep", {"seconds": 5}, idempotent=True, echoes=False)
        assert (await lost).expect(OutcomeUnknown, "unknown").seconds < within(6)
        again = (await read).expect(None)
        assert again.reply is not None and again.reply.attempts == 2
        await check_works_again(bench)


@ERAS
@pytest.mark.fault("A29")
@pytest.mark.promise("A9")
async def test_slow_but_working_server_is_not_restarted(era: str) -> None:
    async with lab({"bad": server(era=era, health=HealthCheck(timeout=1.2))}) as bench:
        (await bench.call("bad.sleep", {"seconds": 4}, timeout=30, echoes=False)).expect(None)
        assert bench.hub.status()["bad"].restarts == 0
