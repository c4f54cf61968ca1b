"""Check that real clients connect to one gateway, list its tools and call one.

    python interop/clients.py [--installed DIR]

Without DIR, only the SDK client is used, which is a development dependency. The servers behind the gateway are two
fakes, one of each era, so no traffic leaves the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway import Gateway, run_gateway
from model import serve_model

MODERN = "2026-07-28"
CLIENT_TIMEOUT_S = 300.0  # seconds per run of a client
TOOL, ARGUMENTS, RESULT_TEXT, STRUCTURED = "old__add", {"a": 1, "b": 2}, "3", '{"sum":3}'
FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
SERVERS = {"new": FAKE, "old": {**FAKE, "args": [*FAKE["args"], "--era", "legacy"]}}
LIBRARY_CLIENT = Path(__file__).resolve().with_name("library_client.py")


@dataclass
class ClientReport:
    """Results of one client. None if that needs a model or a user."""

    version: str = "-"
    connected: bool = False
    tools: int | None = None
    called: bool | None = None
    problem: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--installed", type=Path, metavar="DIR", help="target folder of install.py --clients")
    installed: Path | None = parser.parse_args().installed
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work,
        run_gateway({"mcpServers": SERVERS}, Path(work)) as gateway,
    ):
        expected = len(json.loads(gateway.toolway("tools", "--json", "--quiet"))["tools"])
        rows = [_run_client(name, check) for name, check in _clients(gateway, installed, Path(work))]
    return _report(rows, expected)


def _clients(gateway: Gateway, installed: Path | None, work: Path) -> list[tuple[str, Callable[[], ClientReport]]]:
    def library(name: str, mode: str, python: Path) -> Callable[[], ClientReport]:
        return lambda: _check_library(name, mode, python, gateway)

    ours = Path(sys.executable)
    clients = [
        ("SDK Client, modern", library("sdk", MODERN, ours)),
        ("SDK Client, legacy", library("sdk", "legacy", ours)),
    ]
    if installed is None:
        return clients
    installed = installed.resolve()
    fastmcp = installed / "clients" / "fastmcp" / "bin" / "python"
    return [
        ("Claude Code", lambda: _check_claude(installed, gateway, work)),
        ("Inspector CLI", lambda: _check_inspector(installed, gateway, work)),
        *clients,
        ("fastmcp Client, modern", library("fastmcp", MODERN, fastmcp)),
        ("fastmcp Client, legacy", library("fastmcp", "legacy", fastmcp)),
    ]


def _run_client(name: str, check: Callable[[], ClientReport]) -> tuple[str, ClientReport, float]:
    started = time.monotonic()
    try:
        report = check()
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", "") or str(error)
        report = ClientReport(problem=output.strip().splitlines()[-1] if output.strip() else repr(error))
    return name, report, time.monotonic() - started


# -- the clients -------------------------------------------------------------------------------------------------------


def _check_library(name: str, mode: str, python: Path, gateway: Gateway) -> ClientReport:
    words = [str(python), str(LIBRARY_CLIENT), name, mode, gateway.url, gateway.token, TOOL, json.dumps(ARGUMENTS)]
    output = json.loads(_run(words, {}))
    return ClientReport(output["version"], True, output["tools"], output["text"] == RESULT_TEXT)


def _check_claude(installed: Path, gateway: Gateway, work: Path) -> ClientReport:
    """Add the gateway with the command that `toolway connect --print` prints; a fake model calls a tool."""
    program = installed / "clients" / "claude-code" / "node_modules" / "@anthropic-ai" / "claude-code"
    claude = [str(installed / "bin" / "node-new"), str(program / "cli-wrapper.cjs")]
    environ = {"HOME": _home(work, "claude"), **_QUIET}
    version = _run([*claude, "--version"], environ).split()[0]
    shown = shlex.split(gateway.toolway("connect", "claude-code", "--print", "--quiet"))
    _run([*claude, *shown[1:]], environ)
    listed = _run([*claude, "mcp", "list"], environ)
    connected = any(line.startswith("toolway:") and line.endswith("Connected") for line in listed.splitlines())
    if not connected:
        return ClientReport(version, problem=listed.strip().splitlines()[-1])
    tool = f"mcp__toolway__{TOOL}"
    offered: set[str] = set()
    with serve_model(tool, ARGUMENTS, offered) as model:
        environ |= {"ANTHROPIC_BASE_URL": model, "ANTHROPIC_API_KEY": "none", "ENABLE_TOOL_SEARCH": "false"}
        output = _run([*claude, "-p", "add", "--allowedTools", tool], environ).strip()
    called = output == f"answer: {STRUCTURED}"  # its model gets the structured content, if there is any
    tools = sum(name.startswith("mcp__toolway__") for name in offered)
    return ClientReport(version, True, tools, called, "" if called else output[:200])


def _check_inspector(installed: Path, gateway: Gateway, work: Path) -> ClientReport:
    modules = installed / "clients" / "inspector" / "node_modules"
    program = [str(installed / "bin" / "node-new"), str(modules / ".bin" / "mcp-inspector"), "--cli", gateway.url]
    about = json.loads((modules / "@modelcontextprotocol" / "inspector" / "package.json").read_text(encoding="utf-8"))
    node = (installed / "bin" / "node-new").resolve().parent
    environ = {"HOME": _home(work, "inspector"), "PATH": f"{node}{os.pathsep}{os.environ['PATH']}"}
    key = ["--transport", "http", "--header", f"Authorization: Bearer {gateway.token}"]
    listed = json.loads(_run([*program, "--method", "tools/list", *key], environ))
    given = [word for name, value in ARGUMENTS.items() for word in ("--tool-arg", f"{name}={value}")]
    called = json.loads(_run([*program, "--method", "tools/call", "--tool-name", TOOL, *given, *key], environ))
    return ClientReport(about["version"], True, len(listed["tools"]), called["content"][0]["text"] == RESULT_TEXT)


_QUIET = {"DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


def _home(work: Path, name: str) -> str:
    home = work / f"home-{name}"
    home.mkdir()
    return str(home)


def _run(words: list[str], environ: dict[str, str]) -> str:
    done = subprocess.run(
        words,
        env={**os.environ, **environ},
        cwd=environ.get("HOME"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=CLIENT_TIMEOUT_S,
        check=True,
    )
    return done.stdout


def _report(rows: list[tuple[str, ClientReport, float]], expected: int) -> int:
    print(f"{'client':26} {'version':10} {'connected':9} {'tools':>7}  {'call':4} {'time':>6}")
    good = 0
    for name, report, seconds in rows:
        fine = report.connected and report.tools in (None, expected) and report.called is not False
        good += fine
        tools = "-" if report.tools is None else f"{report.tools}/{expected}"
        called = {None: "-", True: "ok", False: "NO"}[report.called]
        connected = "yes" if report.connected else "NO"
        row = f"{name:26} {report.version:10} {connected:9} {tools:>7}  {called:4} {seconds:5.1f}s  {report.problem}"
        print(row.rstrip())
    print(f"{good}/{len(rows)} clients")
    return 0 if good == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
