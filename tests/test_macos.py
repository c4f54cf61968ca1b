"""Toolway on a macOS that Linux emulates: nothing needs what macOS lacks, and no server outlives its hub.

`scripts/macos-python` is Python without what only Linux has, also for every program that Toolway starts. What it cannot
show is listed as "not run" on docs/reference/platforms.md."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.orphans import no_other_orphans

ROOT = Path(__file__).resolve().parent.parent
PYTHON = str(ROOT / "scripts" / "macos-python")
SERVER = ["-m", "toolway.testing.stdio_main"]
FAKE = {"command": PYTHON, "args": SERVER}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="takes away what only Linux has")

#: A server that starts a process in its own session, and says both pids.
LEAVES_CHILD = """
import subprocess, sys
child = subprocess.Popen(["/bin/sleep", "300"], start_new_session=True)
print(child.pid, file=sys.stderr, flush=True)
from toolway.testing import command_line
command_line.main()
"""
STUBBORN = ["--mode", "ignore_eof"]  # it does not end with its input
HUB = """
import asyncio, json, sys
from toolway import Hub
async def main():
    async with Hub(json.loads(sys.argv[1]), audit_log=sys.argv[2] or None) as hub:
        pids = [int((await hub.call_tool(f"{name}.pid", {})).text) for name in json.loads(sys.argv[1])["mcpServers"]]
        print(json.dumps({"servers": pids, "stderr": [each.stderr for each in hub.status().values()]}), flush=True)
        if len(sys.argv) > 3:
            await asyncio.sleep(300)
asyncio.run(main())
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOOLWAY_", "XDG_"))}
    return {**kept, "HOME": str(tmp_path), "TOOLWAY_PYTHON": sys.executable, "TOOLWAY_SECRETS": "file"}


