"""What clients settled in their sessions, in the record."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.db.client_state import SessionState, SessionStateStore
from toolway.cluster.db.tables import SessionRow

pytestmark = pytest.mark.anyio
LIFE = 60.0


async def test_session_state_is_found_by_its_tenant_only(engine: AsyncEngine) -> None:
    sessions = SessionStateStore(engine)
    assert await sessions.load_many("acme", ["s1"]) == {}
    await sessions.update("acme", "s1", lambda now: replace(now, level="error"), LIFE)
    done = await sessions.update("acme", "s1", lambda now: replace(now, uris=("a://b",)), LIFE)
    assert done == SessionState("error", ("a://b",))
    await sessions.update("acme", "s2", lambda now: replace(now, ended=True), LIFE)
    assert await sessions.load_many("acme", ["s1", "s2", "s3"]) == {"s1": done, "s2": SessionState(ended=True)}
    assert await sessions.load_many("other", ["s1"]) == {}


async def test_concurrent_updates_of_a_session_lose_nothing(engine: AsyncEngine) -> None:
    sessions = SessionStateStore(engine)

    async def want(uri: str) -> None:
        await sessions.update("acme", "s", lambda now: replace(now, uris=(*now.uris, uri)), LIFE)

    await asyncio.gather(*(want(f"r://{number}") for number in range(12)))
    assert sorted((await sessions.load_many("acme", ["s"]))["s"].uris) == sorted(
        f"r://{number}" for number in range(12)
    )


async def test_unknown_fields_of_a_newer_version_are_kept(engine: AsyncEngine) -> None:
    sessions = SessionStateStore(engine)
    await sessions.update("acme", "s", lambda now: replace(now, level="error"), LIFE)
    async with engine.begin() as db:
        await db.execute(update(SessionRow).values(facts={"level": "error", "roots": ["file:///"]}))
    await sessions.update("acme", "s", lambda now: replace(now, ended=True), LIFE)
    async with engine.connect() as db:
        kept = (await db.execute(select(SessionRow.facts))).scalar_one()
    assert (kept["roots"], kept["ended"], kept["level"]) == (["file:///"], True, "error")


async def test_expired_sessions_are_deleted(engine: AsyncEngine) -> None:
    sessions = SessionStateStore(engine)
    for number in range(5):
        await sessions.update("acme", f"old-{number}", lambda now: replace(now, ended=True), -1.0)
    await sessions.update("acme", "new", lambda now: replace(now, ended=True), LIFE)
    async with engine.connect() as db:
        assert (await db.execute(select(func.count()).select_from(SessionRow))).scalar_one() == 1
