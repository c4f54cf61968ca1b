"""Run the commands and the library on Windows, and print what works.

The servers are the fake ones of `toolway.testing`, run by the same Python. Exits with 1 if a check fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from toolway import Hub, SyncHub
from toolway._os import process_exists, try_lock_handle

FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
CHECKS: list[tuple[str, Callable[[Path], str]]] = []
HUB = """
import asyncio, json, sys
from toolway import Hub
FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
async def main():
    async with Hub({"mcpServers": {"fake": FAKE}}) as hub:
        print((await hub.call_tool("fake.pid", {})).text, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


def check(name: str) -> Callable[[Callable[[Path], str]], Callable[[Path], str]]:
    def add(function: Callable[[Path], str]) -> Callable[[Path], str]:
        CHECKS.append((name, function))
        return function

    return add


def run(folder: Path, *words: str, code: int = 0, path: str = "") -> str:
    """Run a command with the folder as its home, and return its output. Fails with another exit code than `code`."""
    environ = {**os.environ, "APPDATA": str(folder), "LOCALAPPDATA": str(folder), "TOOLWAY_SECRETS": "file"}
    environ["USERPROFILE"] = str(folder)
    environ["PATH"] = f"{path};{environ['PATH']}" if path else environ["PATH"]
    done = subprocess.run(
        [sys.executable, "-m", "toolway.cli", *words], cwd=folder, env=environ, capture_output=True, timeout=60
    )
    text = (done.stdout + done.stderr).decode()
    assert done.returncode == code, f"exit code {done.returncode}: {text[-400:]}"
    return text


def config(folder: Path, **servers: object) -> list[str]:
    (folder / "c.json").write_text(json.dumps({"mcpServers": servers}))
    return ["-c", str(folder / "c.json")]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def wait_until(done: Callable[[], object], seconds: float = 20) -> float:
    began = time.perf_counter()
    while not done():
        assert time.perf_counter() - began < seconds, "nothing happened"
        time.sleep(0.005)
    return (time.perf_counter() - began) * 1000


@check("toolway --version, --help")
def _(folder: Path) -> str:
    run(folder, "--help")
    return run(folder, "--version").strip()


@check("toolway init, from Claude Desktop")
def _(folder: Path) -> str:
    (folder / "Claude").mkdir()
    (folder / "Claude" / "claude_desktop_config.json").write_text(json.dumps({"mcpServers": {"fake": FAKE}}))
    run(folder, "init", "--yes")
    assert "ready" in run(folder, "ls")
    return str((folder / "toolway" / "mcp.json").relative_to(folder))


@check("toolway ls, tools, call, doctor: stdio")
def _(folder: Path) -> str:
    options = config(folder, fake=FAKE)
    assert "ready" in run(folder, *options, "ls") and "fake.echo" in run(folder, *options, "tools")
    assert run(folder, *options, "call", "fake.echo", "text=hällo ✓").strip() == "hällo ✓"
    return run(folder, *options, "doctor").splitlines()[0]


@check("toolway ls, call, doctor: HTTP")
def _(folder: Path) -> str:
    port = free_port()
    server = subprocess.Popen([sys.executable, "-m", "toolway.testing.http_server", "--port", str(port)], stdout=-3)
    try:
        wait_until(lambda: _listens(port))
        options = config(folder, web={"url": f"http://127.0.0.1:{port}/mcp"})
        assert "http" in run(folder, *options, "call", "web.echo", "text=http")
        return run(folder, *options, "doctor", "web").splitlines()[0]
    finally:
        server.kill()


@check("npx.cmd: a batch file is found by its name")
def _(folder: Path) -> str:
    (folder / "runner.cmd").write_text(f'@echo off\r\n"{sys.executable}" %*\r\n', newline="")
    words = FAKE["args"]
    assert "x" in run(
        folder, *config(folder, c={"command": "runner", "args": words}), "call", "c.echo", "text=x", path=str(folder)
    )
    options = config(folder, c={"command": "runner", "args": ["1 & calc"]})
    assert "would read as a command" in run(folder, *options, "call", "c.echo", "text=x", code=4, path=str(folder))
    return "runs; an argument with & is refused"


@check("toolway serve, and a call through it")
def _(folder: Path) -> str:
    port = free_port()
    options = config(folder, fake=FAKE)
    environ = {**os.environ, "APPDATA": str(folder), "LOCALAPPDATA": str(folder), "USERPROFILE": str(folder)}
    words = [sys.executable, "-m", "toolway.cli", *options, "serve", "--port", str(port)]
    gateway = subprocess.Popen(words, env=environ, stdout=-3, stderr=-3)
    try:
        wait_until(lambda: _listens(port))
        text = run(folder, "call", "fake.pid")
        assert "using the gateway" in text, text
        pid = int(next(word for word in text.split() if word.isdigit()))
        assert process_exists(pid)
    finally:
        gateway.kill()
    return f"after the kill of the gateway its server ended in {wait_until(lambda: not process_exists(pid)):.0f} ms"


@check("toolway serve --stdio")
def _(folder: Path) -> str:
    ask = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "check", "version": "1"}}
    lines: list[dict[str, object]] = [
        {"id": 1, "method": "initialize", "params": ask},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
    ]
    words = [sys.executable, "-m", "toolway.cli", *config(folder, fake=FAKE), "serve", "--stdio"]
    process = subprocess.Popen(words, stdin=-1, stdout=-1, stderr=-3)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"".join(json.dumps({"jsonrpc": "2.0", **line}).encode() + b"\n" for line in lines))
    process.stdin.flush()
    answers = [json.loads(process.stdout.readline()) for _ in range(2)]
    process.stdin.close()
    assert process.wait(20) == 0
    return f"{len(answers[1]['result']['tools'])} tools"


