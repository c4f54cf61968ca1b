"""A foreign program that answers like a gateway, to get this machine's token."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from toolway.cli.app import app
from toolway.gateway.state_dir import StateDir

COMMANDS = (["ls"], ["show"], ["keys", "ls"], ["tools"], ["calls"], ["ui", "--no-browser"], ["call", "s.echo"])


class Listener:
    """A program that listens where a gateway could be, and keeps what it receives."""

    def __init__(self) -> None:
        heard = self.heard = list[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                size = int(self.headers.get("content-length") or 0)
                heard.append(f"{self.command} {self.path}\n{self.headers}\n{self.rfile.read(size)!r}")
                self.send_response(401)
                self.send_header("content-length", "0")
                self.end_headers()

            do_POST = do_PUT = do_DELETE = do_GET

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener()
    thread = threading.Thread(target=found.server.serve_forever, daemon=True)
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join()


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The token of a machine whose gateway is not running."""
    monkeypatch.setenv("TOOLWAY_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TOOLWAY_CONFIG", str(tmp_path / "mcp.json"))
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    return StateDir(tmp_path / "state").read_token()


@pytest.mark.attack("held-70")
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_foreign_gateway_receives_no_token(listener: Listener, token: str, words: list[str]) -> None:
    result = CliRunner().invoke(app, [*words, "--gateway", listener.url])
    assert result.exit_code != 0
    assert listener.heard and token not in "\n".join(listener.heard) + result.output


@pytest.mark.attack("held-71")
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_port_of_a_dead_gateway_receives_no_token(
    listener: Listener, token: str, words: list[str], tmp_path: Path
) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = {"url": listener.url, "pid": dead.pid, "config": str(tmp_path / "mcp.json")}
    (tmp_path / "state" / "running.json").write_text(json.dumps(left))
    CliRunner().invoke(app, words)
    assert listener.heard == []
