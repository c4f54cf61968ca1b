"""The program as a user runs it: a process, a pipe, a terminal."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest

FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
TOOLWAY = [sys.executable, "-m", "toolway.cli"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLWAY_CONFIG", str(tmp_path / "mcp.json"))
    slow = {**FAKE, "args": [*FAKE["args"], "--mode", "slow_start=1"]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"fake": FAKE, "slow": slow}}))
    return tmp_path


def at_a_terminal(words, folder, **variables):
    """Everything a command writes to a terminal, and its exit code."""
    ours, theirs = pty.openpty()
    environ = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environ |= {"TERM": "xterm-256color", "COLUMNS": "120", **variables}
    process = subprocess.Popen([*TOOLWAY, *words], cwd=folder, env=environ, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    while select.select([ours], [], [], 30)[0]:
        try:
            written += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
    os.close(ours)
    return written.decode(), process.wait(30)


def test_version_is_printed(folder):
    result = subprocess.run([*TOOLWAY, "--version"], cwd=folder, capture_output=True, text=True, timeout=30)
    assert re.fullmatch(r"toolway \d+\.\d+\.\d+\n", result.stdout)


def test_stdout_is_only_json_despite_warnings(folder):
    (folder / "mcp.json").write_text('{"mcpServers": {"bad": 5, "ok": {"command": "x", "enabled": false}}}')
    result = subprocess.run([*TOOLWAY, "ls", "--json"], cwd=folder, capture_output=True, text=True, timeout=30)
    assert [server["state"] for server in json.loads(result.stdout)["servers"]] == ["disabled"]
    assert result.stderr == ""
    assert result.returncode == 3


def test_terminal_gets_color_and_names_pending_servers(folder):
    text, code = at_a_terminal(["ls"], folder)
    assert "waiting for 1: slow" in text
    assert "\x1b[32mready" in text
    assert code == 0


def test_no_color_applies_in_terminal(folder):
    text, _ = at_a_terminal(["ls", "-q"], folder, NO_COLOR="1")
    assert "\x1b" not in text


def test_progress_is_shown_in_terminal(folder):
    text, code = at_a_terminal(["call", "fake.progress", "n:=3", "seconds:=0.3"], folder)
    assert "fake.progress: 2/3 step 2" in text
    assert "3 steps" in text
    assert code == 0


def test_closed_pipe_is_not_an_error(folder):
    process = subprocess.Popen(
        [*TOOLWAY, "call", "fake.big", "n:=3000000"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait(30)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the server's process in /proc")
def test_ctrl_c_stops_command_and_server(folder):
    process = subprocess.Popen(
        [*TOOLWAY, "call", "fake.progress", "n:=1000", "seconds:=0.1", "-v"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # we may run in the background
    )
    assert process.stderr is not None
    assert "fake.progress: 1/1000" in process.stderr.readline()
    children = _children(process.pid)
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=30)
    assert "Traceback" not in rest
    assert process.returncode == 130
    deadline = time.monotonic() + 30
    while any(map(_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children
    assert not any(map(_alive, children))


def _children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        direct = [int(child) for child in file.read().split()]
    return direct + [grandchild for child in direct for grandchild in _children(child)]


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
