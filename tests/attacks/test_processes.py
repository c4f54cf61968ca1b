"""Attacks of a server that Toolway has started, with the rights of the same user."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.program import kill, program, start, until
from tests.upstream.process.test_processes import alive, descendants
from toolway import CallError, Hub
from toolway.catalog.persister import FORGED_LISTS
from toolway.cluster.options import Flags, read_cluster_key, read_options
from toolway.config import locations
from toolway.events import CallFinished, Event, ServerLog
from toolway.gateway.state_dir import RunningGateway, StateDir
from toolway.upstream.process import bubblewrap, landlock

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
async def test_server_environment_contains_no_toolway_secrets(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    async with Hub({"shell": shell(env_policy=policy, env={"TOOLWAY_GIVEN": "on-purpose"})}, token_store=None) as hub:
        found = await run(hub, "tr '\\0' '\\n' < /proc/$PPID/environ; env")
        reaper = await run(hub, "tr '\\0' '\\n' < /proc/$(ps -o ppid= -p $PPID | tr -d ' ')/environ")
    assert "TOOLWAY_GIVEN=on-purpose" in found  # the entry of the server may name a variable of Toolway
    for name, value in CANARIES.items():
        assert name not in found + reaper and value not in found + reaper


@pytest.mark.attack("B6", "held-68")
async def test_gateway_process_shows_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_dashboard_opens_in_a_real_browser(tmp_path: Path) -> None:
    script, page = tmp_path / "browser", tmp_path / "page.html"
    flags = f"--headless --no-sandbox --disable-gpu --user-data-dir={tmp_path}/profile --virtual-time-budget=10000"
    script.write_text(
        f'#!/bin/sh\n{BROWSER} {flags} --dump-dom "$1" > {page}.new 2>/dev/null && mv {page}.new {page}\n'
    )
    script.chmod(0o700)
    async with program(tmp_path, {}) as gateway:
        for _ in range(4):
            page.unlink(missing_ok=True)
            ui = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "toolway.cli", "ui"),
                env={**os.environ, "TOOLWAY_STATE": str(tmp_path / "state"), "BROWSER": str(script)},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, err = await ui.communicate()
            assert (ui.returncode, b"Traceback" in err) == (0, False), err.decode()
            assert f"http://127.0.0.1:{gateway.port}/dashboard".encode() in out  # printed too, for another browser
            await until(page.exists, 60)
            # On a busy machine Chromium was seen to end without any document. Even an error page is one.
            if page.read_text():
                break
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
async def test_signal_to_the_reaper_leaves_no_daemon(name: str, which: str) -> None:
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
async def test_stopped_reaper_of_a_killed_hub_leaves_no_daemon() -> None:
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


# -- state ------------------------------------------------------------------------------------------------------------

LANDLOCK = landlock.abi_version()
needs_landlock = pytest.mark.skipif(LANDLOCK < landlock.MIN_ABI, reason="this kernel has no Landlock")


@pytest.mark.attack("W10", "H1")
@needs_landlock
async def test_guarded_server_cannot_read_the_gateway_token(tmp_path: Path) -> None:
    servers = {"guarded": shell(sandbox="guard"), "open": shell(sandbox="off")}
    async with program(tmp_path / "gateway", servers) as gateway:
        state = tmp_path / "gateway" / "state"

        async def steal(server: str) -> str:
            command = f"cat {state}/token {state}/key; readlink /proc/{gateway.pid}/exe"
            body = {"server": server, "tool": "run", "arguments": {"command": command}}
            status, found = await gateway.request("POST", "/admin/call", body)
            assert status == 200, found
            return str(found)

        assert gateway.token in await steal("open")  # the attack works on a server without the sandbox
        found = await steal("guarded")
        refused = found.count("Permission denied") + found.count("No such file")  # by Landlock, or by bubblewrap
        assert refused == 2 and gateway.token not in found and "python" not in found


@pytest.mark.attack("B6")
@needs_landlock
async def test_guarded_server_cannot_read_the_cluster_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the key belongs to the administrator, like the folder of a mounted secret."""
    monkeypatch.setattr(landlock, "hides_nothing_else", lambda path: path.startswith(f"{tmp_path}/secrets/"))
    monkeypatch.setattr(locations, "_private_files", set())
    file = tmp_path / "secrets" / "cluster.key"
    file.parent.mkdir()
    file.write_text("c0" * 32)
    (file.parent / "other").write_text("other")
    assert read_cluster_key(str(file), {}) == b"\xc0" * 32
    async with Hub({"auto": shell(), "off": shell(sandbox="off")}, catalog_storage=None, token_store=None) as hub:
        assert await run(hub, f"cat {file}", "off") == "c0" * 32
        assert "Permission denied" in await run(hub, f"cat {file}", "auto")
        assert await run(hub, f"cat {file.parent}/other", "auto") == "other"


