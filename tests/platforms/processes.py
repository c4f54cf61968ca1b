"""Processes that Toolway leaves behind when it is killed: none."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

from tests.platforms.checks import Gap, check
from tests.platforms.home import FAKE, Home, wait_until
from tests.platforms.programs import with_grandchildren
from toolway._os import process_exists

HUB = """
import asyncio, sys
from toolway import Hub
SERVER = {"command": sys.executable, "args": sys.argv[1:]}
async def main():
    async with Hub({"mcpServers": {"fake": SERVER}}) as hub:
        await hub.call_tool("fake.echo", {"text": "x"})
        print("ready", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""
#: Kills itself in the moment in which its server exists, and has not run yet.
MOMENT = """
import asyncio, os, signal, sys
from toolway import Hub
SERVER = {"command": sys.executable, "args": sys.argv[1:]}
def die(pid):
    print(pid, flush=True)
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
if sys.platform == "win32":
    from toolway._os import win32_start
    create = win32_start._create
    win32_start._create = lambda *arguments: die(create(*arguments)[1])
else:
    from toolway.upstream.process import reaper_spawner
    reaper_spawner.Process = lambda pid, *rest, **more: die(pid)
async def main():
    async with Hub({"mcpServers": {"fake": SERVER}}) as hub:
        await hub.call_tool("fake.echo", {"text": "x"})
asyncio.run(main())
"""
#: Starts the same server as a program that knows nothing of Toolway does.
CONTROL = """
import subprocess, sys, time
server = subprocess.Popen([sys.executable, *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print("ready", flush=True)
time.sleep(600)
"""
LOCK = """
import os, sys, time
from toolway._os import try_lock_handle
print(try_lock_handle(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)), flush=True)
time.sleep(600)
"""


def runs(pid: int) -> bool:
    """Return True if there is such a process, and it has not ended."""
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False
    return process_exists(pid)


def kill_parent_of_family(home: Home, program: str, *words: str) -> list[int]:
    """Start a program with a server of three processes, kill it, and return the ids of the three."""
    file = home.folder / "pids"
    parent = home.start_program("-c", program, with_grandchildren.__file__, str(file), *words)
    assert parent.stdout is not None
    assert parent.stdout.readline().strip() == b"ready"
    wait_until(lambda: file.exists() and len(file.read_text().split()) == 3, "the server has its grandchild")
    pids = [int(line) for line in file.read_text().split()]
    assert all(map(runs, pids))
    parent.kill()
    parent.wait(60)
    return pids


def end(pids: list[int]) -> None:
    for pid in filter(runs, pids):
        with contextlib.suppress(OSError):
            os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))


@check("Processes", "kill a hub: its server, child and grandchild end with it", quick=True)
def grandchildren(home: Home) -> str:
    pids = kill_parent_of_family(home, HUB)
    return f"none after {wait_until(lambda: not any(map(runs, pids)), 'all have ended', 20):.0f} ms"


@check("Processes", "kill a hub whose grandchildren are detached: they end with it", quick=True)
def detached(home: Home) -> str | Gap:
    if sys.platform == "darwin":
        return Gap("a daemon that left its session is found only while its server runs")
    pids = kill_parent_of_family(home, HUB, "--detach")
    return f"none after {wait_until(lambda: not any(map(runs, pids)), 'all have ended', 20):.0f} ms"


@check("Processes", "kill a hub in the moment in which its server is created: it ends, too", quick=True)
def moment(home: Home) -> str:
    parent = home.start_program("-c", MOMENT, *FAKE["args"], "--mode", "ignore_eof")
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.wait(60)
    return f"none after {wait_until(lambda: not runs(pid), 'the server has ended', 20):.0f} ms"


@check("Processes", "the control: without Toolway the same grandchildren survive")
def control(home: Home) -> str:
    pids = kill_parent_of_family(home, CONTROL, "--detach")
    try:
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not any(map(runs, pids)), "", 2)
        left = sum(map(runs, pids))
        assert left >= 2, left
        return f"{left} of 3 survive"
    finally:
        end(pids)


@check("Processes", "kill a gateway: its server ends with it")
def gateway(home: Home) -> str:
    home.serve_these()
    running = home.start_gateway()
    home.toolway("call", "fake.echo", "text=x")
    pid = running.servers()["fake"]["pid"]
    assert runs(pid)
    running.process.kill()
    return f"gone after {wait_until(lambda: not runs(pid), 'the server has ended', 20):.0f} ms"


@check("Processes", "kill a program that holds a lock: the next one gets it", quick=True)
def lock_of_killed(home: Home) -> str:
    from toolway._os import try_lock_handle

    file = home.folder / "lock"
    holder = home.start_program("-c", LOCK, str(file))
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == b"True"
    handle = os.open(file, os.O_RDWR)
    try:
        assert not try_lock_handle(handle)
        holder.kill()
        return f"free after {wait_until(lambda: try_lock_handle(handle), 'the lock is free', 20):.0f} ms"
    finally:
        os.close(handle)


@check("Processes", "a server that ignores the end of its input is ended all the same")
def stubborn(home: Home) -> str:
    home.serve_these({"fake": {**FAKE, "args": [*FAKE["args"], "--mode", "ignore_eof"]}})
    pid = int(home.toolway("call", "fake.pid", "-q").split()[0])
    assert not runs(pid)
    return "ended with the command"
