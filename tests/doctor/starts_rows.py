"""Servers that do not come up, or not cleanly."""

from __future__ import annotations

import asyncio
import socket

from tests.doctor.doctor_lab import PYTHON, SMALL, Lab, small
from tests.doctor.rows import row


@row("exit 3 with a message on stderr")
async def exit_three(lab: Lab) -> None:
    path = lab.script("server", "if 'ACME_ROOT' not in os.environ: sys.exit('fatal: ACME_ROOT is not set') or 3")
    lab.edit(
        "sys.exit('fatal: ACME_ROOT is not set') or 3",
        "print('fatal: ACME_ROOT is not set', file=sys.stderr); os._exit(3)",
        path,
    )
    lab.servers(acme={"command": str(path)})
    check = await lab.finds("acme: the server ended with exit code 3: the variable ACME_ROOT is missing")
    assert "| fatal: ACME_ROOT is not set" in check.detail
    lab.environ["ACME_ROOT"] = "/srv"
    lab.take_over(check, "acme")
    await lab.is_well()


@row("exit with words that nobody knows")
async def exit_unknown(lab: Lab) -> None:
    flag = lab.work / "license.key"
    path = lab.script(
        "server", f"if not os.path.exists({str(flag)!r}): print('no license here', file=sys.stderr); os._exit(42)"
    )
    lab.servers(acme={"command": str(path)})
    check = await lab.finds("acme: the server ended with exit code 42: stderr: no license here")
    assert check.copy == str(path)  # to be run by hand
    lab.write("x", flag)
    await lab.is_well()


@row("an argument is missing")
async def argument(lab: Lab) -> None:
    text = "import argparse; p = argparse.ArgumentParser(); p.add_argument('--root', required=True); p.parse_args()"
    path = lab.script("server", text)
    lab.servers(acme={"command": str(path), "args": []})
    check = await lab.finds("acme: the server ended with exit code 2: an argument is missing: --root")
    assert "args" in check.hint
    lab.edit('"args": []', '"args": ["--root", "/srv"]')
    await lab.is_well()


@row("unset variable")
async def unset(lab: Lab) -> None:
    path = lab.script("server", "if os.environ['ACME_TOKEN'].startswith('$'): sys.exit('error: bad credentials')")
    lab.servers(acme={"command": str(path), "env": {"ACME_TOKEN": "${ACME_TOKEN}"}})
    check = await lab.finds("acme: the variable ACME_TOKEN is not set")
    assert check.copy == "export ACME_TOKEN=…"
    lab.environ["ACME_TOKEN"] = "tok-1234567890"
    await lab.is_well()


@row("port taken")
async def port_taken(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    hold = (
        f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); print('up', flush=True); time.sleep(60)"
    )
    holder = await asyncio.create_subprocess_exec(PYTHON, "-I", "-S", "-c", hold, stdout=asyncio.subprocess.PIPE)
    try:
        assert holder.stdout is not None
        await holder.stdout.readline()
        bind = (
            "import socket\n"
            "try: socket.create_server(('127.0.0.1', PORT)).close()\n"
            "except OSError: sys.exit('Error: listen EADDRINUSE: address already in use 127.0.0.1:PORT')"
        )
        path = lab.script("server", bind.replace("PORT", str(port)))
        lab.servers(acme={"command": str(path)})
        check = await lab.finds(f"the port {port} is already in use")
        assert f"process {holder.pid} has it" in check.detail
        await lab.run(check.copy)
        await holder.wait()
        await lab.is_well()
    finally:
        if holder.returncode is None:
            holder.kill()
        await holder.wait()


@row("stdout banner")
async def banner(lab: Lab) -> None:
    path = lab.script("server", "print('Acme MCP server v1.2 ready', flush=True)")
    lab.servers(acme={"command": str(path)})
    check = await lab.finds('acme: stdout has 1 line that is not JSON-RPC: "Acme MCP server v1.2 ready"')
    assert "stderr" in check.hint
    lab.edit("ready', flush=True)", "ready', file=sys.stderr)", path)
    await lab.is_well()


@row("slow download")
async def slow_download(lab: Lab) -> None:
    """A runner of packages that has to fetch first: the second start finds what the first one fetched."""
    cached = lab.work / "cached"
    fetch = f"test -e {cached} || {{ sleep 5; touch {cached}; }}"
    lab.program(lab.bin / "npx", f"#!/bin/sh\n{fetch}\n{PYTHON} -I -S {SMALL}\n")
    lab.servers(acme={"command": "npx", "args": ["-y", "acme"], "startTimeout": "4s"})
    check = await lab.finds("acme: npx took 5.", "s to download the package; the start timeout is 4.0 s")
    assert "the package is cached now" in check.detail
    await lab.is_well()


@row("silent server")
async def silent(lab: Lab) -> None:
    path = lab.script("server", "if 'stdio' not in sys.argv: time.sleep(60)")
    lab.servers(acme={"command": str(path), "args": [], "startTimeout": "500ms"})
    check = await lab.finds("acme: the server does not answer the first message within 0.50 s")
    assert "nothing to stdout and nothing to stderr" in check.detail
    assert "an argument such as stdio" in check.hint
    lab.edit('"args": []', '"args": ["stdio"]')
    lab.edit('"500ms"', '"20s"')
    await lab.is_well()


@row("an HTTP server where one over stdio is expected")
async def http_instead(lab: Lab) -> None:
    listen = "import socket; s = socket.create_server(('127.0.0.1', 0)); time.sleep(60)"
    path = lab.script("server", f"if 'stdio' not in sys.argv: {listen}")
    lab.servers(acme={"command": str(path), "args": [], "startTimeout": "3s"})
    check = await lab.finds("acme: the server does not use stdio: it listens on port")
    assert "an argument such as stdio" in check.hint
    lab.edit('"args": []', '"args": ["stdio"]')
    lab.edit('"3s"', '"20s"')
    await lab.is_well()


@row("legacy-only")
async def legacy_only(lab: Lab) -> None:
    lab.servers(acme={**small(), "era": "modern"})
    check = await lab.finds("acme: the server supports only the legacy era, but its entry requires the modern era")
    lab.take_over(check, "acme")
    await lab.is_well()


@row("orphan left over")
async def orphan(lab: Lab) -> None:
    """A server whose client was killed: its stdin has no one at the other end, and it does not care."""
    path = lab.script("server", "if 'left' in sys.argv: time.sleep(60)")
    lab.servers(acme={"command": str(path), "args": ["left"], "enabled": False})
    leave = "import subprocess as s, sys; print(s.Popen(sys.argv[1:], stdin=s.PIPE, stdout=s.DEVNULL).pid)"
    words = [PYTHON, "-c", leave, str(path), "left"]
    client = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    pid = int((await client.communicate())[0])
    check = await lab.finds(f"this machine: process {pid} of acme is left over", machine=True)
    assert check.copy == f"kill {pid}"
    lab.repair(check)
    await lab.is_well(machine=True)
