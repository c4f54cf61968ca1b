"""Breakers of two gateways, connected by a real NATS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.nats_server import nats_server, program
from toolway.cluster.bus import Bus
from toolway.cluster.db.changes import ChangeReader
from toolway.cluster.replication.change_feed import ChangeFeed
from toolway.cluster.replication.handlers import BREAKER_MESSAGE_KIND, SharedBreakers
from toolway.middleware.circuit_breaker import BreakerState, CircuitBreakers
from toolway.types import Json

pytestmark = pytest.mark.anyio


class Gateway:
    def __init__(self, engine: AsyncEngine, name: str) -> None:
        self.following = ChangeFeed(ChangeReader(engine), "t")
        self.bus = Bus("test", name, self.following.handle_message, self.following.resync, "t")
        self.board = CircuitBreakers(lambda: 0.5)
        self.breakers = SharedBreakers(self.board, lambda: {"http", "stdio"}, lambda server: server == "stdio")
        self.breakers.register(self.following)

    async def open(self, url: str) -> None:
        await self.bus.connect([url])
        self.following.send = self.bus.publish
        await self.following.start()

    async def close(self) -> None:
        await self.following.close()
        await self.bus.close()

    def fail(self, server: str, tool: str = "") -> None:
        """As the stage does."""
        now = asyncio.get_running_loop().time()
        found = self.board.tool(server, tool) if tool else self.board.server(server)
        for _ in range(5):
            found.record_failure(now)
        self.board.report_opened(server, tool, now)

    def position(self, server: str, tool: str = "") -> BreakerState:
        return (self.board.tool(server, tool) if tool else self.board.server(server)).state


async def _until(what: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not what():
            await asyncio.sleep(0.005)


@pytest.mark.skipif(program() is None, reason="nats-server is not installed")
async def test_breaker_opened_at_one_gateway_opens_at_all(engine: AsyncEngine) -> None:
    a, b = Gateway(engine, "a"), Gateway(engine, "b")
    async with nats_server() as server:
        try:
            await a.open(server.url)
            await b.open(server.url)
            a.fail("http")
            await _until(lambda: b.position("http") is BreakerState.OPEN)
            b.fail("stdio", "slow")
            await _until(lambda: a.position("stdio", "slow") is BreakerState.OPEN)
            a.fail("stdio")  # its own way to the owner
            a.board.trip("stdio", "other", asyncio.get_running_loop().time())
            await _until(lambda: b.position("stdio", "other") is BreakerState.OPEN)
            assert b.position("stdio") is BreakerState.CLOSED
            a.board.reset("stdio", "other")
            await _until(lambda: b.position("stdio", "other") is BreakerState.CLOSED)
        finally:
            await a.close()
            await b.close()


@pytest.mark.parametrize(
    "junk",
    [
        {},
        {"server": "http", "tool": "", "wait": "5"},
        {"server": "nobody", "tool": "", "wait": 5},
        {"server": "http", "tool": 7, "wait": 5},
        {"server": "http", "tool": "x" * 1000, "wait": 5},
        {"server": "http", "tool": "", "wait": -1, "manual": True},
        {"server": "http", "tool": "", "wait": float("nan")},
    ],
)
async def test_invalid_breaker_message_changes_nothing(engine: AsyncEngine, junk: Json) -> None:
    found = Gateway(engine, "a")
    found.following.handle_message(BREAKER_MESSAGE_KIND, junk)
    assert found.board.status(0.0) == {} and found.position("http") is BreakerState.CLOSED
