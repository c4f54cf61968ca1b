"""Health: asked now, by a ping and a URL; a server that hangs is found, even while a call waits."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.faults.fault_lab import until
from tests.network.network_lab import Names, connects
from tests.timing import within
from tests.upstream.raw_http import Conn, Received, peer, reacting, response
from toolway import CallError, HealthCheck, Hub, NotFound, Server
from toolway.config.server_entry import parse_entry
from toolway.events import HealthChanged
from toolway.testing import FakeHttp, fake_server
from toolway.upstream.transports import stdio

pytestmark = pytest.mark.anyio

NEVER = HealthCheck(interval=0)


def fake(*modes: str, health: HealthCheck = NEVER, **settings: Any) -> Server:
    return replace(parse_entry(fake_server(*modes)), health=health, **settings)


@asynccontextmanager
async def stopped(hub: Hub, name: str) -> AsyncIterator[int]:
    """A server that stands still, as one that hangs does."""
    pid = hub.status()[name].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.fixture(autouse=True)
def quick_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "STDIN_CLOSE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(stdio, "SIGTERM_TIMEOUT_S", 0.3)


@pytest.mark.promise("B4")
async def test_check_health_covers_all_servers() -> None:
    servers = {
        "one": fake(),
        "web": Server(url="http://127.0.0.1:9/mcp"),
        "later": fake(lazy=True),
        "off": fake(enabled=False),
    }
    async with Hub(servers, catalog_storage=None) as hub:
        await hub.wait_ready("one")
        results = await hub.check_health()
        assert {name: result.ok for name, result in results.items()} == {
            "one": True,
            "web": False,
            "later": None,
            "off": None,
        }
        assert results["one"].seconds > 0 and results["one"].error == ""
        assert results["web"].error
        assert (results["later"].state, results["off"].state) == ("idle", "disabled")
        assert (await hub.check_health("later", timeout=20, start=True)).ok is True
        with pytest.raises(NotFound):
            await hub.check_health("unknown")


@pytest.mark.promise("B3")
async def test_hung_server_fails_check_and_is_down_until_next_success() -> None:
    async with Hub({"one": fake()}, catalog_storage=None) as hub:
        await hub.wait_ready()
        assert (await hub.check_health("one")).ok is True
        events = hub.events(HealthChanged)
        async with stopped(hub, "one"):
            result = await hub.check_health("one", timeout=0.3)
            assert (result.ok, result.state) == (False, "ready")
            assert "no response" in result.error
            status = hub.status()["one"]
            assert (status.is_up, status.check_error) == (False, result.error)
            assert "health check failed" in status.why
        assert (await hub.check_health("one", timeout=10)).ok is True
        assert hub.status()["one"].is_up
        told = [await anext(events), await anext(events)]
        assert told == [HealthChanged("one", False, result.error), HealthChanged("one", True)]


@pytest.mark.promise("A9", "C9")
async def test_hung_process_is_restarted_within_timeout() -> None:
    assert HealthCheck().timeout == 30
    assert parse_entry({"command": "x", "health": {"timeout": "12s"}}).health.timeout == 12
    async with Hub({"one": fake(health=HealthCheck(timeout=1.0))}, catalog_storage=None) as hub:
        await hub.wait_ready()
        await hub.call_tool("one.sleep", {"seconds": 2})  # it answers pings while it works
        async with stopped(hub, "one") as pid:
            call = asyncio.create_task(hub.call_tool("one.echo", {"text": "x"}, idempotent=True))
            await until(lambda: hub.status()["one"].pid not in (pid, None), within(10))
            assert (await call).text == "x"
        assert "no response to a health check" in (hub.status()["one"].last_error or "")


@pytest.mark.promise("C9")
async def test_call_lost_to_hung_process_names_the_cause() -> None:
    async with Hub({"one": fake(health=HealthCheck(timeout=1.0))}, catalog_storage=None) as hub:
        await hub.wait_ready()
        await hub.call_tool("one.sleep", {"seconds": 2})
        async with stopped(hub, "one"):
            with pytest.raises(CallError, match="no response to a health check") as caught:
                await hub.call_tool("one.echo", {"text": "x"}, max_attempts=1)
        assert (caught.value.code, caught.value.executed) == ("E-HEALTH", "unknown")


@pytest.mark.promise("A9")
async def test_slow_server_that_answers_pings_is_not_restarted() -> None:
    async with Hub({"one": fake(health=HealthCheck(timeout=2.0))}, catalog_storage=None) as hub:
        await hub.wait_ready()
        assert (await hub.call_tool("one.sleep", {"seconds": 6})).is_error is False
        assert hub.status()["one"].restarts == 0


class HealthEndpoint:
    """A health URL with a scripted response."""

    def __init__(self) -> None:
        self.status = 200
        self.asked = 0

    async def __call__(self, conn: Conn, request: Received) -> None:
        self.asked += 1
        await conn.send(response(self.status))


@pytest.mark.promise("B13")
async def test_health_url_decides_whether_server_is_up() -> None:
    sign = HealthEndpoint()
    async with peer(reacting(sign)) as page, FakeHttp() as web:
        entry = {"url": web.url, "healthCheckUrl": page.url, "keepAliveInterval": 50}
        async with Hub({"web": entry}, catalog_storage=None) as hub:
            await hub.wait_ready()
            await until(lambda: sign.asked > 1, 10)
            assert hub.status()["web"].is_up
            sign.status = 503
            await until(lambda: not hub.status()["web"].is_up, 10)
            assert hub.status()["web"].check_error == "its health URL answered 503"
            assert (await hub.call_tool("web.echo", {"text": "still"})).text == "still"
            sign.status = 204
            await until(lambda: hub.status()["web"].is_up, 10)
            assert (await hub.check_health("web")).ok is True
            sign.status = 302
            assert (await hub.check_health("web")).error == "its health URL answered 302"


@pytest.mark.promise("B13")
async def test_process_with_failing_health_url_is_restarted() -> None:
    sign = HealthEndpoint()
    sign.status = 500
    async with peer(reacting(sign)) as page:
        health = HealthCheck(interval=0.05, timeout=30, failure_threshold=2, url=page.url)
        async with Hub({"one": fake(health=health)}, catalog_storage=None) as hub:
            await until(lambda: hub.status()["one"].restarts > 0, 20)
            assert "its health URL answered 500 (2 times in a row)" in (hub.status()["one"].last_error or "")


@pytest.mark.promise("B13")
async def test_health_url_cannot_reach_private_address() -> None:
    names = Names({"inside.example": ["10.0.0.1"]})
    server = fake(network_policy=names.policy(), health=HealthCheck(interval=0, url="http://inside.example/health"))
    with connects() as made:
        async with Hub({"one": server}, catalog_storage=None) as hub:
            await hub.wait_ready()
            result = await hub.check_health("one")
    assert result.ok is False and "health URL" in result.error
    assert made == []


async def test_rate_limited_ping_is_healthy_and_not_repeated_soon() -> None:
    async with FakeHttp(era="legacy", modes=["status=429;retry_after=3600;on=ping"]) as web:
        server = Server(url=web.url, health=HealthCheck(interval=0.05))
        async with Hub({"web": server}, catalog_storage=None) as hub:
            await hub.wait_ready()
            await until(lambda: web.stats.requests.get("ping"), 10)
            await asyncio.sleep(0.3)
            assert web.stats.requests["ping"] == 1
            assert hub.status()["web"].is_up
