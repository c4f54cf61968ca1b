"""A gateway that runs with a project's file: a change of it starts nothing until it was approved."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.program import until
from toolway.config.scopes import open_trust_store
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio


def server_that_marks(mark: Path) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-c", f"open({str(mark)!r}, 'w').close()"]}


def write(file: Path, servers: Mapping[str, Any]) -> None:
    file.write_text(json.dumps({"mcpServers": {name: _entry(server) for name, server in servers.items()}}))


def _entry(server: Any) -> Any:
    return server if isinstance(server, dict) else {"command": server.command, "args": list(server.args)}


async def test_changed_file_is_not_applied_until_trusted(tmp_path: Path) -> None:
    file, mark = tmp_path / "mcp.json", tmp_path / "started"
    write(file, {"good": fake_server()})
    open_trust_store(os.environ).trust(file, file.read_bytes())
    log: list[str] = []
    gateway = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolway.cli", "serve", "--port", "0", "--verbose"),
        cwd=tmp_path,
        stderr=asyncio.subprocess.PIPE,
    )
    reading = asyncio.create_task(_read(gateway, log))
    try:
        await until(lambda: any("serving at" in line for line in log))
        write(file, {"good": fake_server(), "evil": server_that_marks(mark)})
        await until(lambda: any("configuration rejected" in line and "E-CONFIG-UNTRUSTED" in line for line in log))
        assert not mark.exists()
        gateway.send_signal(signal.SIGHUP)
        await until(lambda: sum("configuration rejected" in line for line in log) >= 2)
        assert not mark.exists()
        open_trust_store(os.environ).trust(file, file.read_bytes())
        await until(mark.exists)
        assert any("evil added" in line for line in log)
        assert not any("'good'" in line for line in log)  # unchanged
    finally:
        gateway.send_signal(signal.SIGTERM)
        await gateway.wait()
        await reading


async def _read(process: asyncio.subprocess.Process, log: list[str]) -> None:
    assert process.stderr is not None
    while line := await process.stderr.readline():
        log.append(line.decode())