@pytest.fixture
def toolway(environ: dict[str, str], tmp_path: Path) -> Callable[..., str]:
    """Run a command in its own home, and return what it wrote."""

    def run(*words: str, code: int = 0) -> str:
        done = subprocess.run(
            [PYTHON, "-m", "toolway.cli", *words],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture
def started(environ: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python on that macOS, and kill it after the test if it still runs."""
    running: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [PYTHON, *words], env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def runs(pid: int) -> bool:
    """Return True if a process runs, and is not a zombie that waits for its parent."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_gone(*pids: int, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while left := [pid for pid in pids if runs(pid)]:
        assert time.monotonic() < end, f"still running: {left}"
        time.sleep(0.02)


def children_of(pid: int) -> set[int]:
    rows = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return {int(child) for child, parent in map(str.split, rows.splitlines()) if int(parent) == pid}


# -- the emulation ----------------------------------------------------------------------------------------------------


def test_linux_only_features_are_gone() -> None:
    program = """
import ctypes, os, platform, select, socket, sys, time
assert (sys.platform, platform.system()) == ("darwin", "Darwin")
assert not (hasattr(os, "fdatasync") or hasattr(os, "pipe2") or hasattr(select, "epoll"))
assert not (hasattr(socket, "SOCK_CLOEXEC") or hasattr(time, "CLOCK_BOOTTIME"))
assert not os.path.exists("/proc/self") and not os.path.exists("/sys/fs/cgroup")
for act in (lambda: open("/proc/self/stat"), lambda: os.listdir("/proc"), lambda: os.readlink("/proc/self/exe")):
    try:
        act()
        raise SystemExit("/proc is there")
    except FileNotFoundError:
        pass
try:
    ctypes.CDLL(None).prctl
    raise SystemExit("prctl is there")
except AttributeError:
    print("macOS")
"""
    done = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "macOS\n", done.stderr


# -- library ----------------------------------------------------------------------------------------------------------


def test_hub_runs_several_servers_and_an_audit_log(environ: dict[str, str], tmp_path: Path) -> None:
    servers = {"mcpServers": {"one": FAKE, "two": {**FAKE, "sandbox": "off"}}}
    log = tmp_path / "audit.jsonl"
    done = subprocess.run(
        [PYTHON, "-c", HUB, json.dumps(servers), str(log)], env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    wait_gone(*json.loads(done.stdout)["servers"])
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert {record.get("server") for record in records} >= {"one", "two"}


def test_disk_sync_uses_f_fullfsync_then_fsync(environ: dict[str, str], tmp_path: Path) -> None:
    program = """
import fcntl, os, sys
from toolway import _os
asked = []
def call(real, name, fails):
    def replaced(*arguments):
        asked.append((name, *arguments[1:]))
        if fails:
            raise OSError(25, "Inappropriate ioctl for device")
        return None
    return replaced
with open(sys.argv[1], "wb") as file:
    for fails in (False, True):
        fcntl.fcntl, os.fsync = call(fcntl.fcntl, "fcntl", fails), call(os.fsync, "fsync", False)
        _os.sync_data(file.fileno())
print(asked)
"""
    done = subprocess.run([PYTHON, "-c", program, str(tmp_path / "f")], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[('fcntl', 51), ('fcntl', 51), ('fsync',)]\n", done.stderr


# -- no process is left behind ----------------------------------------------------------------------------------------


def test_killed_hub_leaves_no_process(started: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(LEAVES_CHILD)
    servers = {"mcpServers": {"plain": FAKE, "parent": {"command": PYTHON, "args": [str(program), *STUBBORN]}}}
    hub = started("-c", HUB, json.dumps(servers), "", "stay")
    assert hub.stdout is not None
    told = json.loads(hub.stdout.readline())
    grandchild = int("".join(told["stderr"]).split()[0])
    (reaper,) = children_of(hub.pid)
    assert all(map(runs, (*told["servers"], grandchild, reaper)))
    assert os.getsid(grandchild) == grandchild
    hub.send_signal(signal.SIGKILL)
    wait_gone(*told["servers"], grandchild, reaper)


def test_next_gateway_kills_leftovers_of_a_killed_reaper(
    started: Callable[..., subprocess.Popen[str]], toolway: Callable[..., str], tmp_path: Path
) -> None:
    """Nothing on macOS tells a server that its reaper died."""
    with no_other_orphans():
        the_next_gateway_ends_the_server(started, toolway, tmp_path)


def the_next_gateway_ends_the_server(
    started: Callable[..., subprocess.Popen[str]], toolway: Callable[..., str], tmp_path: Path
) -> None:
    program = tmp_path / "server.py"
    program.write_text(LEAVES_CHILD)
    config = tmp_path / ".config" / "toolway" / "mcp.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps({"mcpServers": {"one": {"command": PYTHON, "args": [str(program), *STUBBORN]}}}))
    first = Gateway(started)
    pid = int(toolway("call", "one.pid", "-q").split()[-1])
    (reaper,) = children_of(first.process.pid)
    assert pid in children_of(reaper)
    first.process.kill()
    os.kill(reaper, signal.SIGKILL)
    wait_gone(reaper, first.process.pid)
    assert runs(pid)
    toolway("rm", "one")
    toolway("add", "two", "--yes", "--", PYTHON, *SERVER)
    second = Gateway(started)
    assert "hi" in toolway("call", "two.echo", "text=hi", "-q")
    wait_gone(pid)
    second.process.terminate()
    assert second.process.wait(30) == 0


# -- commands and gateway ---------------------------------------------------------------------------------------------


class Gateway:
    """A gateway that serves on a free port."""

    def __init__(self, started: Callable[..., subprocess.Popen[str]]) -> None:
        words = ("-m", "toolway.cli", "serve", "--port", "0", "--json", "--drain-delay", "0")
        self.process = started(*words)
        assert self.process.stdout is not None
        text = ""
        while not text.endswith("\n}\n"):
            line = self.process.stdout.readline()
            assert line, f"the gateway ended with {self.process.wait(30)}: {text}"
            text += line
        told = json.loads(text)
        assert "url" in told, text
        self.url: str = told["url"].removesuffix("/mcp")


def test_commands_use_the_same_folders_as_on_linux(toolway: Callable[..., str], tmp_path: Path) -> None:
    assert toolway("--version").startswith("toolway ")
    toolway("add", "fake", "--yes", "--", PYTHON, *SERVER)
    assert json.loads((tmp_path / ".config/toolway/mcp.json").read_text())["mcpServers"].keys() == {"fake"}
    assert "ready" in toolway("ls") and "fake.echo" in toolway("tools")
    assert toolway("call", "fake.echo", "text=hällo", "-q") == "hällo\n"
    with no_other_orphans():
        assert "no problem found" in toolway("doctor", "fake").splitlines()[0]
    assert not (tmp_path / "Library").exists() and (tmp_path / ".local" / "state" / "toolway").is_dir()


def test_gateway_serves_reloads_and_stops_its_servers(
    started: Callable[..., subprocess.Popen[str]], toolway: Callable[..., str], tmp_path: Path
) -> None:
    config = tmp_path / ".config" / "toolway" / "mcp.json"
    config.parent.mkdir(parents=True)
    audit = {"to": "jsonl", "file": str(tmp_path / "audit.jsonl")}
    config.write_text(json.dumps({"mcpServers": {"fake": FAKE}, "toolway": {"audit": audit}}))
    gateway = Gateway(started)
    with urllib.request.urlopen(f"{gateway.url}/readyz", timeout=30) as answer:
        assert answer.status == 200
    pid = int(toolway("call", "fake.pid", "-q").split()[-1])
    assert "fake" in toolway("ps")
    toolway("add", "more", "--yes", "--", PYTHON, *SERVER)
    gateway.process.send_signal(signal.SIGHUP)
    while "more.echo" not in toolway("tools", "--wait", "60"):
        time.sleep(0.2)  # the reload has not begun
    assert "hi" in toolway("call", "more.echo", "text=hi", "-q")
    gateway.process.terminate()
    assert gateway.process.wait(30) == 0
    wait_gone(pid)
    assert "fake" in (tmp_path / "audit.jsonl").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("serve", "--workers", "2"), "--workers needs Linux"),
        (("ps", "--orphans"), "the search for orphaned processes needs Linux"),
    ],
)
def test_linux_only_command_is_rejected(words: tuple[str, ...], said: str, toolway: Callable[..., str]) -> None:
    text = toolway("add", "fake", "--yes", "--", PYTHON, *SERVER) and toolway(*words, code=3)
    assert said in text and "E-PLATFORM" in text


GRANTS = [{"hosts": ["example.org:443"]}, {"max_processes": 10}, {"max_memory_bytes": 1_000_000_000}]


@pytest.mark.parametrize("grants", GRANTS, ids=lambda grants: next(iter(grants)))
def test_sandbox_with_limits_is_rejected_before_start(grants: dict[str, Any], environ: dict[str, str]) -> None:
    program = """
import json, sys
from toolway.config.schema import SandboxGrants
from toolway.upstream.process import confinement, sandbox_choice, seatbelt
seatbelt.PROGRAM = "/bin/sh"  # Linux lacks sandbox-exec
try:
    sandbox_choice.confine(["/bin/true"], {}, None, "strict", SandboxGrants(**json.loads(sys.argv[1])), [], "")
except confinement.SandboxError as exc:
    print(exc.code, exc, exc.hint)
"""
    done = subprocess.run(
        [PYTHON, "-c", program, json.dumps(grants)], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith("E-PLATFORM a sandbox with hosts by name or with limits needs Linux"), done.stderr
    assert "the sandbox of macOS" in done.stdout and '"sandbox": {"network": true}' in done.stdout