@check("toolway serve --workers 2")
def _(folder: Path) -> str:
    return run(folder, *config(folder, fake=FAKE), "serve", "--workers", "2", code=3).splitlines()[0]


@check('"sandbox": "guard"')
def _(folder: Path) -> str:
    text = run(folder, *config(folder, fake={**FAKE, "sandbox": "guard"}), "call", "fake.echo", "text=x", code=4)
    return next(line for line in text.splitlines() if "sandbox for" in line).rpartition(": Windows")[2].strip()


@check("toolway secrets set, ls (encrypted file)")
def _(folder: Path) -> str:
    environ = {**os.environ, "APPDATA": str(folder), "LOCALAPPDATA": str(folder), "TOOLWAY_SECRETS": "file"}
    words = [sys.executable, "-m", "toolway.cli", "secrets", "set", "token"]
    subprocess.run(words, input=b"value", env=environ, check=True, capture_output=True)
    assert "token" in run(folder, "secrets", "ls")
    return "works"


@check("Hub: 3 MB out, 2 MB in, 100 parallel calls, a crash, an audit log")
def _(folder: Path) -> str:
    async def main() -> str:
        async with Hub({"mcpServers": {"fake": FAKE}}, audit_log=str(folder / "audit.jsonl")) as hub:
            assert len((await hub.call_tool("fake.big", {"n": 3_000_000})).text) == 3_000_000
            assert len((await hub.call_tool("fake.echo", {"text": "x" * 2_000_000})).text) == 2_000_000
            await asyncio.gather(*(hub.call_tool("fake.echo", {"text": str(i)}) for i in range(100)))
            try:
                await hub.call_tool("fake.crash", {"code": 3})
            except Exception as exc:
                assert "exit code 3" in str(exc), exc
            await hub.call_tool("fake.echo", {"text": "again"})
        return type(asyncio.get_running_loop()).__name__

    return asyncio.run(main())


@check("SyncHub")
def _(folder: Path) -> str:
    with SyncHub({"mcpServers": {"fake": FAKE}}) as hub:
        return f"1 + 2 = {hub.call_tool('fake.add', {'a': 1, 'b': 2}).text}"


@check("a killed hub leaves no server behind (Job Object)")
def _(folder: Path) -> str:
    process = subprocess.Popen([sys.executable, "-c", HUB], stdout=-1)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert process_exists(pid)
    process.kill()
    return f"gone after {wait_until(lambda: not process_exists(pid)):.0f} ms"


@check("a lock ends with its process")
def _(folder: Path) -> str:
    program = "import os, sys, time\nfrom toolway._os import try_lock_handle\n"
    program += "print(try_lock_handle(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)), flush=True)\ntime.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", program, str(folder / "lock")], stdout=-1)
    assert holder.stdout is not None and holder.stdout.readline().strip() == b"True"
    handle = os.open(folder / "lock", os.O_RDWR)
    assert not try_lock_handle(handle)
    holder.kill()
    return f"free after {wait_until(lambda: try_lock_handle(handle)):.0f} ms"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main() -> int:
    failed = 0
    print(f"{sys.platform}, Python {sys.version.split()[0]}")
    for name, function in CHECKS:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            try:
                mark, found = "ok  ", function(Path(folder))
            except Exception as exc:
                mark, found, failed = "FAIL", f"{type(exc).__name__}: {exc}", failed + 1
        print(f"{mark} {name}: {found} ({time.perf_counter() - began:.1f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.exit(main())
