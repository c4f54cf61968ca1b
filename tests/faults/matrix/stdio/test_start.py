"""Stdio servers that fail to start, or crash soon after."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.faults.fault_lab import ERAS, Bench, lab, server
from tests.faults.footprint import alive, descendants
from tests.timing import within
from toolway import Server, ServerUnavailable, Timeout
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio


async def check_fail_for_good(bench: Bench, *names: str) -> None:
    """Bad servers fail for good after six starts, and a server that starts with them does not wait for them."""
    await bench.add("good", fake_server())
    (await bench.call("good.counter", timeout=5)).expect(None)
    await bench.until(lambda: all(bench.hub.status()[name].lifecycle == "failed" for name in names), 15)
    for name in names:
        status = bench.hub.status()[name]
        assert status.restarts == 6
        assert status.next_retry is not None
        assert status.next_retry > 200


@pytest.mark.fault("A1")
@pytest.mark.parametrize(("fault", "code"), [("missing", "E-STDIO-ENOENT"), ("not executable", "E-STDIO-EACCES")])
async def test_unrunnable_command_fails_after_six_starts(fault: str, code: str, tmp_path: Path) -> None:
    program = tmp_path / "program"
    if fault == "not executable":
        program.write_text("#!/bin/sh\n")
    async with lab({}) as bench:
        await bench.add("bad", Server(command=str(program)))
        early = (await bench.call("bad.counter", timeout=10)).expect(ServerUnavailable, "no")
        assert early.seconds < within(5)
        await check_fail_for_good(bench, "bad")
        late = (await bench.call("bad.counter")).expect(ServerUnavailable, "no")
        assert late.error is not None
        assert late.error.code == code
        assert late.seconds < within(0.5)


@pytest.mark.fault("A2")
async def test_server_exiting_at_start_fails_with_its_last_stderr() -> None:
    async with lab({}) as bench:
        await bench.add("ends-0", fake_server("exit_at_start=0", era="modern"))
        await bench.add("ends-1", fake_server("exit_at_start=1", era="legacy"))
        (await bench.call("ends-0.counter", timeout=10)).expect(ServerUnavailable, "no")
        await check_fail_for_good(bench, "ends-0", "ends-1")
        for code in (0, 1):
            error = (await bench.call(f"ends-{code}.counter")).expect(ServerUnavailable, "no").error
            assert f"exit code {code}" in str(error)
            assert "FAKE_TOKEN is not set" in str(error)


@ERAS
@pytest.mark.fault("A3")
async def test_silent_server_is_killed_after_start_timeout(era: str) -> None:
    assert Timeout().start == 30
    async with lab({}) as bench:
        before = descendants(bench.reaper_pid())
        await bench.add("bad", server("silent", era=era, timeout=Timeout(start=0.7)))
        call = bench.start("bad.counter", timeout=20)
        await bench.until(lambda: descendants(bench.reaper_pid()) - before, 5)
        first = descendants(bench.reaper_pid()) - before
        outcome = (await call).expect(ServerUnavailable, "no")
        assert outcome.error is not None
        assert outcome.error.code == "E-START-TIMEOUT"
        await bench.until(lambda: not any(alive(pid) for pid in first), 6)
        assert bench.hub.status()["bad"].restarts >= 1


@pytest.mark.fault("A23")
async def test_crash_loop_ends_and_failed_server_uses_no_cpu() -> None:
    async with lab({}) as bench:
        for era in ("modern", "legacy"):
            await bench.add(era, fake_server("crash_every=0.2", era=era))
        await check_fail_for_good(bench, "modern", "legacy")
        async with bench.neighbour.silent():
            spent, began = time.process_time(), time.monotonic()
            await asyncio.sleep(1.5)
            share = (time.process_time() - spent) / (time.monotonic() - began)
        assert share < 0.05
        (await bench.call("modern.counter")).expect(ServerUnavailable, "no")
