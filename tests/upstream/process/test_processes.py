"""Processes: restarts, neighbours at the start, and nothing left behind by a normal close."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.timing import within
from toolway import Hub, OutcomeUnknown, ServerUnavailable
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def descendants(root: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] != b"Z":
                children.setdefault(int(fields[1]), []).append(int(name))
    found, line = set(), [root]
    while line:
        for pid in children.get(line.pop(), ()):
            found.add(pid)
            line.append(pid)
    return found


async def until(condition: object, seconds: float) -> float:
    """Seconds until `condition()` holds."""
    assert callable(condition)
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"not within {seconds} s"
        await asyncio.sleep(0.005)
    return time.monotonic() - began


async def test_entering_hub_with_many_servers_returns_at_once() -> None:
    hub = Hub({f"s{n}": fake_server() for n in range(42)}, catalog_storage=None)
    began = time.monotonic()
    async with hub:
        assert time.monotonic() - began < within(0.1)
        await hub.wait_ready(timeout=60)


async def test_bad_starters_do_not_delay_a_healthy_server() -> None:
    """Missing, ending at once, silent and slow: among twenty, a first call is hardly later than alone."""

    async def first_call(servers: dict[str, object]) -> float:
        began = time.monotonic()
        async with Hub(servers, catalog_storage=None) as hub:
            await hub.call_tool("good.echo", {"text": "x"}, timeout=20)
            return time.monotonic() - began

    bad: dict[str, object] = {
        "missing": "no-such-command-here",
        "ends": fake_server("exit_at_start=1"),
        "mute": fake_server("silent"),
        "slow": fake_server("slow_start=30"),
    }
    healthy: dict[str, object] = {f"h{n}": fake_server() for n in range(15)}
    await first_call({"good": fake_server()})
    alone = await first_call({"good": fake_server()})
    assert await first_call({**bad, **healthy, "good": fake_server()}) < alone + within(0.5)


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_server_killed_during_call_is_detected_and_replaced(era: str) -> None:
    async with Hub({"fake": fake_server(era=era)}, catalog_storage=None) as hub:
        await hub.wait_ready()
        pid = hub.status()["fake"].pid
        assert pid is not None
        call = asyncio.create_task(hub.call_tool("fake.bad", {"mode": "never"}))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(OutcomeUnknown) as caught:
            await call
        assert time.monotonic() - began < within(0.5)
        assert caught.value.executed == "unknown"
        assert (await hub.call_tool("fake.echo", {"text": "next"})).text == "next"
        status = hub.status()["fake"]
        assert (status.state, status.restarts) == ("ready", 1)
        assert "signal 9" in (status.last_error or "")


async def test_server_killed_while_idle_is_detected_and_replaced() -> None:
    async with Hub({"fake": fake_server()}, catalog_storage=None) as hub:
        await hub.wait_ready()
        pid = hub.status()["fake"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: hub.status()["fake"].state != "ready", within(0.5))
        assert (await hub.call_tool("fake.echo", {"text": "next"})).text == "next"


async def test_call_right_after_a_kill_goes_to_the_next_process() -> None:
    async with Hub({"fake": fake_server()}, catalog_storage=None) as hub:
        await hub.wait_ready()
        for _ in range(3):
            pid = hub.status()["fake"].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until(lambda pid=pid: not alive(pid), within(1))
            await asyncio.sleep(0.05)  # its other threads may hold the pipe open a moment longer
            assert (await hub.call_tool("fake.echo", {"text": "x"})).text == "x"


async def test_silent_server_is_restarted() -> None:
    from dataclasses import replace

    from toolway import HealthCheck

    entry = fake_server("sigstop")
    async with Hub({"fake": entry}, catalog_storage=None) as hub:
        server = hub._core.servers.entries["fake"]
        await hub.add_server("fake", replace(server, health=HealthCheck(interval=0.3, timeout=1.0)), replace=True)
        await hub.wait_ready()
        first = hub.status()["fake"].pid
        with pytest.raises(Exception, match="timed out"):
            await hub.call_tool("fake.bad", timeout=0.5)
        await until(lambda: hub.status()["fake"].pid not in (first, None), 15)
        assert (await hub.call_tool("fake.echo", {"text": "new"})).text == "new"


async def test_server_that_exits_too_often_fails_until_restarted() -> None:
    async with Hub({"fake": {**fake_server("exit_at_start=1"), "maxRestarts": 2}}, catalog_storage=None) as hub:
        await until(lambda: hub.status()["fake"].lifecycle == "failed", 60)
        status = hub.status()["fake"]
        assert "failed too often" in status.why
        assert status.next_retry is not None
        assert status.next_retry > 200
        with pytest.raises(ServerUnavailable):
            await hub.call_tool("fake.echo")
        hub.restart_server("fake")
        await until(lambda: hub.status()["fake"].lifecycle != "failed", within(1))


async def test_normal_close_leaves_no_process_within_6_seconds() -> None:
    before = descendants(os.getpid())
    servers = {
        "plain": fake_server(),
        "deaf": fake_server("ignore_eof"),
        "stubborn": fake_server("ignore_eof", "ignore_sigterm"),
        "child": fake_server("leaves_child"),
        "daemon": fake_server("leaves_setsid"),
        "family": fake_server(),
    }
    async with Hub(servers, catalog_storage=None) as hub:
        await hub.wait_ready()
        await hub.call_tool("family.spawn_children")
        mine = descendants(os.getpid()) - before
        assert len(mine) >= len(servers) + 1 + 3
        began = time.monotonic()
    assert time.monotonic() - began < within(6)
    assert not [pid for pid in mine if alive(pid)]


async def test_children_of_a_killed_server_are_killed() -> None:
    async with Hub({"fake": fake_server()}, catalog_storage=None) as hub:
        await hub.wait_ready()
        reply = await hub.call_tool("fake.spawn_children")
        pids = list(reply.data.values())
        assert len(pids) >= 2
        assert all(alive(pid) for pid in pids)
        server = hub.status()["fake"].pid
        assert server is not None
        os.kill(server, signal.SIGKILL)
        await until(lambda: not any(alive(pid) for pid in pids), within(2))


async def test_zombies_are_reaped() -> None:
    async with Hub({"fake": fake_server("zombies")}, catalog_storage=None) as hub:
        await hub.wait_ready()
        keeper = hub._core.spawner._reaper
        assert keeper is not None
        await hub.call_tool("fake.bad")
        inner = int(Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text())

        def orphans() -> int:
            count = 0
            for name in os.listdir("/proc"):
                if name.isdigit():
                    try:
                        fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                    except OSError:
                        continue
                    count += fields[0] == "Z" and int(fields[1]) == inner
            return count

        await until(lambda: orphans() == 0, within(1))


async def test_killed_reaper_takes_its_servers_and_is_replaced() -> None:
    async with Hub({"fake": fake_server("ignore_eof")}, catalog_storage=None) as hub:
        await hub.wait_ready()
        keeper, pid = hub._core.spawner._reaper, hub.status()["fake"].pid
        assert keeper is not None
        assert pid is not None
        os.kill(keeper.pid, signal.SIGKILL)
        await until(lambda: not alive(pid), within(1))
        assert (await hub.call_tool("fake.echo", {"text": "x"})).text == "x"


async def test_100_parallel_half_second_calls_take_under_a_second() -> None:
    async with Hub({"fake": fake_server()}, catalog_storage=None) as hub:
        await hub.wait_ready()
        began = time.monotonic()
        replies = await asyncio.gather(
            *(hub.call_tool("fake.sleep", {"seconds": 0.5, "nonce": f"n{n}"}) for n in range(100))
        )
        assert time.monotonic() - began < within(1)
        assert [reply.data["nonce"] for reply in replies] == [f"n{n}" for n in range(100)]


async def test_no_result_is_misplaced_or_lost() -> None:
    count = 10_000 if os.environ.get("TOOLWAY_LONG") else 2_000
    dice = random.Random(11)
    servers = {f"s{n}": fake_server(era=("modern", "legacy")[n % 2]) for n in range(10)}
    async with Hub(servers, catalog_storage=None) as hub:
        await hub.wait_ready()
        left = iter(range(count))
        good = 0

        async def caller() -> None:
            nonlocal good
            for number in left:
                server, nonce = dice.choice(list(servers)), f"{number}-{dice.getrandbits(64)}"
                reply = await hub.call_tool(f"{server}.echo", {"text": nonce, "nonce": nonce})
                assert (reply.server, reply.text, reply.data["nonce"]) == (server, nonce, nonce)
                good += 1

        await asyncio.gather(*(caller() for _ in range(200)))
        assert good == count
