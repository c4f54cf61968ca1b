"""A gateway whose record does not answer yet lives, is not ready, and waits."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from tests.gateway.load_clients import Connection
from toolway.cluster import bootstrap
from toolway.cluster.bootstrap import wait_for_database
from toolway.errors import ConfigError, ServerUnavailable

pytestmark = pytest.mark.anyio


class Record:
    """Answers from the `good`th question on."""

    def __init__(self, good: int) -> None:
        self.good = good
        self.asked = 0
        self.was_asked = asyncio.Event()

    async def open(self) -> str:
        self.asked += 1
        self.was_asked.set()
        if self.asked < self.good:
            raise ServerUnavailable("the database does not answer", code="E-RECORD")
        return "open"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


async def answered(port: int, method: str, path: str) -> tuple[int, dict[str, object]]:
    connection = await Connection.to(port)
    try:
        answer = await connection.request(method, path, {}, b"{}" if method == "POST" else b"")
        return answer.status, json.loads(answer.body)
    finally:
        connection.close()


async def test_responding_database_is_not_waited_for() -> None:
    assert await wait_for_database(Record(1).open, asyncio.Event(), "127.0.0.1", 1, None) == "open"


async def test_waiting_gateway_is_alive_and_reports_why_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "DATABASE_RETRY_INTERVAL_S", 3600.0)
    record, end, port = Record(99), asyncio.Event(), free_port()
    opening = asyncio.create_task(wait_for_database(record.open, end, "127.0.0.1", port, None))
    async with asyncio.timeout(60):
        await record.was_asked.wait()
        while True:
            try:
                assert await answered(port, "GET", "/healthz") == (200, {"ok": True})
                break
            except OSError:
                await asyncio.sleep(0.01)
        assert await answered(port, "GET", "/readyz") == (503, {"ok": False})
        status, said = await answered(port, "POST", "/mcp")
        assert status == 503 and "waiting for the cluster database" in json.dumps(said)
        end.set()
        with pytest.raises(ServerUnavailable):
            await opening
    with pytest.raises(OSError):
        await answered(port, "GET", "/healthz")


async def test_gateway_starts_when_the_database_responds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bootstrap, "DATABASE_RETRY_INTERVAL_S", 0.01)
    record, port = Record(5), free_port()
    assert await wait_for_database(record.open, asyncio.Event(), "127.0.0.1", port, None) == "open"
    assert record.asked == 5
    assert caplog.text.count("E-RECORD") == 1  # said once, not with every try
    socket.create_server(("127.0.0.1", port)).close()


async def test_config_error_is_not_waited_for() -> None:
    async def wrong() -> None:
        raise ConfigError("the key is another", code="E-CLUSTER-KEY")

    with pytest.raises(ConfigError):
        await wait_for_database(wrong, asyncio.Event(), "127.0.0.1", 1, None)


async def test_port_in_use_does_not_stop_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "DATABASE_RETRY_INTERVAL_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert (
            await wait_for_database(Record(3).open, asyncio.Event(), "127.0.0.1", taken.getsockname()[1], None)
            == "open"
        )
