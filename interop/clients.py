"""Real clients before one gateway: does each connect, list the tools and call one?

    python interop/clients.py [--installed DIR]

Without DIR only the client of the SDK is asked, which is here anyway. The servers behind the gateway are two fakes, one
of each era, so nothing leaves this machine.
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

from gateway import Gateway, serving
from model import answering

MODERN = "2026-07-28"
LIMIT = 120.0  # seconds for one run of a client
TOOL, ARGUMENTS, ANSWER, STRUCTURED = "old__add", {"a": 1, "b": 2}, "3", '{"sum":3}'
FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.fake"]}
SERVERS = {"new": FAKE, "old": {**FAKE, "args": [*FAKE["args"], "--era", "handshake"]}}
ASK = Path(__file__).resolve().with_name("ask.py")


@dataclass
class Seen:
    """What a client did. None where it cannot without a model or a person."""

    version: str = "-"
    connected: bool = False
    tools: int | None = None
    called: bool | None = None
    trouble: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--installed", type=Path, metavar="DIR", help="where install.py --clients put them")
    installed: Path | None = parser.parse_args().installed
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work,
        serving({"mcpServers": SERVERS}, Path(work)) as gateway,
    ):
        expected = len(json.loads(gateway.toolway("tools", "--json", "--quiet"))["tools"])
        rows = [_seen(name, ask) for name, ask in _clients(gateway, installed, Path(work))]
    return _report(rows, expected)


def _clients(gateway: Gateway, installed: Path | None, work: Path) -> list[tuple[str, Callable[[], Seen]]]:
    def library(name: str, mode: str, python: Path) -> Callable[[], Seen]:
        return lambda: _ask_library(name, mode, python, gateway)

    ours = Path(sys.executable)
    clients = [
        ("SDK Client, modern", library("sdk", MODERN, ours)),
        ("SDK Client, handshake", library("sdk", "legacy", ours)),
    ]
    if installed is None:
        return clients
    installed = installed.resolve()
    fastmcp = installed / "clients" / "fastmcp" / "bin" / "python"
    return [
        ("Claude Code", lambda: _ask_claude(installed, gateway, work)),
        ("Inspector CLI", lambda: _ask_inspector(installed, gateway, work)),
        *clients,
        ("fastmcp Client, modern", library("fastmcp", MODERN, fastmcp)),
        ("fastmcp Client, handshake", library("fastmcp", "legacy", fastmcp)),
    ]


def _seen(name: str, ask: Callable[[], Seen]) -> tuple[str, Seen, float]:
    begun = time.monotonic()
    try:
        seen = ask()
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        seen = Seen(trouble=said.strip().splitlines()[-1] if said.strip() else repr(error))
    return name, seen, time.monotonic() - begun


# -- the clients -------------------------------------------------------------------------------------------------------


def _ask_library(name: str, mode: str, python: Path, gateway: Gateway) -> Seen:
    words = [str(python), str(ASK), name, mode, gateway.url, gateway.token, TOOL, json.dumps(ARGUMENTS)]
    said = json.loads(_run(words, {}))
    return Seen(said["version"], True, said["tools"], said["text"] == ANSWER)


def _ask_claude(installed: Path, gateway: Gateway, work: Path) -> Seen:
    """Added by the very command that `toolway connect` prints. It calls when a model asks it to, so it gets one."""
    program = installed / "clients" / "claude-code" / "node_modules" / "@anthropic-ai" / "claude-code"
    claude = [str(installed / "bin" / "node-new"), str(program / "cli-wrapper.cjs")]
    environ = {"HOME": _home(work, "claude"), **_QUIET}
    version = _run([*claude, "--version"], environ).split()[0]
    shown = shlex.split(gateway.toolway("connect", "claude-code", "--quiet"))
    _run([*claude, *shown[1:]], environ)
    listed = _run([*claude, "mcp", "list"], environ)
    connected = any(line.startswith("toolway:") and line.endswith("Connected") for line in listed.splitlines())
    if not connected:
        return Seen(version, trouble=listed.strip().splitlines()[-1])
    tool = f"mcp__toolway__{TOOL}"
    offered: set[str] = set()
    with answering(tool, ARGUMENTS, offered) as model:
        environ |= {"ANTHROPIC_BASE_URL": model, "ANTHROPIC_API_KEY": "none", "ENABLE_TOOL_SEARCH": "false"}
        said = _run([*claude, "-p", "add", "--allowedTools", tool], environ).strip()
    called = said == f"answer: {STRUCTURED}"  # where there is structured content, that is what its model gets
    tools = sum(name.startswith("mcp__toolway__") for name in offered)
    return Seen(version, True, tools, called, "" if called else said[:200])


def _ask_inspector(installed: Path, gateway: Gateway, work: Path) -> Seen:
    modules = installed / "clients" / "inspector" / "node_modules"
    program = [str(installed / "bin" / "node-new"), str(modules / ".bin" / "mcp-inspector"), "--cli", gateway.url]
    about = json.loads((modules / "@modelcontextprotocol" / "inspector" / "package.json").read_text(encoding="utf-8"))
    node = (installed / "bin" / "node-new").resolve().parent
    environ = {"HOME": _home(work, "inspector"), "PATH": f"{node}{os.pathsep}{os.environ['PATH']}"}
    key = ["--transport", "http", "--header", f"Authorization: Bearer {gateway.token}"]
    listed = json.loads(_run([*program, "--method", "tools/list", *key], environ))
    given = [word for name, value in ARGUMENTS.items() for word in ("--tool-arg", f"{name}={value}")]
    called = json.loads(_run([*program, "--method", "tools/call", "--tool-name", TOOL, *given, *key], environ))
    return Seen(about["version"], True, len(listed["tools"]), called["content"][0]["text"] == ANSWER)


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
        timeout=LIMIT,
        check=True,
    )
    return done.stdout


def _report(rows: list[tuple[str, Seen, float]], expected: int) -> int:
    print(f"{'client':26} {'version':10} {'connected':9} {'tools':>7}  {'call':4} {'time':>6}")
    good = 0
    for name, seen, seconds in rows:
        fine = seen.connected and seen.tools in (None, expected) and seen.called is not False
        good += fine
        tools = "-" if seen.tools is None else f"{seen.tools}/{expected}"
        called = {None: "-", True: "ok", False: "NO"}[seen.called]
        connected = "yes" if seen.connected else "NO"
        print(
            f"{name:26} {seen.version:10} {connected:9} {tools:>7}  {called:4} {seconds:5.1f}s  {seen.trouble}".rstrip()
        )
    print(f"{good}/{len(rows)} clients")
    return 0 if good == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
