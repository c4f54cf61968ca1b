"""A transport of another distribution: found by its entry point, used by the library and by a gateway."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.program import start

CARRIER = """
import asyncio
from dataclasses import dataclass
from toolway import JSONRPCError, Transport, TransportInfo
from toolway.part_api import ServerTransport, TransportSettings

@dataclass(frozen=True, slots=True)
class Settings(TransportSettings):
    kind = "carrier"
    host: str = ""

class Carrier(ServerTransport):
    kind = "carrier"
    def create(self, server, services):
        return Wire(server.url or server.transport_settings.host)
    def parse(self, given, fields):
        return Settings(str(given["host"])), None

class Wire(Transport):
    def __init__(self, host):
        self.host = host
    async def open(self, inbound):
        pass
    async def request(self, request):
        if request.method == "initialize":
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "c"}}
        if request.method == "tools/list":
            return {"tools": [{"name": "where", "inputSchema": {"type": "object"}}]}
        if request.method == "tools/call":
            return {"content": [{"type": "text", "text": "carried to " + self.host}]}
        raise JSONRPCError(-32601, "unknown method")
    async def wait_closed(self):
        return await asyncio.Future()
    def info(self):
        return TransportInfo(transport="carrier")
"""
ENTRIES: dict[str, dict[str, Any]] = {"key": {"carrier": {"host": "home"}}, "scheme": {"url": "carrier://home"}}
LIBRARY = """
from toolway import SyncHub
with SyncHub({"key": {"carrier": {"host": "home"}}, "scheme": "carrier://home"}) as hub:
    print(hub.call_tool("key.where").text, hub.call_tool("scheme.where").text)
"""
NOT_READ = """
import sys
from toolway.config.server_entry import parse_entry
parse_entry({"command": "x", "unknown": 1}), parse_entry({"url": "https://x.example/mcp", "unknown": 1})
assert "importlib.metadata" not in sys.modules
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    info = tmp_path / "site" / "carrier-1.0.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "site" / "carrier.py").write_text(CARRIER)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[toolway.transports]\ncarrier = carrier:Carrier\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)]))
    return tmp_path


def run(*words: str, folder: Path) -> str:
    environ = {**os.environ, "TOOLWAY_STATE": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run([sys.executable, *words], env=environ, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def test_library_calls_tool_through_foreign_transport(site: Path) -> None:
    assert run("-c", LIBRARY, folder=site) == "carried to home carried to carrier://home\n"


def test_metadata_is_not_read_for_known_entries(site: Path) -> None:
    assert run("-c", NOT_READ, folder=site) == ""


@pytest.mark.anyio
async def test_gateway_and_doctor_use_foreign_transport(site: Path) -> None:
    program = await start(site, ENTRIES)
    try:
        await program.announced()
        await program.until_ready("key")
        called = await program.request("POST", "/admin/call", {"server": "key", "tool": "where", "arguments": {}})
        assert "carried to home" in str(called)
    finally:
        await program.stop()
    found = run("-m", "toolway.cli", "doctor", "-c", str(program.file), folder=site)
    assert "the transport carrier comes from another distribution: carrier 1.0" in " ".join(found.split())
