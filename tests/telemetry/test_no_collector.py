"""A missing collector delays neither calls nor the shutdown."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.load_clients import Connection
from tests.gateway.program import program
from tests.timing import within
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


async def test_missing_collector_delays_neither_calls_nor_shutdown(
    tmp_path: Path, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", silent)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    async with program(tmp_path, {"s": fake_server()}) as gateway:
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = {"name": "s__echo", "arguments": {"text": "x"}, "_meta": meta}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        fields = {
            "authorization": f"Bearer {gateway.token}",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": "s__echo",
        }
        connection = await Connection.to(gateway.port)
        began = time.monotonic()
        for _ in range(50):
            answer = await connection.request("POST", "/mcp", fields, body)
            assert json.loads(answer.body)["result"]["content"][0]["text"] == "x"
        assert time.monotonic() - began < within(10)  # ten seconds are what an export may take
        began = time.monotonic()
        assert await gateway.stop() == 0
        assert time.monotonic() - began < within(12)  # five for the last spans; the rest is for a busy machine
