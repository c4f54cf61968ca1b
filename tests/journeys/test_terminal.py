"""A user arrives with servers in two clients, and after a few commands a client has one way to all of them."""

import json
import subprocess
import sys

import pytest

TOOLWAY = [sys.executable, "-m", "toolway.cli"]
TOKEN = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
OLD = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main", "--era", "legacy"]}


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    (tmp_path / ".cursor").mkdir()
    cursor = {"mcpServers": {"new": {**FAKE, "env": {"GITHUB_TOKEN": TOKEN}}}}
    (tmp_path / ".cursor/mcp.json").write_text(json.dumps(cursor))
    (tmp_path / ".claude.json").write_text(
        json.dumps({"theme": "dark", "mcpServers": {"old": {"type": "stdio", **OLD}}})
    )
    return tmp_path


def toolway(home, *words, code=0):
    result = subprocess.run([*TOOLWAY, *words], cwd=home / "work", capture_output=True, text=True, timeout=120)
    assert result.returncode == code, result.stdout + result.stderr
    assert TOKEN not in result.stdout + result.stderr
    return result.stdout


def test_two_clients_are_connected_to_one_toolway_entry(home):
    toolway(home, "init", "--yes")
    assert TOKEN not in (home / ".config/toolway/mcp.json").read_text()
    toolway(home, "doctor", "--json")
    tools = json.loads(toolway(home, "tools", "echo", "--json"))["tools"]
    assert {tool["name"] for tool in tools} == {"new.echo", "old.echo"}
    assert toolway(home, "call", "old.add", "a:=1", "b:=2") == "3\n"
    toolway(home, "connect", "--all", "--yes")
    claude = json.loads((home / ".claude.json").read_text())
    cursor = json.loads((home / ".cursor/mcp.json").read_text())
    assert (claude["theme"], list(claude["mcpServers"]), list(cursor["mcpServers"])) == (
        "dark",
        ["toolway"],
        ["toolway"],
    )
    entry = cursor["mcpServers"]["toolway"]
    with Client([entry["command"], *entry["args"]], home / "work") as client:
        names = {tool["name"] for tool in client.ask("tools/list", {})["tools"]}
        assert {"new__echo", "old__echo"} <= names
        answer = client.ask("tools/call", {"name": "new__add", "arguments": {"a": 2, "b": 3}})
        assert answer["content"][0]["text"] == "5"


class Client:
    """As a client starts what its file names: a command, and its pipes."""

    def __init__(self, command, folder):
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._number = 0

    def __enter__(self):
        info = {"name": "a client", "version": "1"}
        self.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info})
        self._send({"method": "notifications/initialized"})
        return self

    def __exit__(self, *_):
        self._in.close()
        self._process.wait(30)
        self._out.close()

    def ask(self, method, params):
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        for line in self._out:
            message = json.loads(line)
            if message.get("id") == self._number and "method" not in message:
                assert "error" not in message, message
                return message["result"]
        raise AssertionError("it ended")

    def _send(self, message):
        self._in.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._in.flush()
