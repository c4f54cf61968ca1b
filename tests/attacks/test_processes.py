"""Attacks of a server that Toolway has started, with the rights of the same user."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.program import kill, program, start, until
from tests.process.test_processes import alive, descendants
from toolway import CallError, Hub

pytestmark = pytest.mark.anyio

SHELL = Path(__file__).parent / "shell_server.py"
CANARIES = {
    "TOOLWAY_TOKEN": "canary-token-1",
    "TOOLWAY_SECRETS_PASSPHRASE": "canary-passphrase-2",
    "TOOLWAY_CLUSTER_KEY": "c0" * 32,
    "TOOLWAY_DATABASE": "postgresql://toolway:canary-database-3@127.0.0.1:1/toolway",
    "TOOLWAY_DATABASE_FILE": "/canary-database-file-4",
    "TOOLWAY_NATS_CREDENTIALS": "/canary-nats-5",
    "_TOOLWAY_COMPLETE": "canary-complete-6",
}
GATEWAY_SECRETS = ("TOOLWAY_SECRETS_PASSPHRASE", "TOOLWAY_CLUSTER_KEY", "TOOLWAY_DATABASE")


def shell(**entry: Any) -> dict[str, Any]:
    """The entry of a hostile server."""
    return {"command": sys.executable, "args": ["-I", "-S", str(SHELL)], **entry}


def read_proc(pid: int, name: str) -> bytes:
    """A file of a process in /proc; empty if the kernel refuses it."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except PermissionError:
        return b""


async def run(hub: Hub, command: str, server: str = "shell") -> str:
    return (await hub.call_tool(f"{server}.run", {"command": command}, timeout=30)).text


# -- environment ------------------------------------------------------------------------------------------------------


@pytest.mark.attack("B6", "held-67")
@pytest.mark.parametrize("policy", ["inherit", "safe", "none"])
async def test_read_the_secrets_of_toolway_in_the_environment_of_a_server(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    async with Hub({"shell": shell(env_policy=policy, env={"TOOLWAY_GIVEN": "on-purpose"})}, token_store=None) as hub:
        found = await run(hub, "tr '\\0' '\\n' < /proc/$PPID/environ; env")
        reaper = await run(hub, "tr '\\0' '\\n' < /proc/$(ps -o ppid= -p $PPID | tr -d ' ')/environ")
    assert "TOOLWAY_GIVEN=on-purpose" in found  # the entry of the server may name a variable of Toolway
    for name, value in CANARIES.items():
        assert name not in found + reaper and value not in found + reaper


@pytest.mark.attack("B6", "held-68")
async def test_read_the_secrets_of_the_gateway_in_its_environment_and_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {name: CANARIES[name] for name in GATEWAY_SECRETS}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    flags = ("--cluster", "nats://user:canary-nats-7@127.0.0.1:1", "--port", "0")
    run = await start(tmp_path, {}, *flags)
    try:

        def shown() -> bytes:
            return read_proc(run.pid, "environ") + read_proc(run.pid, "cmdline")

        await until(lambda: run.process.returncode is not None or (b"serve" in shown() and b"canary" not in shown()))
        assert run.process.returncode is None, run.log
        found = shown()
        assert b"nats://user:*************@127.0.0.1:1" in found  # masked in its place, the rest is as it was
        for name, value in given.items():
            assert name.encode() not in found and value.encode() not in found
    finally:
        await kill(run)


# -- browser ----------------------------------------------------------------------------------------------------------

BROWSERS = (os.environ.get("CHROMIUM"), "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
BROWSER = next((path for path in BROWSERS if path and Path(path).exists()), "")


@pytest.mark.attack("BUG")
@pytest.mark.skipif(not BROWSER, reason="no Chromium: set $CHROMIUM")
async def test_the_dashboard_opens_in_a_real_browser(tmp_path: Path) -> None:
    script, page = tmp_path / "browser", tmp_path / "page.html"
    flags = f"--headless --no-sandbox --disable-gpu --user-data-dir={tmp_path}/profile --virtual-time-budget=10000"
    script.write_text(
        f'#!/bin/sh\n{BROWSER} {flags} --dump-dom "$1" > {page}.new 2>/dev/null && mv {page}.new {page}\n'
    )
    script.chmod(0o700)
    async with program(tmp_path, {}) as gateway:
        ui = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "toolway.cli", "ui"),
            env={**os.environ, "TOOLWAY_STATE": str(tmp_path / "state"), "BROWSER": str(script)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await ui.communicate()
        assert (ui.returncode, b"Traceback" in err) == (0, False), err.decode()
        assert f"http://127.0.0.1:{gateway.port}/dashboard".encode() in out  # printed beside, for another browser
        await until(page.exists, 60)
    assert "· Toolway</title>" in page.read_text()
    assert "Skip to content" in page.read_text()  # the script of the dashboard ran, with a session


# -- reaper -----------------------------------------------------------------------------------------------------------

DAEMON = "env -i setsid sh -c 'sleep 4711 & exec sleep 4712' > /dev/null 2>&1 < /dev/null & sleep 0.1"
REAPERS = ("parent of the server", "outer process")
HOLDER = """
import asyncio, sys
from toolway import Hub
async def main():
    async with Hub({"shell": {"command": sys.executable, "args": sys.argv[1:]}}, catalog_storage=None) as hub:
        print((await hub.call_tool("shell.run", {"command": sys.stdin.readline()})).text, flush=True)
        await asyncio.sleep(300)
asyncio.run(main())
"""


def kill_reapers(signal_name: str, *which: str) -> str:
    """A command that sends a signal to the processes of the reaper, which are above the server."""
    inner = "$(ps -o ppid= -p $PPID | tr -d ' ')"
    pids = {"parent of the server": inner, "outer process": f"$(ps -o ppid= -p {inner} | tr -d ' ')"}
    return f"kill -{signal_name} {' '.join(pids[each] for each in which)}"


@pytest.mark.attack("W9")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has sub-reapers")
@pytest.mark.parametrize("which", REAPERS)
@pytest.mark.parametrize("name", ["STOP", "KILL"])
async def test_leave_a_daemon_behind_by_a_signal_to_the_reaper(name: str, which: str) -> None:
    before = descendants(os.getpid())
    async with Hub({"shell": shell()}, catalog_storage=None, token_store=None) as hub:
        await run(hub, DAEMON)
        daemons = {pid for pid in descendants(os.getpid()) - before if b"sleep\x00471" in read_proc(pid, "cmdline")}
        assert len(daemons) == 2
        with suppress(CallError):  # the server dies with its reaper
            await run(hub, kill_reapers(name, which))
        if name == "KILL":
            await until(lambda: not any(alive(pid) for pid in daemons), 10)  # at once, while the hub runs
            assert await run(hub, "echo again") == "again\n"  # under a new reaper
    assert not any(alive(pid) for pid in daemons)


@pytest.mark.attack("W9", "held-75")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has sub-reapers")
async def test_leave_a_daemon_behind_by_stopping_the_reaper_before_the_hub_is_killed() -> None:
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLDER, *shell()["args"]), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdin is not None and holder.stdout is not None
    holder.stdin.write(f"{DAEMON}; {kill_reapers('STOP', *REAPERS)}; echo done\n".encode())
    assert await holder.stdout.readline() == b"done\n"
    family = descendants(holder.pid)
    assert len([pid for pid in family if b"sleep\x00471" in read_proc(pid, "cmdline")]) == 2
    holder.kill()
    await holder.wait()
    await until(lambda: not any(alive(pid) for pid in family), 20)
