"""What changed, and when: nobody who asks misses anything."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.db.changes import ChangeReader, record_change
from toolway.cluster.db.tables import RevisionRow

pytestmark = pytest.mark.anyio


async def _change(engine: AsyncEngine, kind: str, tenant: str) -> int:
    async with engine.begin() as db:
        return await record_change(db, kind, tenant)


async def test_who_asks_hears_what_changed_since(engine: AsyncEngine) -> None:
    changes = ChangeReader(engine)
    assert await changes.fetch_since(0) == (0, frozenset())
    first = await _change(engine, "keys", "acme")
    second = await _change(engine, "lists", "acme")
    third = await _change(engine, "keys", "other")
    assert first < second < third
    assert await changes.fetch_since(0) == (third, frozenset({("keys", "acme"), ("lists", "acme"), ("keys", "other")}))
    assert await changes.fetch_since(first) == (third, frozenset({("lists", "acme"), ("keys", "other")}))
    assert await changes.fetch_since(third) == (third, frozenset())
    again = await _change(engine, "keys", "acme")
    assert await changes.fetch_since(third) == (again, frozenset({("keys", "acme")}))


async def test_a_change_that_is_taken_back_is_none(engine: AsyncEngine) -> None:
    with pytest.raises(ZeroDivisionError):
        async with engine.begin() as db:
            await record_change(db, "keys", "acme")
            raise ZeroDivisionError
    assert await ChangeReader(engine).fetch_since(0) == (0, frozenset())


async def test_a_record_that_was_put_back_from_a_copy_has_changed_altogether(engine: AsyncEngine) -> None:
    await _change(engine, "keys", "acme")
    await _change(engine, "lists", "acme")
    async with engine.begin() as db:
        await db.execute(update(RevisionRow).values(last=1))
    last, changed = await ChangeReader(engine).fetch_since(1000)
    assert (last, changed) == (1, frozenset({("keys", "acme"), ("lists", "acme")}))


async def test_who_has_seen_a_revision_has_seen_all_before_it(engine: AsyncEngine) -> None:
    """Many change something at once, each a tenant of its own; whoever asks all the time hears of each of them."""
    changes = ChangeReader(engine)
    done = asyncio.Event()
    heard: set[str] = set()

    async def listen() -> None:
        seen = 0
        while True:
            over = done.is_set()
            seen, changed = await changes.fetch_since(seen)
            heard.update(tenant for _, tenant in changed)
            if over:
                return

    async def writer(name: str) -> None:
        for number in range(15):
            async with engine.begin() as db:
                await record_change(db, "keys", f"{name}{number}")
                await asyncio.sleep(0.001 * (number % 3))  # between the number and the commit

    listener = asyncio.create_task(listen())
    await asyncio.gather(*(writer(name) for name in "abc"))
    done.set()
    await listener
    assert heard == {f"{name}{number}" for name in "abc" for number in range(15)}
