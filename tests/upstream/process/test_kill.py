"""`kill -9` of the process that holds the Hub, at a random moment: no descendant is left after two seconds."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.orphans import no_other_orphans
from tests.timing import within
from tests.upstream.process.test_processes import alive, descendants

pytestmark = pytest.mark.usefixtures("_alone")
ROUNDS = 20 if os.environ.get("TOOLWAY_LONG") else 4

HOLDER = """
import asyncio
from toolway import Hub
from toolway.testing import fake_server

SERVERS = {
    "plain": fake_server(), "old": fake_server(era="legacy"), "deaf": fake_server("ignore_eof"),
    "stubborn": fake_server("ignore_eof", "ignore_sigterm"), "child": fake_server("leaves_child"),
    "daemon": fake_server("leaves_setsid"), "family": fake_server(), "clan": fake_server("ignore_eof"),
    "slow": fake_server("slow_start=1"), "dies": fake_server("crash_every=0.5"),
}

async def busy(hub, name):
    while True:
        try:
            await hub.call_tool(f"{name}.spawn_children" if name in ("family", "clan") else f"{name}.sleep",
                                {"seconds": 0.2})
        except Exception:
            pass
        await asyncio.sleep(0.3)

async def main():
    async with Hub(SERVERS, catalog_storage=None) as hub:
        print("entered", flush=True)
        await asyncio.gather(*(busy(hub, name) for name in SERVERS))

asyncio.run(main())
"""

NEXT = """
import asyncio
from toolway import Hub
from toolway.testing import fake_server

async def main():
    async with Hub({"a": fake_server()}, catalog_storage=None) as hub:
        await hub.wait_ready()

asyncio.run(main())
"""


@pytest.fixture
def _alone() -> Iterator[None]:
    with no_other_orphans():
        yield


def test_no_descendant_outlives_a_killed_hub() -> None:
    dice = random.Random(5)
    most = 0
    for number in range(ROUNDS):
        holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE)
        assert holder.stdout is not None
        holder.stdout.readline()
        time.sleep(dice.uniform(0.0, 3.0) if number else 2.5)
        family = descendants(holder.pid)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
        family |= {pid for pid in family for pid in descendants(pid)}
        most = max(most, len(family))
        end = time.monotonic() + within(2)
        while any(alive(pid) for pid in family) and time.monotonic() < end:
            time.sleep(0.01)
        left = [pid for pid in family if alive(pid)]
        assert not left, f"round {number}: {len(left)} of {len(family)} left"
    assert most > 10, "the test killed too early to show anything"


def test_next_reaper_kills_leftovers_of_a_double_crash(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}  # else the hub of another test could be the next one
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, env=environment)
    assert holder.stdout is not None
    holder.stdout.readline()
    end = time.monotonic() + 60
    while not _has_daemon(holder.pid) and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(holder.pid, signal.SIGSTOP)  # else it could start the next keeper in between
    family = descendants(holder.pid)
    keepers = [pid for pid in family if b"reaper.py" in _cmdline(pid)]
    assert len(keepers) == 2
    for pid in keepers:
        os.kill(pid, signal.SIGSTOP)  # else the second one could end the servers after the end of the first
    for pid in (*keepers, holder.pid):
        os.kill(pid, signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    time.sleep(0.5)
    survivors = [pid for pid in family if alive(pid)]  # daemons in their own sessions
    subprocess.run([sys.executable, "-c", NEXT], check=True, timeout=60, env=environment)
    assert survivors, "nothing survived the crash, so there was nothing to sweep"
    assert not [pid for pid in survivors if alive(pid)]


def _has_daemon(holder: int) -> bool:
    """Return whether a descendant is in a session whose leader has ended: only such a one survives its keepers."""
    family = {holder, *descendants(holder)}
    sessions = set()
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            sessions.add(os.getsid(pid))
    return bool(sessions - family - {os.getsid(0)})


def _cmdline(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""
