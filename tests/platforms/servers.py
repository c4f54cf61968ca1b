"""Servers of every transport: a command, HTTP, SSE, WebSocket, an OpenAPI document, a batch file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.platforms.checks import Message, NotRun, check
from tests.platforms.home import FAKE, IS_WINDOWS, Home


def start_server(home: Home, module: str, *words: str) -> str:
    """Start a server of `toolway.testing`, and return the last word of its first line: port or address."""
    process = home.start("--port", "0", *words, name=f"toolway.testing.{module}")
    assert process.stdout is not None
    return process.stdout.readline().decode().split()[-1]


def call_and_doctor(home: Home, server: str = "s") -> str:
    assert home.toolway("call", f"{server}.echo", "text=ü", "-q").strip() == "ü"
    # What it says of the machine is left out: another process there may just have left something over.
    subjects = json.loads(home.toolway("doctor", server, "--json"))["subjects"]
    (found,) = (each for each in subjects if (each["kind"], each["name"]) == ("server", server))
    assert found["state"] == "ok", found
    return f"✓ {server}: no problem found"


@check("Servers", "call a server that is a command (stdio), of both protocol eras")
def stdio(home: Home) -> str:
    home.serve_these({era: {**FAKE, "args": [*FAKE["args"], "--era", era]} for era in ("modern", "legacy")})
    said = [call_and_doctor(home, era) for era in ("modern", "legacy")]
    return "; ".join(said)


@check("Servers", "call a server over HTTP", quick=True)
def http(home: Home) -> str:
    home.serve_these({"s": {"url": f"http://127.0.0.1:{start_server(home, 'http_server')}/mcp"}})
    return call_and_doctor(home)


@check("Servers", "call a server over HTTP whose answers are event streams")
def http_streams(home: Home) -> str:
    port = start_server(home, "http_server", "--answer", "sse", "--era", "legacy")
    home.serve_these({"s": {"url": f"http://127.0.0.1:{port}/mcp"}})
    return call_and_doctor(home)


@check("Servers", "call a server over SSE, the transport of 2024-11-05")
def sse(home: Home) -> str:
    home.serve_these(
        {"s": {"type": "sse", "url": f"http://127.0.0.1:{start_server(home, 'http_server', '--transport', 'sse')}/sse"}}
    )
    return call_and_doctor(home)


@check("Servers", "call a server over a WebSocket")
def websocket(home: Home) -> str:
    home.serve_these({"s": {"url": f"ws://127.0.0.1:{start_server(home, 'websocket_server')}/mcp"}})
    return call_and_doctor(home)


@check("Servers", "`toolway add` an OpenAPI document, then call an operation", quick=True)
def openapi(home: Home) -> str:
    document = start_server(home, "fake_api", "--key", "sesame")
    home.serve_these()
    home.toolway("add", "shop", f"openapi:{document}", "--yes")
    assert '"name": "Rex"' in home.toolway("call", "shop.get_pet", "id:=2")
    home.toolway("call", "shop.sell_pet", "id:=2", code=6)
    return f"{len(home.json('tools', '--server', 'shop')['tools'])} operations"


@check("Servers", "a server behind a batch file (`npx.cmd`, `uvx.bat`) is found by its name", quick=True)
def batch_file(home: Home) -> str | NotRun:
    if not IS_WINDOWS:
        return NotRun("only Windows has batch files")
    home.write("bin/runner.cmd", f'@echo off\n"{sys.executable}" %*\n', newline="\r\n")
    home.environ["PATH"] = f"{home.folder / 'bin'};{home.environ['PATH']}"
    home.serve_these(
        {"s": {"command": "runner", "args": FAKE["args"]}, "bad": {"command": "runner", "args": ["1 & calc"]}}
    )
    assert home.toolway("call", "s.echo", "text=x", "-q").strip() == "x"
    assert "cmd.exe would read" in home.toolway("call", "bad.echo", "text=x", code=4)
    return "runs; an argument with & is rejected"


@check("Servers", "a server that crashes is started again, and its exit code is told")
def crash(home: Home) -> str:
    home.serve_these()
    said = home.toolway("call", "fake.crash", "code:=3", code=1)
    assert "exit code 3" in said, said
    gateway = home.start_gateway()
    before = gateway.servers()["fake"]["pid"]
    home.toolway("call", "fake.crash", "code:=3", code=1)
    home.toolway("call", "fake.echo", "text=again")
    assert gateway.servers()["fake"]["pid"] != before
    home.toolway("restart", "fake")
    return "exit code 3; a new process answers"


@check("Servers", '`"sandbox": "guard"`', quick=True)
def sandbox(home: Home) -> str | Message | NotRun:
    if sys.platform == "darwin" and not Path("/usr/bin/sandbox-exec").exists():
        return NotRun("needs `sandbox-exec`, which only a Mac has")
    home.serve_these({"s": {**FAKE, "sandbox": "guard"}})
    if sys.platform == "linux":
        assert home.toolway("call", "s.echo", "text=x", "-q").strip() == "x"
        return "the server runs"
    said = home.toolway("call", "s.echo", "text=x", code=4)
    line = next(line for line in said.splitlines() if "sandbox" in line)
    return Message(line.rpartition("was not started: ")[2].removeprefix("✗ ").strip())


@check("Servers", "`toolway ps` lists the processes of servers")
def ps(home: Home) -> str:
    home.serve_these()
    gateway = home.start_gateway()
    home.toolway("call", "fake.echo", "text=x")
    pid = gateway.servers()["fake"]["pid"]
    assert str(pid) in home.toolway("ps")
    home.toolway("logs", "fake")
    return "the server of the gateway is listed"


@check("Servers", "`toolway ps --orphans` finds what a killed gateway left")
def orphans(home: Home) -> str | Message:
    home.serve_these()
    if sys.platform != "linux":
        return Message(home.toolway("ps", "--orphans", code=3).splitlines()[0].removeprefix("✗ "))
    home.toolway("ps", "--orphans")
    return "none"


@check("Servers", "`toolway prompts`, `resources`, and `tools codegen` with `tools cost`")
def lists(home: Home) -> str:
    home.serve_these()
    home.toolway("prompts")
    home.toolway("resources")
    home.toolway("tools", "cost")
    home.toolway("tools", "codegen", "python", "fake", "--out", str(home.folder / "client.py"))
    subprocess.run([sys.executable, "-m", "py_compile", str(home.folder / "client.py")], env=home.environ, check=True)
    return "the generated client compiles"
