"""Approvals in the database of a cluster: of all nodes, one uses an approval, and no other program gives one."""

from __future__ import annotations

import asyncio
import time

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.encryption_keys import an_integrity
from toolway.cluster.db.part_database import ClusterDatabase
from toolway.parts.approvals import records
from toolway.parts.approvals.records import ApprovalRequest, RequestSealer, StoreError, new_request_id
from toolway.parts.approvals.store import REQUESTS, SPENT, DatabaseApprovalStore

pytestmark = pytest.mark.anyio


def store(engine: AsyncEngine, tenant: str = "t", letter: bytes = b"k", moved: float = 0.0) -> DatabaseApprovalStore:
    """As a node has it that was just started."""

    def now() -> float:
        return time.time() + moved

    database = ClusterDatabase(engine, tenant, (REQUESTS, SPENT), an_integrity(letter))
    return DatabaseApprovalStore(database, RequestSealer(letter * 32, now), now)


def request(key: str = "k", caller: str = "anna") -> ApprovalRequest:
    now = time.time()
    return ApprovalRequest(
        *(new_request_id(), key, "pending", caller, "bank", "pay", "unsafe", "digest", "definition"),
        arguments=[records.ShownArgument("amount", "100")],
        call="c1",
        asked_at=now,
        until=now + records.APPROVAL_LIFETIME_S,
    )


async def test_only_one_node_uses_an_approval(engine: AsyncEngine) -> None:
    nodes = [store(engine) for _ in range(4)]
    asked = await nodes[0].claim(request())
    assert asked.outcome == "asked" and (await nodes[1].claim(request())).outcome == "pending"
    assert [each.id for each in await nodes[2].load()] == [asked.request.id]
    assert await nodes[3].decide(asked.request.id, "approved", "boss", "fine") is not None
    assert await nodes[1].decide(asked.request.id, "denied", "boss", "") is None, "it was answered"
    outcomes = [each.outcome for each in await asyncio.gather(*(node.claim(request()) for node in nodes))]
    assert sorted(outcomes) == ["asked", "pending", "pending", "used"]
    assert await nodes[0].count_pending() == 1


async def test_client_answer_is_used_once_across_nodes(engine: AsyncEngine) -> None:
    nodes = [store(engine) for _ in range(3)]
    assert sorted(await asyncio.gather(*(node.spend("n") for node in nodes))) == [False, False, True]
    assert await store(engine, tenant="other").spend("n"), "each tenant has its own"


async def test_expired_request_is_removed_and_reported(engine: AsyncEngine) -> None:
    asked = await store(engine).claim(request())
    later = store(engine, moved=records.APPROVAL_LIFETIME_S + 1)
    assert await later.decide(asked.request.id, "approved", "", "") is None
    found = await later.claim(request("other"))
    assert [(each.id, each.state) for each in found.expired] == [(asked.request.id, "expired")]
    assert await store(engine).load() == [found.request]


async def test_queue_limit_applies_across_nodes(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_PENDING", 4)
    claims = [(f"{number} {caller}", caller) for number in range(3) for caller in ("anna", "ben", "carl")]
    found = [await store(engine).claim(request(*each)) for each in claims]
    assert [each.outcome for each in found] == [*["asked"] * 4, *["full"] * 5]


@pytest.mark.parametrize(
    "attack",
    [
        "UPDATE approvals SET state = 'approved'",
        "UPDATE approvals SET binding = 'k', state = 'approved'",
        "UPDATE approvals SET sealed = 'x'",
        "UPDATE approvals SET until = until + 9000",
        "DELETE FROM approvals",
    ],
)
async def test_changed_row_approves_nothing(engine: AsyncEngine, attack: str) -> None:
    await store(engine).claim(request("k" if "binding" not in attack else "other"))
    async with engine.begin() as db:
        await db.execute(text(attack))
    with pytest.raises(StoreError):
        await store(engine).claim(request())
    if attack.startswith("DELETE"):
        with pytest.raises(StoreError):
            await store(engine).load()
    else:
        assert await store(engine).load() == []  # others would be listed


async def test_restored_used_approval_is_rejected(engine: AsyncEngine) -> None:
    node = store(engine)
    asked = await node.claim(request())
    await node.decide(asked.request.id, "approved", "", "")
    async with engine.begin() as db:
        row = (await db.execute(text("SELECT state, until, sealed, mac FROM approvals"))).mappings().one()
    assert (await node.claim(request())).outcome == "used"
    async with engine.begin() as db:
        statement = "UPDATE approvals SET state = :state, until = :until, sealed = :sealed, mac = :mac"
        await db.execute(text(statement), dict(row))
    with pytest.raises(StoreError):
        await store(engine).claim(request())


async def test_store_with_other_key_reads_and_approves_nothing(engine: AsyncEngine) -> None:
    await store(engine).claim(request())
    with pytest.raises(StoreError):
        await store(engine, letter=b"x").claim(request())
