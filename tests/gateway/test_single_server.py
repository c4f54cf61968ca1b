"""A gateway that is alone does not notice that there are clusters: nothing of them is loaded, from start to end."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.load_clients import Connection
from tests.gateway.program import kill, program, start
from toolway.testing import FakeHttp

pytestmark = pytest.mark.anyio

FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
OF_CLUSTERS = ("nats", "psycopg", "psycopg_binary", "sqlalchemy", "alembic", "aiosqlite")
OURS = ("toolway.cluster",)
#: Slow to load, and needed only for logins, OpenTelemetry, colored output or the models of the SDK.
SLOW = (
    "pydantic",
    "rich",
    "mcp",
    "mcp_types",
    "opentelemetry",
    "httpx2",
    "attr",
    "keyring",
    "yaml",
    "prometheus_client",
)

# Python runs this first in every process, whatever its program is.
NOTING = """
import atexit, json, os, pathlib, sys
def note():
    pathlib.Path(os.environ["NOTED"], f"{os.getpid()}.json").write_text(json.dumps(sorted(sys.modules)))
atexit.register(note)
"""


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where every process writes what it had loaded when it ended."""
    folder = tmp_path / "noted"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(NOTING)
    monkeypatch.setenv("NOTED", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    for name in ("TOOLWAY_CLUSTER", "TOOLWAY_DATABASE"):
        monkeypatch.delenv(name, raising=False)
    return folder


def loaded(folder: Path, pid: int) -> list[str]:
    modules: list[str] = json.loads((folder / f"{pid}.json").read_text())
    assert "toolway.serve.process" in modules  # else we look at another process
    return [each for each in modules if each.partition(".")[0] in (*OF_CLUSTERS, *SLOW) or each.startswith(OURS)]


async def call(port: int, token: str, tool: str, arguments: dict[str, Any]) -> str:
    info = {"name": "test", "version": "1"}
    meta = {"protocolVersion": "2026-07-28", "clientInfo": info, "clientCapabilities": {}}
    params = {
        "name": tool,
        "arguments": arguments,
        "_meta": {f"io.modelcontextprotocol/{key}": value for key, value in meta.items()},
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    fields = {
        "authorization": f"Bearer {token}",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    connection = await Connection.to(port)
    try:
        return (await connection.request("POST", "/mcp", fields, body)).body.decode()
    finally:
        connection.close()


async def test_single_gateway_loads_no_cluster_modules(tmp_path: Path, noted: Path) -> None:
    async with FakeHttp() as api, program(tmp_path / "gw", {"fake": FAKE, "far": {"url": api.url}}) as gateway:
        for tool in ("fake__add", "far__add"):
            assert '"5"' in await call(gateway.port, gateway.token, tool, {"a": 2, "b": 3})
        assert (await gateway.request("POST", "/admin/keys", {"name": "somebody"}))[0] == 200
        assert (await gateway.request("POST", "/admin/reload"))[0] == 200
        status, answer = await gateway.get("/admin/nodes")
        assert (status, answer["error"]["code"]) == (422, "E-CLUSTER-NONE")
        assert await gateway.stop() == 0
        assert loaded(noted, gateway.pid) == []


def test_modules_in_the_lists_exist() -> None:
    assert all(importlib.util.find_spec(name) is not None for name in (*OF_CLUSTERS, *SLOW, *OURS))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cluster", "nats://127.0.0.1:1"), "E-CLUSTER"),
        (("--cluster", "nats://127.0.0.1:1", "--database", "postgresql://u:some-word@127.0.0.1:1/x"), "E-CLUSTER-KEY"),
        (("--database", "postgresql://u:some-word@127.0.0.1:1/x"), "E-CLUSTER"),
    ],
)
async def test_incomplete_cluster_options_are_rejected_before_start(
    tmp_path: Path, noted: Path, options: tuple[str, ...], said: str
) -> None:
    gateway = await start(tmp_path / "gw", {"fake": FAKE}, "--port", "0", *options)
    try:
        assert gateway.process.stdout is not None
        told = (await gateway.process.stdout.read()).decode()
        assert await gateway.ended() == 3
    finally:
        await kill(gateway)
    assert json.loads(told)["error"]["code"] == said and "some-word" not in told + gateway.log
    assert len(list(noted.glob("*.json"))) == 1  # no server was started
