"""Programs that are not there, or not where they are looked for."""

from __future__ import annotations

import sys

from tests.doctor.doctor_lab import PYTHON, SMALL, Lab, small
from tests.doctor.rows import row

RUNS_SMALL = f"#!/bin/sh\nexec {PYTHON} -I -S {SMALL}\n"


@row("missing command")
async def missing(lab: Lab) -> None:
    lab.servers(acme={"command": "frobnicate"})
    check = await lab.finds("acme: frobnicate is not installed, or not on PATH")
    assert "which frobnicate" in check.hint
    lab.program(lab.bin / "frobnicate", RUNS_SMALL)
    await lab.is_well()


@row("no Node.js")
async def no_node(lab: Lab) -> None:
    lab.environ["PATH"] = str(lab.bin)
    lab.servers(acme={"command": "npx", "args": ["-y", "acme"]})
    check = await lab.finds("acme: Node.js is not installed, or npx is not on PATH")
    assert "install Node.js" in check.hint
    lab.program(lab.bin / "npx", RUNS_SMALL)
    await lab.is_well()


@row("wrong PATH")
async def wrong_path(lab: Lab) -> None:
    lab.program(lab.home / ".local" / "bin" / "acme-server", RUNS_SMALL)
    lab.servers(acme={"command": "acme-server"})
    check = await lab.finds("acme: acme-server is not on PATH; ~/.local/bin has it")
    lab.take_over(check, "acme")
    await lab.is_well()


@row("nvm-only node")
async def nvm(lab: Lab) -> None:
    lab.environ["PATH"] = "/bin"
    for version in ("v9.11.0", "v22.1.0", "v18.0.0"):
        folder = lab.home / ".nvm" / "versions" / "node" / version / "bin"
        lab.program(folder / "node", RUNS_SMALL)
        # As the real one: it finds node on PATH.
        lab.program(folder / "acme-npx", "#!/usr/bin/env node\n")
    lab.servers(acme={"command": "acme-npx", "args": ["-y", "acme"]})
    check = await lab.finds("acme: acme-npx is not on PATH; nvm has it")
    assert "v22.1.0" in check.copy  # the newest, which is not the last by letters
    lab.repair(check)
    await lab.is_well()


@row("only the login shell finds it")
async def login_shell(lab: Lab) -> None:
    hidden = lab.folder / "with spaces" / "tools"
    lab.program(hidden / "acme-server", RUNS_SMALL)
    lab.write(f'echo welcome\nexport PATH="{hidden}:$PATH"\n', lab.home / ".profile")
    lab.environ["SHELL"] = "/bin/sh"
    lab.servers(acme={"command": "acme-server"})
    check = await lab.finds("acme: acme-server is not on PATH; your login shell has it")
    lab.repair(check)
    await lab.is_well()


@row("not on the PATH of a desktop application")
async def desktop(lab: Lab) -> None:
    lab.program(lab.bin / "acme-server", RUNS_SMALL)
    path = lab.servers(lab.home / ".cursor" / "mcp.json", acme={"command": "acme-server"})
    check = await lab.finds("acme: Cursor will not find acme-server", "PATH of desktop applications", client="cursor")
    lab.take_over(check, "acme", path)
    await lab.is_well("cursor")


@row("a command and its arguments in one text")
async def one_text(lab: Lab) -> None:
    lab.servers(acme={"command": f"{PYTHON} -I -S {SMALL}"})
    check = await lab.finds("acme: the command and its arguments are in one string")
    lab.take_over(check, "acme")
    await lab.is_well()


@row("a file that may not be run")
async def not_executable(lab: Lab) -> None:
    path = lab.program(lab.work / "server.sh", RUNS_SMALL, executable=False)
    lab.servers(acme={"command": str(path)})
    check = await lab.finds("is not executable")
    await lab.run(check.copy)
    await lab.is_well()


@row("a path that does not exist")
async def no_file(lab: Lab) -> None:
    lab.servers(acme={"command": str(lab.work / "server.sh")})
    await lab.finds("acme: the file", "server.sh does not exist")
    lab.program(lab.work / "server.sh", RUNS_SMALL)
    await lab.is_well()


@row("a working directory that does not exist")
async def no_directory(lab: Lab) -> None:
    lab.servers(acme={**small(), "cwd": str(lab.work / "gone")})
    check = await lab.finds("the working directory", "does not exist")
    assert "cwd" in check.hint
    (lab.work / "gone").mkdir()
    await lab.is_well()


@row("the wrong Python")
async def no_module(lab: Lab) -> None:
    path = lab.write("import acme_sdk\n", lab.work / "server.py")
    lab.servers(acme={"command": sys.executable, "args": [str(path)], "env": {"PYTHONPATH": str(lab.work / "lib")}})
    check = await lab.finds("acme: the server ended with exit code 1: the Python module acme_sdk")
    assert "install" in check.hint
    lab.write(f"import runpy\nrunpy.run_path({str(SMALL)!r}, run_name='__main__')\n", lab.work / "lib" / "acme_sdk.py")
    await lab.is_well()


@row("npx of nvm by its full path, without its node")
async def without_node(lab: Lab) -> None:
    lab.environ["PATH"] = "/bin"
    folder = lab.home / ".nvm" / "versions" / "node" / "v22.1.0" / "bin"
    lab.program(folder / "acme-node", RUNS_SMALL)
    npx = lab.program(folder / "acme-npx", "#!/usr/bin/env acme-node\n")
    lab.servers(acme={"command": str(npx)})
    check = await lab.finds("acme: the server ended with exit code 127: the server needs the program acme-node")
    lab.take_over(check, "acme")
    await lab.is_well()


@row("cmd /c on another system than Windows")
async def of_windows(lab: Lab) -> None:
    lab.program(lab.bin / "acme-npx", RUNS_SMALL)
    lab.servers(acme={"command": "cmd", "args": ["/c", "acme-npx", "-y", "acme"]})
    check = await lab.finds("acme: cmd /c starts acme-npx only on Windows, and this is another system")
    lab.take_over(check, "acme")
    await lab.is_well()


@row("Node.js that is too old")
async def old_node(lab: Lab) -> None:
    node = lab.program(lab.bin / "node", "#!/bin/sh\necho v14.21.3\n")
    lab.program(lab.bin / "npx", RUNS_SMALL)
    lab.servers(acme={"command": "npx", "args": ["-y", "acme@1.0.0"]})
    check = await lab.finds("acme: node v14.21.3 is too old for most servers")
    assert "install Node.js 22 or newer" in check.hint
    lab.edit("v14.21.3", "v22.1.0", node)
    await lab.is_well()
