"""One stored request for approval that cannot be read: it concerns itself alone, and grants nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.gateway.test_damaged_rows import NOT_UTF8, damage
from tests.parts.approvals.lab import file_store
from tests.parts.approvals.test_shared_store import request, store
from toolway.parts.approvals import records
from toolway.parts.approvals.records import StoreError

pytestmark = [pytest.mark.anyio, pytest.mark.attack("A2-D2")]


@pytest.mark.parametrize("value", ["'x'", "7", "x'00'", NOT_UTF8])
@pytest.mark.parametrize("column", ["sealed", "state", "caller"])
async def test_damaged_approval_in_file_affects_no_other(tmp_path: Path, column: str, value: str) -> None:
    first = file_store(tmp_path)
    bad, good = await first.claim(request("bad")), await first.claim(request("good"))
    for each in (bad, good):
        await first.decide(each.request.id, "approved", "boss", "")
    await first.close()
    damage(tmp_path / "approvals.sqlite", f"UPDATE approvals SET {column} = {value} WHERE key = '{bad.request.id}'")
    later = file_store(tmp_path)
    assert good.request.id in [each.id for each in await later.load()]
    assert (await later.claim(request("good"))).outcome == "used"
    assert (await later.claim(request("bad"))).outcome == ("used" if column == "caller" else "asked")
    await later.close()


@pytest.mark.parametrize("is_over", [False, True])
async def test_damaged_approval_in_database_affects_no_other(engine: AsyncEngine, is_over: bool) -> None:
    asked = {name: (await store(engine).claim(request(name))).request for name in ("bad", "good")}
    async with engine.begin() as db:
        await db.execute(text("UPDATE approvals SET sealed = 'x' WHERE key = :id"), {"id": asked["bad"].id})
    if is_over:  # what expired is removed at the next claim
        later = store(engine, moved=records.APPROVAL_LIFETIME_S + 1)
        outcome = await later.claim(replace(request("new"), until=request().until * 2))
        assert outcome.outcome == "asked" and [each.id for each in outcome.expired] == [asked["good"].id]
        return
    assert [each.id for each in await store(engine).load()] == [asked["good"].id]
    assert await store(engine).decide(asked["good"].id, "approved", "boss", "") is not None
    assert (await store(engine).claim(request("good"))).outcome == "used"
    with pytest.raises(StoreError):
        await store(engine).decide(asked["bad"].id, "approved", "boss", "")
    with pytest.raises(StoreError):
        await store(engine).claim(request("bad"))
