"""Keeping up with the record: with news, without them, and after what was missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.db.changes import ChangeReader, record_change
from toolway.cluster.replication import change_feed
from toolway.cluster.replication.change_feed import MIN_POLL_INTERVAL_S, POLL_INTERVAL_S, ChangeFeed
from toolway.types import Json

pytestmark = pytest.mark.anyio


class RecordingLoader:
    def __init__(self) -> None:
        self.taken: list[int] = []
        self.fails = 0

    async def take(self, since: int) -> None:
        if self.fails:
            self.fails -= 1
            raise RuntimeError("not now")
        self.taken.append(since)


async def _change(engine: AsyncEngine, kind: str, tenant: str = "t") -> int:
    async with engine.begin() as db:
        return await record_change(db, kind, tenant)


@asynccontextmanager
async def _following(engine: AsyncEngine, **takers: RecordingLoader) -> AsyncIterator[ChangeFeed]:
    found = ChangeFeed(ChangeReader(engine), "t")
    for kind, taker in takers.items():
        found.on_change(kind, taker.take)
    await found.start()
    try:
        yield found
    finally:
        await found.close()


async def _until(what: Callable[[], bool], seconds: float = 60.0) -> float:
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(seconds):
        while not what():
            await asyncio.sleep(0.005)
    return asyncio.get_running_loop().time() - began


async def test_all_is_loaded_at_start_and_changes_within_a_second(engine: AsyncEngine) -> None:
    await _change(engine, "keys")
    keys, lists = RecordingLoader(), RecordingLoader()
    async with _following(engine, keys=keys, lists=lists):
        assert (keys.taken, lists.taken) == ([0], [0])
        revision = await _change(engine, "keys")
        assert await _until(lambda: len(keys.taken) == 2) < 2 * POLL_INTERVAL_S
        assert keys.taken == [0, revision - 1] and lists.taken == [0]


async def test_changes_of_other_tenants_are_not_read(engine: AsyncEngine) -> None:
    keys = RecordingLoader()
    async with _following(engine, keys=keys) as found:
        await _change(engine, "keys", "another")
        looks = found.poll_count
        await _until(lambda: found.poll_count >= looks + 2)
        assert keys.taken == [0]


async def test_message_triggers_an_early_poll(engine: AsyncEngine) -> None:
    keys = RecordingLoader()
    async with _following(engine, keys=keys) as found:
        await _until(lambda: found.poll_count > 1)
        await asyncio.sleep(2 * MIN_POLL_INTERVAL_S)
        await _change(engine, "keys")
        found.handle_message("keys", {})
        assert await _until(lambda: len(keys.taken) == 2) < POLL_INTERVAL_S / 2


async def test_flood_of_messages_does_not_flood_the_database(engine: AsyncEngine) -> None:
    async with _following(engine, keys=RecordingLoader()) as found:
        before, loop = found.poll_count, asyncio.get_running_loop()
        end = loop.time() + 1.0
        while loop.time() < end:
            found.handle_message("keys", {})
            found.handle_message("nobody wants to know", {})
            await asyncio.sleep(0.001)
        assert found.poll_count - before <= 1.0 / MIN_POLL_INTERVAL_S + 2


async def test_failed_load_is_retried_and_delays_no_other(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_feed, "RETRY_DELAY_S", 0.05)
    keys, lists = RecordingLoader(), RecordingLoader()
    async with _following(engine, keys=keys, lists=lists) as found:
        first = await _change(engine, "lists")
        lists.fails = 3
        found.resync()
        await _until(lambda: lists.fails < 3)
        await _change(engine, "keys")
        found.resync()
        await _until(lambda: len(keys.taken) == 2 and len(lists.taken) == 2)
        assert lists.taken == [0, first - 1]  # nothing was passed over


async def test_slow_loader_delays_no_other(engine: AsyncEngine) -> None:
    keys, gate = RecordingLoader(), asyncio.Event()
    first = True

    async def slow(since: int) -> None:
        nonlocal first
        if not first:
            await gate.wait()
        first = False

    found = ChangeFeed(ChangeReader(engine), "t")
    found.on_change("registry", slow)
    found.on_change("keys", keys.take)
    await found.start()
    try:
        await _change(engine, "registry")
        found.resync()
        await asyncio.sleep(0.3)
        await _change(engine, "keys")
        found.resync()
        assert await _until(lambda: len(keys.taken) == 2) < POLL_INTERVAL_S
    finally:
        await found.close()


async def test_unresponsive_database_is_polled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_feed, "RETRY_DELAY_S", 0.05)

    class Broken:
        def __init__(self) -> None:
            self.broken = False
            self.last = 5

        async def fetch_since(self, revision: int) -> tuple[int, frozenset[tuple[str, str]]]:
            if self.broken:
                raise ConnectionError
            changed = frozenset({("keys", "t")}) if self.last > revision else frozenset[tuple[str, str]]()
            return self.last, changed

    record, keys = Broken(), RecordingLoader()
    found = ChangeFeed(record, "t")
    found.on_change("keys", keys.take)
    await found.start()
    try:
        record.broken = True
        found.resync()
        await asyncio.sleep(0.5)
        seen = found.poll_count
        record.last, record.broken = 6, False
        await _until(lambda: len(keys.taken) == 2)
        assert keys.taken == [0, 5] and found.poll_count > seen
    finally:
        await found.close()


async def test_restored_database_is_reloaded() -> None:
    class Restored:
        last = 9

        async def fetch_since(self, revision: int) -> tuple[int, frozenset[tuple[str, str]]]:
            return self.last, frozenset({("keys", "t")} if revision != self.last else ())

    record, keys = Restored(), RecordingLoader()
    found = ChangeFeed(record, "t")
    found.on_change("keys", keys.take)
    await found.start()
    try:
        record.last = 3
        found.resync()
        await _until(lambda: len(keys.taken) == 2)
        assert keys.taken == [0, 0]
    finally:
        await found.close()


async def test_published_messages_keep_their_order_and_never_wait(engine: AsyncEngine) -> None:
    sent: list[tuple[str, Json]] = []

    async def send(kind: str, body: Json) -> bool:
        sent.append((kind, body))
        return True

    async with _following(engine, keys=RecordingLoader()) as found:
        found.send = send
        for number in range(change_feed.MAX_QUEUED_MESSAGES + 10):
            found.publish("breakers", {"n": number})
        await _until(lambda: len(sent) == change_feed.MAX_QUEUED_MESSAGES)
        assert [body["n"] for _, body in sent] == list(range(10, change_feed.MAX_QUEUED_MESSAGES + 10))


async def test_failing_message_handler_changes_nothing(engine: AsyncEngine) -> None:
    received: list[Json] = []

    def fail(body: Json) -> None:
        received.append(body)
        raise ValueError("what?")

    async with _following(engine, keys=RecordingLoader()) as found:
        found.on_message("breakers", fail)
        found.handle_message("breakers", {"x": 1})
        assert received == [{"x": 1}]


async def test_close_finishes_while_messages_arrive(engine: AsyncEngine) -> None:
    for _ in range(20):
        async with _following(engine, keys=RecordingLoader()) as found:
            await asyncio.sleep(MIN_POLL_INTERVAL_S + 0.01)
            found.resync()
            async with asyncio.timeout(30):
                await found.close()
