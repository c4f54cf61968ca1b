"""API keys in the record."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.encryption_keys import an_integrity
from toolway.cluster.db.changes import ChangeReader
from toolway.cluster.db.client_state import ApiKeyTable
from toolway.cluster.db.engine import db_now
from toolway.cluster.db.tables import ApiKeyRow

pytestmark = pytest.mark.anyio


async def test_key_is_valid_until_revoked_and_changes_are_recorded(engine: AsyncEngine) -> None:
    keys, changes = ApiKeyTable(engine, an_integrity()), ChangeReader(engine)
    first = await keys.add("acme", "k1", {"id": "k1", "access": ["github"]})
    await keys.add("acme", "k2", {"id": "k2", "access": None})
    await keys.add("other", "k1", {"id": "k1"})
    known = await keys.load_all("acme")
    assert known.valid == [{"id": "k1", "access": ["github"]}, {"id": "k2", "access": None}]
    assert known.revoked == frozenset()
    seen, changed = await changes.fetch_since(first)
    assert changed == {("keys", "acme"), ("keys", "other")}
    assert await keys.revoke("acme", "k1")
    assert (await changes.fetch_since(seen))[1] == {("keys", "acme")}
    known = await keys.load_all("acme")
    assert [facts["id"] for facts in known.valid] == ["k2"]
    assert known.revoked == {"k1"}
    assert [facts["id"] for facts in (await keys.load_all("other")).valid] == ["k1"]


async def test_revoking_an_unknown_key_changes_nothing(engine: AsyncEngine) -> None:
    keys = ApiKeyTable(engine, an_integrity())
    assert not await keys.revoke("acme", "k1")
    await keys.add("acme", "k1", {})
    assert not await keys.revoke("other", "k1")
    assert await keys.revoke("acme", "k1")
    seen, _ = await ChangeReader(engine).fetch_since(0)
    assert not await keys.revoke("acme", "k1")
    assert await ChangeReader(engine).fetch_since(seen) == (seen, frozenset())


async def test_revoked_key_id_cannot_be_reused(engine: AsyncEngine) -> None:
    keys = ApiKeyTable(engine, an_integrity())
    await keys.add("acme", "k1", {})
    await keys.revoke("acme", "k1")
    with pytest.raises(IntegrityError):
        await keys.add("acme", "k1", {})
    assert (await keys.load_all("acme")).valid == []


async def test_concurrent_revocations_of_a_key_succeed_once(engine: AsyncEngine) -> None:
    keys = ApiKeyTable(engine, an_integrity())
    await keys.add("acme", "k1", {})
    assert sorted(await asyncio.gather(*(keys.revoke("acme", "k1") for _ in range(5)))) == [False] * 4 + [True]


async def test_revoked_keys_are_forgotten_after_a_day(engine: AsyncEngine) -> None:
    keys = ApiKeyTable(engine, an_integrity())
    for id in ("k1", "k2", "k3"):
        await keys.add("acme", id, {})
    for id, ago in (("k1", 86_401.0), ("k2", 86_000.0)):
        await keys.revoke("acme", id)
        async with engine.begin() as db:
            await db.execute(update(ApiKeyRow).where(ApiKeyRow.id == id).values(revoked_at=db_now() - ago))
    await keys.revoke("acme", "k3")
    assert (await keys.load_all("acme")).revoked == {"k2", "k3"}
