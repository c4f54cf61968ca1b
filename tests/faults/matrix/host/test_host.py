"""Clock jumps, a stalled event loop, and too few file descriptors."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time

import pytest

from tests.faults.fault_lab import Bench, lab, server
from tests.faults.results import results
from tests.timing import within
from toolway import CallTimeout, HealthCheck, Hub
from toolway.config.schema import ToolSettings
from toolway.events import Event, LoopResumed, LoopStalled
from toolway.hub.environment import HubEnvironment
from toolway.testing import fake_server
from toolway.types import Effect

pytestmark = pytest.mark.anyio

HOUR, DAY = 3600.0, 86_400.0


def jump(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Move the wall clock."""
    real = time.clock_gettime
    monkeypatch.setattr(time, "time", lambda: real(time.CLOCK_REALTIME) + seconds)
    monkeypatch.setattr(time, "time_ns", lambda: int((real(time.CLOCK_REALTIME) + seconds) * 1e9))


@pytest.mark.fault("D6")
@pytest.mark.parametrize(("seconds", "era"), [(HOUR, "modern"), (-HOUR, "legacy"), (DAY, "legacy"), (-DAY, "modern")])
async def test_wall_clock_jump_changes_nothing(seconds: float, era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = {"sleep": ToolSettings(effect=Effect.READ, cache=1.0)}
    async with lab({"bad": server(era=era, tools=cached)}) as bench:
        (await bench.call("bad.counter", {"nonce": "one"}, idempotency_key="k")).expect(None)
        await read_cached(bench, from_cache=False)
        ending = bench.start("bad.bad", {"mode": "never", "effect": True}, timeout=0.8)
        working = bench.start("bad.sleep", {"seconds": 0.5, "nonce": "other"}, timeout=5)
        await asyncio.sleep(0.05)
        jump(monkeypatch, seconds)
        assert await read_cached(bench, from_cache=True) < 0.1
        (await bench.call("bad.counter", {"nonce": "one"}, idempotency_key="k")).expect(None)
        (await working).expect(None)
        assert 0.7 < (await ending).expect(CallTimeout, "unknown").seconds < within(1.8)
        os.kill(bench.pid("bad"), signal.SIGKILL)
        await bench.until(lambda: bench.hub.status()["bad"].restarts == 1, 2)
        (await bench.call("bad.counter", timeout=5)).expect(None)
        await asyncio.sleep(0.3)
        await read_cached(bench, from_cache=False)


async def read_cached(bench: Bench, *, from_cache: bool) -> float:
    outcome = (await bench.call("bad.sleep", {"seconds": 0.1, "nonce": "same"})).expect(None)
    assert outcome.reply is not None
    assert outcome.reply.from_cache is from_cache
    return outcome.seconds


def stand_still() -> None:
    time.sleep(2)


async def loop_events(hub: Hub) -> list[Event]:
    """The first two events about the loop itself."""
    told: list[Event] = []
    async for event in hub.events():
        if isinstance(event, LoopStalled | LoopResumed):
            told.append(event)
        if len(told) == 2:
            break
    return told


@pytest.mark.fault("D17")
async def test_stalled_event_loop_is_reported_and_calls_continue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert HubEnvironment().stall_threshold == 5
    eras = ("modern", "legacy")
    health = HealthCheck(interval=0.3, timeout=1.5)
    servers = {era: server(era=era, health=health) for era in eras}
    async with lab(servers, calm=False, environment=HubEnvironment(stall_threshold=1.0)) as bench:
        told = asyncio.create_task(loop_events(bench.hub))
        calls = [bench.start(f"{eras[n % 2]}.sleep", {"seconds": 0.1 * n}, timeout=20) for n in range(20)]
        calls += [bench.start(f"{eras[n % 2]}.counter", timeout=20) for n in range(20)]
        await asyncio.sleep(0.1)
        asyncio.get_running_loop().call_soon(stand_still)
        await asyncio.sleep(0)
        stalled, resumed = await told
        assert isinstance(stalled, LoopStalled)
        assert 1 <= stalled.seconds < within(1.9)
        assert "in stand_still" in stalled.stack
        assert isinstance(resumed, LoopResumed)
        assert 2 <= resumed.seconds < within(4)
        assert "in stand_still" in caplog.text
        assert "in a thread" in caplog.text
        for call in calls:
            (await call).expect(None)
        for era in eras:
            assert (await bench.call(f"{era}.counter")).expect(None).seconds < within(0.5)
            assert bench.hub.status()[era].restarts == 0


SCARCE = """
import asyncio, json, os, resource, sys
from toolway import Hub, ServerUnavailable

def used():
    return len(os.listdir("/proc/self/fd"))

def allow(more):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if more is None else more, hard))

async def exhaust(hub, entry, room):
    '''Descriptors run out while a server starts: the running server keeps working, and the late one recovers.'''
    before = used()
    allow(before + room)
    await hub.add_server("late", entry)
    try:
        await hub.call_tool("late.counter", {"nonce": f"late-{room}"}, timeout=5)
        refused = None
    except ServerUnavailable as exc:
        refused = exc.executed
    steady = [(await hub.call_tool("good.counter", {"nonce": f"good-{room}-{n}"})).text for n in range(5)]
    allow(None)
    async with asyncio.timeout(20):
        while hub.status()["late"].state != "ready":
            await asyncio.sleep(0.02)
    text = (await hub.call_tool("late.echo", {"text": "back"})).text
    await hub.remove_server("late")
    return {"room": room, "refused": refused, "steady": len(steady), "text": text, "leaked": used() - before}

async def main(entry, start):
    if start:
        allow(start)
    async with Hub({"good": entry}, catalog_storage=None) as hub:
        await hub.call_tool("good.counter", {"nonce": "first"})
        print(json.dumps([await exhaust(hub, entry, room) for room in range(0, 8)] if not start else "ok"))

asyncio.run(main(json.loads(sys.argv[1]), int(sys.argv[2])))
"""


async def run_scarce(start: int) -> object:
    command = [sys.executable, "-c", SCARCE, json.dumps(fake_server()), str(start)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()[-2000:]
    return json.loads(out)


@pytest.mark.fault("D7")
async def test_start_without_file_descriptors_fails_then_recovers() -> None:
    found = await run_scarce(0)
    assert isinstance(found, list)
    assert [each["leaked"] for each in found] == [0] * 8
    assert [each["steady"] for each in found] == [5] * 8
    assert [each["text"] for each in found] == ["back"] * 8
    refused = [each["refused"] for each in found]
    enough = refused.index(None)
    assert enough > 0
    assert refused == ["no"] * enough + [None] * (8 - enough)
    results.checked("I1", "I6")


@pytest.mark.fault("D7")
async def test_hub_works_with_64_file_descriptors() -> None:
    assert await run_scarce(64) == "ok"
