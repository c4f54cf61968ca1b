"""Subscriptions to resources and tasks, sent in the way of the server's era."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from toolway.upstream import subscriptions
from toolway.upstream.session import Session
from toolway.upstream.subscriptions import RESOURCE_KIND, TASK_KIND, Subscriptions
from toolway.upstream.transport import JSONRPCError, TransportError

pytestmark = pytest.mark.anyio


class Server:
    """A server session that records what it receives."""

    def __init__(self, era: str) -> None:
        self.protocol = SimpleNamespace(era=era)
        self.on_reinitialized: Any = None
        self.told: list[tuple[str, str]] = []
        self.listens: list[Mapping[str, Sequence[str]]] = []
        self.open: list[Mapping[str, Sequence[str]]] = []
        self.lose = asyncio.Event()
        self.refuses = False

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.told.append((method.removeprefix("resources/"), params["uri"]))
        if self.refuses:
            raise JSONRPCError(-32601, "no such method")
        return {}

    async def listen_for_resources(self, wanted: Mapping[str, Sequence[str]], acknowledged: asyncio.Event) -> bool:
        self.listens.append(wanted)
        if self.refuses:
            return False
        self.open.append(wanted)
        acknowledged.set()
        try:
            await self.lose.wait()
        finally:
            self.open.remove(wanted)
        self.lose.clear()
        raise TransportError("lost", certainty=0, code="E")  # type: ignore[arg-type]  # nobody looks at it


@asynccontextmanager
async def kept(wishes: Subscriptions, server: Server) -> AsyncIterator[None]:
    session: Session = server  # type: ignore[assignment]  # as much of one as is needed
    keeping = asyncio.create_task(wishes.run(session))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


def made(changed: list[str]) -> Subscriptions:
    return Subscriptions(changed.append, lambda: 0.0)


async def settle(is_done: Callable[[], bool]) -> None:
    """Wait until something has happened, however busy the machine is, and a moment for what must not happen."""
    async with asyncio.timeout(30):
        while not is_done():
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)


async def test_resource_is_subscribed_once_for_many_listeners() -> None:
    wishes, server = made([]), Server("legacy")
    async with kept(wishes, server):
        for uri in ("a", "b", "a"):
            await wishes.add(RESOURCE_KIND, uri)
        assert sorted(server.told) == [("subscribe", "a"), ("subscribe", "b")]
        wishes.remove(RESOURCE_KIND, "a")
        await settle(lambda: len(wishes) == 2)
        assert len(server.told) == 2 and len(wishes) == 2
        wishes.remove(RESOURCE_KIND, "a")
        await settle(lambda: len(server.told) > 2)
        assert server.told[2:] == [("unsubscribe", "a")]


async def test_modern_server_has_one_stream_for_all_subscriptions() -> None:
    wishes, server = made([]), Server("modern")
    async with kept(wishes, server):
        await wishes.add(RESOURCE_KIND, "a")
        assert server.open == [{RESOURCE_KIND: ["a"]}]
        await asyncio.gather(wishes.add(RESOURCE_KIND, "b"), wishes.add(TASK_KIND, "t"))
        await settle(lambda: TASK_KIND in (server.open or [{}])[-1])
        assert server.open == [{RESOURCE_KIND: ["a", "b"], TASK_KIND: ["t"]}] and len(server.listens) == 2
        wishes.remove(RESOURCE_KIND, "a")
        wishes.remove(RESOURCE_KIND, "b")
        wishes.remove(TASK_KIND, "t")
        await settle(lambda: not server.open)
        assert server.open == [] and not wishes
    assert server.open == []


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_new_link_resubscribes_and_reports_changes(era: str) -> None:
    changed: list[str] = []
    wishes = made(changed)
    async with kept(wishes, Server(era)):
        await wishes.add(RESOURCE_KIND, "a")
        await wishes.add(TASK_KIND, "t")
    assert changed == []
    again = Server(era)
    async with kept(wishes, again):
        await settle(lambda: bool(again.told or again.open))
        assert changed == ["a"]
        assert (
            again.told == [("subscribe", "a")]
            if era == "legacy"
            else again.open == [{RESOURCE_KIND: ["a"], TASK_KIND: ["t"]}]
        )


async def test_subscription_made_before_connecting_is_sent_on_connect() -> None:
    changed: list[str] = []
    wishes, server = made(changed), Server("legacy")
    waiting = asyncio.create_task(wishes.add(RESOURCE_KIND, "a"))
    await settle(lambda: True)
    assert not waiting.done()
    async with kept(wishes, server):
        await waiting
        assert server.told == [("subscribe", "a")] and changed == []


async def test_new_handshake_resubscribes() -> None:
    changed: list[str] = []
    wishes, server = made(changed), Server("legacy")
    async with kept(wishes, server):
        await wishes.add(RESOURCE_KIND, "a")
        server.on_reinitialized()
        await settle(lambda: len(server.told) == 2)
        assert server.told == [("subscribe", "a")] * 2 and changed == ["a"]


async def test_lost_stream_is_reopened_and_resources_reported_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriptions, "RESUBSCRIBE_BACKOFF_S", (0.01, 0.1))
    changed: list[str] = []
    wishes, server = made(changed), Server("modern")
    async with kept(wishes, server):
        await wishes.add(RESOURCE_KIND, "a")
        server.lose.set()
        await settle(lambda: changed == ["a"] and bool(server.open))
        assert server.open == [{RESOURCE_KIND: ["a"]}] and changed == ["a"]


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_subscribe_returns_when_server_refuses(era: str) -> None:
    wishes, server = made([]), Server(era)
    server.refuses = True
    async with kept(wishes, server), asyncio.timeout(subscriptions.ACKNOWLEDGE_TIMEOUT_S / 2):
        await wishes.add(RESOURCE_KIND, "a")