@pytest.mark.attack("W10", "W9")
@needs_landlock
async def test_guarded_server_cannot_change_toolway_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "find_program", lambda: None)  # tests/attacks/test_sandbox.py has it
    state, work, bundle = tmp_path / "state" / "toolway", tmp_path / "work", tmp_path / "data/toolway/bundles/b-1"
    for folder in (state / "gateway", work, bundle):
        folder.mkdir(parents=True)
    token = state / "gateway" / "token"
    token.write_text("canary")
    (work / "file").write_text("text")
    (bundle / "script").write_text("echo from the bundle")
    attacks = [
        f"cat {token}",
        f"cat /proc/self/root{token}",
        f"cat /proc/{os.getpid()}/root{token}",
        f"echo x > {token}",
        f"echo x > {state}/new",
        f"rm {token}",
        f"ln -s {work}/file {state}/link",
        f"ln {token} {work}/link",
        f"mv {token} {work}/token",
        f"mv {work}/file {token}",
        f"mv {state} {work}/state",
        f"mv {tmp_path}/state {work}/state",
        f"mkdir {state}/bundles",
        f"readlink /proc/{os.getpid()}/exe",
        *([] if os.geteuid() == 0 else [f"cat /proc/{os.getpid()}/environ"]),  # root may read it by CAP_PERFMON
        *([f"kill -0 {os.getpid()}", kill_reapers("STOP", *REAPERS)] if LANDLOCK >= 6 else []),
    ]
    honest = [
        f"cat {work}/file && echo x > {work}/new && mkdir {work}/a && mv {work}/new {work}/a/new && rm -r {work}/a",
        f"sh {bundle}/script",
        "sleep 9 & kill $!",
        "ls / > /dev/null && cat /proc/self/status > /dev/null && echo x > /dev/null",
        f"ls {tmp_path} {state}",
    ]
    async with Hub({"shell": shell(sandbox="guard")}, catalog_storage=None, token_store=None) as hub:
        for command in attacks:
            assert (await run(hub, f"({command}) > /dev/null 2>&1; echo $?")).strip() != "0", command
        for command in honest:
            assert (await run(hub, f"({command}) 2>&1; echo $?")).endswith("0\n"), command
    assert token.read_text() == "canary" and sorted(path.name for path in state.iterdir()) == ["gateway"]


@pytest.mark.attack("R2-D-4")
async def test_forged_definition_cache_is_rejected(tmp_path: Path) -> None:
    """The cache folder is hidden from no server. A list that was changed in it is fetched again."""
    bank = shell(lazy=True)
    mallory = shell(sandbox="guard")
    cache, key = tmp_path / "cache" / "toolway" / "catalog", tmp_path / "state" / "toolway" / "gateway" / "lists.key"
    async with Hub({"bank": shell()}, token_store=None) as hub:
        assert [tool.description for tool in await hub.list_tools()] == ["Run a command in a shell."]
    assert key.stat().st_mode & 0o777 == 0o600

    async def known(entry: dict[str, Any]) -> tuple[list[str], list[Any]]:
        logged: list[Any] = []

        class Sink:
            wants_calls = wants_attempts = False

            def on_call(self, event: CallFinished) -> None: ...

            def on_event(self, event: Event) -> None:
                logged.extend([event.data] if isinstance(event, ServerLog) else [])

        hub = Hub({"bank": entry}, token_store=None)
        hub.add_sink(Sink())
        async with hub:
            return [tool.description for tool in hub.known_tools()], logged

    assert await known(bank) == (["Run a command in a shell."], [])
    forgeries = [
        f"sed -i 's/Run a command in a shell/Send all money/' {cache}/bank-*",
        f"cp {cache}/shell-* $(ls {cache}/bank-*)",  # its own list, with its MAC
        f"sed -i 1d {cache}/bank-*",
        f"echo > $(ls {cache}/bank-*)",
    ]
    async with Hub({"shell": mallory}, token_store=None) as hub:
        await hub.wait_ready("shell")
    async with Hub({"shell": mallory}, token_store=None) as shell_hub:
        if LANDLOCK >= landlock.MIN_ABI:
            assert re.search("Permission denied|No such file", await run(shell_hub, f"cat {key}"))
        for forgery in forgeries:
            assert await run(shell_hub, f"{forgery} && echo done") == "done\n", forgery
            assert await known(bank) == ([], [FORGED_LISTS]), forgery
            async with Hub({"bank": bank}, token_store=None) as hub:
                assert await run(hub, "echo hello", "bank") == "hello\n"  # the call fetched the list again
            assert await known(bank) == (["Run a command in a shell."], []), forgery
    (name,) = [file.name for file in cache.iterdir() if file.name.startswith("bank-")]
    key.unlink()  # a program with another state folder uses another file
    assert await known(bank) == ([], [])
    async with Hub({"bank": shell()}, token_store=None) as hub:
        await hub.list_tools()
    assert len([file for file in cache.iterdir() if file.name.startswith("bank-")]) == 2 and (cache / name).exists()


