"""What changed, and when: no reader misses a change."""

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


async def test_fetch_returns_changes_since_a_revision(engine: AsyncEngine) -> None:
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


async def test_rolled_back_change_is_not_recorded(engine: AsyncEngine) -> None:
    with pytest.raises(ZeroDivisionError):
        async with engine.begin() as db:
            await record_change(db, "keys", "acme")
            raise ZeroDivisionError
    assert await ChangeReader(engine).fetch_since(0) == (0, frozenset())


async def test_restored_database_reports_everything_changed(engine: AsyncEngine) -> None:
    await _change(engine, "keys", "acme")
    await _change(engine, "lists", "acme")
    async with engine.begin() as db:
        await db.execute(update(RevisionRow).values(last=1))
    last, changed = await ChangeReader(engine).fetch_since(1000)
    assert (last, changed) == (1, frozenset({("keys", "acme"), ("lists", "acme")}))


async def test_seen_revision_includes_all_changes_before_it(engine: AsyncEngine) -> None:
    """Many writers change something at once, each its own tenant; a polling reader sees every change."""
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
