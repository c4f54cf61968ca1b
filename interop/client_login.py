"""Check that Claude Code logs in at a real identity provider, unattended, and calls a tool with its token.

    python interop/client_login.py --installed DIR

DIR is the target folder of `install.py --login`. Claude Code gets only the URL of a gateway. The gateway names the
provider (npm `oidc-provider`), Claude Code registers there and opens a browser, and this program is the browser: it
logs in as alice and consents. A fake model requests the call, so no traffic leaves the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin

import httpx2
from clients import _QUIET, ARGUMENTS, CLIENT_TIMEOUT_S, SERVERS, STRUCTURED, TOOL, ClientReport
from clients import _home as make_home
from clients import _report as report
from clients import _run as run
from clients import _run_client as run_client
from gateway import Gateway, run_gateway
from model import serve_model

PROVIDER = Path(__file__).resolve().parent.parent / "tests" / "parts" / "identity" / "oidc_provider.mjs"
# oidc-provider denies a login that requests no scope. Claude Code requests those that the gateway names.
SCOPE = "tools:read"
ACCESS = {"eng": ["old.*"]}  # the provider puts alice into this group
MAX_PAGES = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--installed", type=Path, metavar="DIR", help="target folder of install.py --login")
    what.add_argument("--browse", metavar="URL", help="log in at this page of the provider and exit")
    options = parser.parse_args()
    if options.browse:
        return _browse(options.browse)
    installed: Path = options.installed.resolve()
    for needed in (installed / "bin" / "node-new", installed / "login" / "node_modules", _program(installed)):
        if not needed.exists():
            print(f"SKIPPED: {needed.relative_to(installed)} is not installed: make clients ARGS=login")
            return 0
    port = _free_port()
    resource = f"http://127.0.0.1:{port}/mcp"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, _provider(installed, resource) as issuer:
        login = {"issuer": issuer, "audience": resource, "scopes": [SCOPE]}
        config = {"mcpServers": SERVERS, "toolway": {"gateway": {"login": login}, "access": ACCESS}}
        work = Path(folder)
        with run_gateway(config, work, port) as gateway:
            tools = json.loads(gateway.toolway("tools", "--json", "--quiet"))["tools"]
            expected = sum(tool["server"] == "old" for tool in tools)
            row = run_client("Claude Code, login", lambda: _check(installed, gateway, work))
    return report([row], expected)


def _check(installed: Path, gateway: Gateway, work: Path) -> ClientReport:
    """Add the gateway without a token, log in, and let a fake model call a tool."""
    claude = [str(installed / "bin" / "node-new"), str(_program(installed))]
    environ = {"HOME": make_home(work, "claude"), "BROWSER": str(_make_browser(work)), **_QUIET}
    version = run([*claude, "--version"], environ).split()[0]
    run([*claude, "mcp", "add", "--transport", "http", "toolway", gateway.url], environ)
    before = run([*claude, "mcp", "list"], environ)
    if "Needs authentication" not in before:
        return ClientReport(version, problem=f"no login is required: {before.strip()[-200:]}")
    output = _run_in_terminal([*claude, "mcp", "login", "toolway"], environ)
    if 'Authenticated with "toolway"' not in output:
        return ClientReport(version, problem=f"no login: {output[-300:]!r}")
    listed = run([*claude, "mcp", "list"], environ)
    tool = f"mcp__toolway__{TOOL}"
    offered: set[str] = set()
    with serve_model(tool, ARGUMENTS, offered) as model:
        environ |= {"ANTHROPIC_BASE_URL": model, "ANTHROPIC_API_KEY": "none", "ENABLE_TOOL_SEARCH": "false"}
        answer = run([*claude, "-p", "add", "--allowedTools", tool], environ).strip()
    tools = sum(name.startswith("mcp__toolway__") for name in offered)
    sessions = json.loads(gateway.toolway("users", "ls", "--json"))["sessions"]
    names = [session["name"] for session in sessions]
    called = answer == f"answer: {STRUCTURED}" and names == ["alice"]
    return ClientReport(version, "Connected" in listed, tools, called, "" if called else f"{answer[:200]} {names}")


def _program(installed: Path) -> Path:
    package = installed / "clients" / "claude-code" / "node_modules" / "@anthropic-ai" / "claude-code"
    return package / "cli-wrapper.cjs"


# -- the provider and the browser --------------------------------------------------------------------------------------


@contextmanager
def _provider(installed: Path, resource: str) -> Iterator[str]:
    """Run the identity provider, which issues tokens for `resource`, and yield its URL."""
    port = str(_free_port())
    words = [str(installed / "bin" / "node-new"), str(PROVIDER), str(installed / "login"), port, resource]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "ready\n":
                raise SystemExit("the identity provider did not start")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _make_browser(work: Path) -> Path:
    """Write the program that Claude Code starts as a browser."""
    browser = work / "browser"
    words = shlex.join([sys.executable, str(Path(__file__).resolve()), "--browse"])
    browser.write_text(f'#!/bin/sh\nexec {words} "$1"\n', encoding="utf-8")
    browser.chmod(0o755)
    return browser


def _browse(page: str) -> int:
    """Log in as alice and consent, as a user would, and follow the redirect to the client."""
    with httpx2.Client() as browser:
        for _ in range(MAX_PAGES):
            answer = browser.get(page)
            if not answer.is_redirect:
                action = re.search(r'<form[^>]*action="([^"]+)"', answer.text)
                if action is None:  # the client's own page, after the login
                    return 0
                form = {"prompt": "consent"}
                if 'name="login"' in answer.text:
                    form = {"prompt": "login", "login": "alice", "password": "x"}
                answer = browser.post(urljoin(page, action[1]), data=form)
            page = urljoin(page, answer.headers["location"])
    return 1


def _run_in_terminal(words: list[str], environ: dict[str, str]) -> str:
    """Run a command in a terminal and return its output. `claude mcp login` refuses to run without one."""
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            words,
            env={**os.environ, **environ},
            cwd=environ["HOME"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        ) as process:
            os.close(theirs)
            timer = threading.Timer(CLIENT_TIMEOUT_S, process.kill)
            timer.start()
            try:
                return _read_all(ours)
            finally:
                timer.cancel()
    finally:
        os.close(ours)


def _read_all(terminal: int) -> str:
    parts = []
    try:
        while part := os.read(terminal, 65536):
            parts.append(part)
    except OSError:  # EIO: the other side is closed
        pass
    return b"".join(parts).decode(errors="replace")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