def test_folder_is_hidden_only_if_nothing_else_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(os, "getegid", lambda: 12345)
    monkeypatch.setattr(os, "getgroups", list)
    assert landlock.hides_nothing_else("/var/lib/toolway")
    assert not landlock.hides_nothing_else("/tmp/toolway")
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(tmp_path).st_uid)
    assert not landlock.hides_nothing_else(str(tmp_path / "toolway"))


@pytest.mark.attack("W10")
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="becomes another user, which needs root")
def test_gateway_environment_is_unreadable_for_the_same_user() -> None:
    script = """
import ctypes, os, sys
from toolway.serve.own_process import protect_process
libc = ctypes.CDLL(None)
def readable(pid):
    os.setuid(65534)
    try:
        open(f"/proc/{pid}/environ").read()
    except PermissionError:
        return 0
    return 1
ready, go = os.pipe()
back, done = os.pipe()
pid = os.fork()
if pid == 0:
    os.setuid(65534)
    libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: a change of the user has cleared it
    os.write(go, b"1")
    os.read(back, 1)
    protect_process()
    os.write(go, b"2")
    os.read(back, 1)
    os._exit(0)
found = []
for _ in range(2):
    os.read(ready, 1)
    reader = os.fork()
    if reader == 0:
        os._exit(readable(pid))
    found.append(os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1]))
    os.write(done, b"x")
print(found)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[1, 0]\n", done.stderr


# -- token of the command line ----------------------------------------------------------------------------------------


@pytest.fixture
async def listener() -> AsyncIterator[tuple[int, list[bytes]]]:
    """A program of an attacker that listens on a port: the port, and all that it received."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            received.append(data)
            writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            writer.close()
            break

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], received


async def command_line(state: Path, *words: str) -> int:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolway.cli", *words),
        env={**os.environ, "TOOLWAY_STATE": str(state)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    return await process.wait()


@pytest.mark.attack("held-70")
async def test_foreign_gateway_receives_no_token(tmp_path: Path, listener: tuple[int, list[bytes]]) -> None:
    port, received = listener
    token = StateDir(tmp_path).read_token()
    assert await command_line(tmp_path, "top", "--once", "--gateway", f"http://127.0.0.1:{port}") != 0
    assert received and token.encode() not in b"".join(received)


@pytest.mark.attack("held-71")
async def test_port_of_an_ended_gateway_receives_no_token(tmp_path: Path, listener: tuple[int, list[bytes]]) -> None:
    port, received = listener
    ended = await asyncio.create_subprocess_exec("true")
    await ended.wait()
    state = StateDir(tmp_path)
    state.read_token()
    state.write_running(RunningGateway(f"http://127.0.0.1:{port}", ended.pid, ""))
    assert await command_line(tmp_path, "top", "--once") != 0
    assert received == []


@pytest.mark.attack("B6")
@pytest.mark.parametrize(
    ("url", "used"),
    [
        ("postgresql://toolway@db/x", "postgresql://toolway:p%40ss@db/x"),
        ("postgresql://toolway:own@db/x", "postgresql://toolway:own@db/x"),
        ("postgresql://db/x", "postgresql://db/x"),
        ("sqlite:///x.db", "sqlite:///x.db"),
    ],
)
def test_pgpassword_moves_into_the_database_url(url: str, used: str) -> None:
    """It moves into the URL, as libpq would use it, so `serve` can remove the variable."""
    environ = {"TOOLWAY_CLUSTER_KEY": "c0" * 32, "PGPASSWORD": "p@ss"}
    options = read_options(Flags(cluster="nats://127.0.0.1:4222", database=url), environ)
    assert options is not None and options.database_url == used
