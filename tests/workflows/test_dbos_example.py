"""The recipe for DBOS: the example is killed after the effect, asks in its second process, and is answered.

DBOS has its own environment: `python -m bench.workflows --only dbos-sqlite` makes it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "workflows" / "dbos_refund.py"
PYTHON = ROOT / ".bench" / "workflows-dbos" / "bin" / "python"
SERVER = """
import json, os, sys, time
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "tools/call":
        with open("effects", "a") as file:
            file.write("refund\\n")
            file.flush()
            os.fsync(file.fileno())
        if sys.argv[1] == "hang":
            time.sleep(600)
        result = {"content": [], "structuredContent": {"id": "r-1"}}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": "refund", "inputSchema": {"type": "object"}}]}
    else:
        info = {"name": "payments", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not PYTHON.exists(), reason="DBOS is not installed: see bench/workflows/engines.py"),
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the environment of DBOS has Python 3.11"),
]


def use_server(folder: Path, mode: str) -> None:
    server = {"command": sys.executable, "args": ["-c", SERVER, mode], "cwd": str(folder)}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"payments": server}}))


async def start(folder: Path, *arguments: str) -> asyncio.subprocess.Process:
    path = os.pathsep.join([str(ROOT / "src"), sysconfig.get_path("purelib")])
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    return await asyncio.create_subprocess_exec(
        str(PYTHON), str(PROGRAM), *arguments, cwd=folder, env=environ, stdout=subprocess.PIPE
    )


async def end(process: asyncio.subprocess.Process) -> str:
    """Return what a process prints until it ends."""
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def test_dbos_example_refunds_once_and_asks_after_crash(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    use_server(tmp_path, "answer")
    assert json.loads((await end(await start(tmp_path, "A-1"))).splitlines()[-1]) == {"id": "r-1"}

    use_server(tmp_path, "hang")
    first = await start(tmp_path, "A-2")
    async with asyncio.timeout(60):
        while effects.read_text().count("refund") < 2:
            await asyncio.sleep(0.05)
    first.kill()
    await first.wait()

    use_server(tmp_path, "answer")
    second = await start(tmp_path, "A-2")
    assert second.stdout is not None
    async with asyncio.timeout(60):
        while b"Was A-2 refunded?" not in await second.stdout.readline():
            assert second.returncode is None
    await end(await start(tmp_path, "A-2", '{"id": "r-2"}'))
    assert json.loads((await end(second)).splitlines()[-1]) == {"id": "r-2"}
    assert effects.read_text().count("refund") == 2
