"""Stdio servers that refuse to stop, and the processes they leave behind."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.fault_lab import ERAS, Bench, Stopwatch, lab
from tests.faults.footprint import alive, zombies_of
from tests.timing import within
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio


@pytest.mark.fault("A19")
async def test_server_ignoring_shutdown_is_killed_in_six_seconds() -> None:
    ways = {"deaf": ("ignore_eof",), "stubborn": ("ignore_eof", "ignore_sigterm")}
    servers = {f"{name}-{era}": fake_server(*ways[name], era=era) for name in ways for era in ("modern", "legacy")}
    async with lab(servers) as bench:
        pids = [bench.pid(name) for name in servers]
        (await bench.call("deaf-modern.counter")).expect(None)
        watch = Stopwatch(bench.reaper_pid())
        await asyncio.gather(*(bench.hub.remove_server(name) for name in servers))
        assert watch.seconds < within(6)
        assert not [pid for pid in pids if alive(pid)]


async def family(bench: Bench) -> list[int]:
    """Let the bad server start children of every kind; all of their process ids."""
    (await bench.call("bad.spawn_children")).expect(None)
    reply = (await bench.call("bad.pid")).expect(None).reply
    assert reply is not None
    pids = [int(pid) for pid in reply.data["children"]]
    assert len(pids) == 4
    assert all(alive(pid) for pid in pids)
    return [bench.pid("bad"), *pids]


@ERAS
@pytest.mark.fault("A20")
async def test_children_and_daemons_end_when_server_is_stopped(era: str) -> None:
    async with lab({"bad": fake_server("leaves_child", "leaves_setsid", era=era)}) as bench:
        pids = await family(bench)
        await bench.hub.remove_server("bad")
        await bench.until(lambda: not any(alive(pid) for pid in pids), 2)


@ERAS
@pytest.mark.fault("A20")
async def test_children_and_daemons_end_when_server_exits(era: str) -> None:
    async with lab({"bad": fake_server("leaves_child", "leaves_setsid", era=era)}) as bench:
        pids = await family(bench)
        await bench.call("bad.crash", {"code": 0})
        await bench.until(lambda: not any(alive(pid) for pid in pids), 2)
        (await bench.call("bad.counter", timeout=15)).expect(None)


@ERAS
@pytest.mark.fault("A24")
async def test_orphans_and_zombies_of_a_server_are_reaped(era: str) -> None:
    async with lab({"bad": fake_server("zombies=20", era=era)}) as bench:
        server = bench.pid("bad")
        (await bench.call("bad.bad", {"effect": True})).expect(None)
        await asyncio.sleep(0.25)  # that long the orphans live
        await bench.until(lambda: zombies_of(bench.reaper_pid()) == 0, 1)
        assert zombies_of(server) == 20
        await bench.hub.remove_server("bad")
        await bench.until(lambda: zombies_of(bench.reaper_pid()) == zombies_of(server) == 0, 1)
