"""Idempotency keys in the record: one execution, at whichever node a call is repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.encryption_keys import a_sealer, an_integrity
from toolway.cluster.db import idempotency
from toolway.cluster.db.engine import db_now
from toolway.cluster.db.idempotency import (
    CLEANUP_INTERVAL_S,
    KEEP_KEYS_S,
    DbIdempotencyStore,
    NoLease,
    WriteRetryQueue,
)
from toolway.cluster.db.nodes import NodeInfo, NodeStore
from toolway.cluster.db.tables import IdempotencyRow, NodeRow
from toolway.cluster.db.tokens import DecryptionError
from toolway.middleware.idempotency import IdempotencyKey, IdempotencyRecord

pytestmark = pytest.mark.anyio

ID = IdempotencyKey("key:1", "bank", "pay\x00" + "long" * 1000, "k")


class Cluster:
    """Some nodes of one record."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.nodes = NodeStore(engine, an_integrity())

    async def node(self, id: str, tenant: str = "acme", **settings: Any) -> DbIdempotencyStore:
        epoch = await self.nodes.join(NodeInfo(id, f"http://{id}", "1"))
        return DbIdempotencyStore(self.engine, tenant, lambda: (id, epoch), a_sealer(), **settings)

    async def dies(self, id: str) -> None:
        async with self.engine.begin() as db:
            await db.execute(update(NodeRow).where(NodeRow.id == id).values(lease_until=db_now() - 1))

    async def age(self, seconds: float) -> None:
        async with self.engine.begin() as db:
            await db.execute(update(IdempotencyRow).values(until=IdempotencyRow.until - seconds))

    async def rows(self) -> int:
        async with self.engine.connect() as db:
            return (await db.execute(select(func.count()).select_from(IdempotencyRow))).scalar_one()


@pytest.fixture
def cluster(engine: AsyncEngine) -> Cluster:
    return Cluster(engine)


async def test_key_is_claimed_once_and_its_outcome_known_everywhere(cluster: Cluster) -> None:
    a, b = await cluster.node("a"), await cluster.node("b")
    assert await a.claim(ID, "f", "call-1") is None
    await a.finish(ID, {"content": ["paid\x00"]})
    for node in (a, b):
        assert await node.claim(ID, "f", "call-2") == IdempotencyRecord("finished", "f", {"content": ["paid\x00"]})
        assert await node.claim(ID, "other", "call-3") == IdempotencyRecord("finished", "f", {"content": ["paid\x00"]})


async def test_outcome_is_stored_encrypted(cluster: Cluster) -> None:
    a = await cluster.node("a")
    assert await a.claim(ID, "f", "call-1") is None
    await a.finish(ID, {"content": ["the balance is 1234.56"]})
    async with cluster.engine.connect() as db:
        (row,) = (await db.execute(select(IdempotencyRow.outcome, IdempotencyRow.id))).all()
    assert b"balance" not in row.outcome and "pay" not in row.id
    epoch = await cluster.nodes.join(NodeInfo("b", "", "1"))
    stranger = DbIdempotencyStore(cluster.engine, "acme", lambda: ("b", epoch), a_sealer(b"x"))
    with pytest.raises(DecryptionError):  # a key with an unreadable outcome is never executed
        await stranger.claim(ID, "f", "call-2")
    assert await a.claim(ID, "f", "call-3") == IdempotencyRecord(
        "finished", "f", {"content": ["the balance is 1234.56"]}
    )


@pytest.mark.attack("W5")
async def test_oversized_result_is_not_stored(cluster: Cluster) -> None:
    a = await cluster.node("a")
    assert await a.claim(ID, "f", "call-1") is None
    await a.finish(ID, {"content": ["x" * 2_000_000]})
    assert await a.claim(ID, "f", "call-2") == IdempotencyRecord("finished", "f")  # known as executed, without a result


@pytest.mark.attack("W5")
async def test_queued_results_are_bounded_while_the_database_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "MAX_QUEUED_BYTES", 2_000_000)
    queue = WriteRetryQueue(None)  # type: ignore[arg-type]
    for _ in range(10):
        assert queue.add(select(1), {"row_call": "c", "sealed_outcome": b"x" * 900_000})
    kept = [len(values["sealed_outcome"] or b"") for _, values in queue._queue]
    assert kept == [900_000] * 2 + [0] * 8
    await queue.close()


async def test_keys_of_other_callers_tools_and_tenants_are_separate(cluster: Cluster) -> None:
    a, other = await cluster.node("a"), await cluster.node("b", tenant="other")
    for id in (ID, IdempotencyKey("key:2", ID.server, ID.name, ID.key)):
        assert await a.claim(id, "f", "c") is None
    for id in (IdempotencyKey(ID.caller, "shop", ID.name, "k"), IdempotencyKey(ID.caller, ID.server, "get", "k")):
        assert await a.claim(id, "f", "c") is None
    assert await other.claim(ID, "f", "c") is None


async def test_concurrent_claims_of_a_key_succeed_once(cluster: Cluster) -> None:
    nodes = [await cluster.node(id, follow_timeout=0.0) for id in "abc"]
    claims = [node.claim(ID, "f", f"call-{i}-{j}") for i, node in enumerate(nodes) for j in range(4)]
    found = await asyncio.gather(*claims)
    assert found.count(None) == 1
    assert found.count(IdempotencyRecord("running", "f")) == 11


async def test_repeated_call_gets_the_outcome_from_another_node(cluster: Cluster) -> None:
    a, b = await cluster.node("a"), await cluster.node("b")
    assert await a.claim(ID, "f", "call-1") is None
    waiting = asyncio.create_task(b.claim(ID, "f", "call-2"))
    await asyncio.sleep(0.15)
    assert not waiting.done()
    await a.finish(ID, {"ok": 1})
    assert await waiting == IdempotencyRecord("finished", "f", {"ok": 1})


async def test_waiting_claim_succeeds_when_the_first_is_released(cluster: Cluster) -> None:
    a, b = await cluster.node("a"), await cluster.node("b")
    assert await a.claim(ID, "f", "call-1") is None
    waiting = asyncio.create_task(b.claim(ID, "f", "call-2"))
    await asyncio.sleep(0.05)
    await a.release(ID)
    assert await waiting is None
    assert await a.claim(ID, "g", "call-3") == IdempotencyRecord("running", "f")  # another call: nothing to wait for


async def test_waiting_claim_is_bounded(cluster: Cluster) -> None:
    a, b = await cluster.node("a"), await cluster.node("b", follow_timeout=0.2)
    assert await a.claim(ID, "f", "call-1") is None
    async with asyncio.timeout(30):
        assert await b.claim(ID, "f", "call-2") == IdempotencyRecord("running", "f")


async def test_claim_of_a_dead_node_is_interrupted(cluster: Cluster) -> None:
    a, b = await cluster.node("a"), await cluster.node("b")
    assert await a.claim(ID, "f", "call-1") is None
    await cluster.dies("a")
    assert await b.claim(ID, "f", "call-2") == IdempotencyRecord("interrupted", "f")
    again = await cluster.node("a")  # the same node, joined anew, is another one
    assert await again.claim(ID, "f", "call-1") == IdempotencyRecord("interrupted", "f")
    await b.release(ID)  # b never had it
    assert await b.claim(ID, "f", "call-3") == IdempotencyRecord("interrupted", "f")


async def test_claim_before_a_rejoin_is_interrupted(cluster: Cluster) -> None:
    before = await cluster.node("a")
    assert await before.claim(ID, "f", "call-1") is None
    after = await cluster.node("a")
    assert await after.claim(ID, "f", "call-2") == IdempotencyRecord("interrupted", "f")


async def test_waiting_claim_is_interrupted_when_owner_dies(cluster: Cluster) -> None:
    a, b = await cluster.node("a"), await cluster.node("b")
    assert await a.claim(ID, "f", "call-1") is None
    waiting = asyncio.create_task(b.claim(ID, "f", "call-2"))
    await asyncio.sleep(0.05)
    await cluster.dies("a")
    assert await waiting == IdempotencyRecord("interrupted", "f")


async def test_node_without_a_lease_claims_nothing(engine: AsyncEngine, cluster: Cluster) -> None:
    keys = DbIdempotencyStore(engine, "acme", lambda: None, a_sealer())
    with pytest.raises(NoLease):
        await keys.claim(ID, "f", "call-1")
    assert await (await cluster.node("b")).claim(ID, "f", "call-2") is None


# -- a call that one node brings to another ---------------------------------------------------------------------------


async def forwarded(cluster: Cluster) -> tuple[DbIdempotencyStore, DbIdempotencyStore, DbIdempotencyStore]:
    """The sender of a call, its owner, and another node; the first two have claimed it."""
    sender, owner, other = [await cluster.node(id, follow_timeout=0.2) for id in ("sender", "owner", "other")]
    assert await sender.claim(ID, "f", "call-1") is None
    assert await owner.claim(ID, "f", "call-1") is None
    assert await other.claim(ID, "f", "call-2") == IdempotencyRecord("running", "f")
    return sender, owner, other


async def test_sender_and_owner_may_both_finish_a_claim(cluster: Cluster) -> None:
    sender, owner, other = await forwarded(cluster)
    await owner.finish(ID, {"n": 1})
    await sender.finish(ID, {"n": 1})
    assert await other.claim(ID, "f", "call-2") == IdempotencyRecord("finished", "f", {"n": 1})


async def test_unknown_from_sender_does_not_replace_owners_outcome(cluster: Cluster) -> None:
    sender, owner, other = await forwarded(cluster)
    await owner.finish(ID, {"n": 1})
    await sender.mark_unknown(ID)
    assert await other.claim(ID, "f", "call-2") == IdempotencyRecord("finished", "f", {"n": 1})


async def test_unknown_outcome_is_replaced_when_the_owner_finishes(cluster: Cluster) -> None:
    sender, owner, other = await forwarded(cluster)
    await sender.mark_unknown(ID)
    assert await other.claim(ID, "f", "call-2") == IdempotencyRecord("unknown", "f")
    await owner.finish(ID, {"n": 1})
    assert await other.claim(ID, "f", "call-2") == IdempotencyRecord("finished", "f", {"n": 1})


async def test_dead_sender_leaves_the_claim_to_the_owner(cluster: Cluster) -> None:
    _, owner, other = await forwarded(cluster)
    await cluster.dies("sender")
    assert await other.claim(ID, "f", "call-2") == IdempotencyRecord("running", "f")
    await owner.finish(ID, {"n": 1})
    assert await other.claim(ID, "f", "call-2") == IdempotencyRecord("finished", "f", {"n": 1})


async def test_dead_owner_leaves_the_claim_interrupted(cluster: Cluster) -> None:
    sender, _, other = await forwarded(cluster)
    await cluster.dies("owner")
    assert await other.claim(ID, "f", "call-2") == IdempotencyRecord("interrupted", "f")
    next_owner = await cluster.node("next")
    assert await next_owner.claim(ID, "f", "call-1") == IdempotencyRecord("interrupted", "f")  # not made
    await sender.release(ID)
    assert await other.claim(ID, "f", "call-2") == IdempotencyRecord("interrupted", "f")


async def test_interrupted_key_is_reclaimed_by_one_node_only(
    cluster: Cluster,
) -> None:
    _, _, other = await forwarded(cluster)
    await cluster.dies("owner")
    next_owner = await cluster.node("next")
    assert not await other.reclaim(ID, "call-2"), "no node has seen yet that the owner is gone"
    assert await other.claim(ID, "f", "call-2") == IdempotencyRecord("interrupted", "f")
    assert [await other.reclaim(ID, "call-2"), await next_owner.reclaim(ID, "call-3")] == [True, False]
    assert await next_owner.claim(ID, "f", "call-2") is None  # `other` forwards the call
    for node in (next_owner, other):  # it was not sent
        await node.release(ID)
    assert await next_owner.claim(ID, "f", "call-3") == IdempotencyRecord("interrupted", "f")
    assert await next_owner.reclaim(ID, "call-3")
    await next_owner.finish(ID, {"n": 1})
    assert await other.claim(ID, "f", "call-4") == IdempotencyRecord("finished", "f", {"n": 1})


@pytest.mark.attack("A2-S10")
async def test_reclaimed_key_is_kept_for_its_full_time(cluster: Cluster) -> None:
    _, _, other = await forwarded(cluster)
    await cluster.dies("owner")
    assert await other.claim(ID, "f", "call-2") == IdempotencyRecord("interrupted", "f")
    await cluster.age(KEEP_KEYS_S - 60)
    assert await other.reclaim(ID, "call-2")
    await cluster.age(120)
    await cluster.dies("other")  # it may have sent the call a moment ago
    later = 1000.0
    next_owner = await cluster.node("next", now=lambda: later)
    later += CLEANUP_INTERVAL_S
    assert await next_owner.claim(ID, "f", "call-3") == IdempotencyRecord("interrupted", "f")


@pytest.mark.parametrize("say", [lambda node: node.release(ID), lambda node: node.mark_unknown(ID)])
async def test_late_report_does_not_end_the_next_calls_claim(
    cluster: Cluster, say: Callable[[DbIdempotencyStore], object]
) -> None:
    sender, owner, other = await forwarded(cluster)
    await owner.release(ID)  # it refused the call
    await sender.release(ID)
    assert await other.claim(ID, "f", "call-2") is None
    for late in (sender, owner):
        await say(late)  # type: ignore[misc]
    assert await sender.claim(ID, "f", "call-3") == IdempotencyRecord("running", "f")
    await other.finish(ID, {"n": 2})
    assert await sender.claim(ID, "f", "call-3") == IdempotencyRecord("finished", "f", {"n": 2})


async def test_claim_released_by_the_owner_can_be_claimed_again(cluster: Cluster) -> None:
    _, owner, other = await forwarded(cluster)
    await owner.release(ID)
    assert await owner.claim(ID, "f", "call-1") is None
    assert await other.claim(ID, "f", "call-2") == IdempotencyRecord("running", "f")


# -- what is over -----------------------------------------------------------------------------------------------------


async def test_claim_released_by_one_owner_gets_one_final_outcome(cluster: Cluster) -> None:
    """The first owner was about to hand the server over; the sender, or another, made the call after all."""
    sender, first, next = await cluster.node("a"), await cluster.node("b"), await cluster.node("c")
    assert await sender.claim(ID, "f", "call-1") is None
    assert await first.claim(ID, "f", "call-1") is None
    await first.release(ID)
    repeated = asyncio.create_task(next.claim(ID, "f", "call-2"))
    await asyncio.sleep(0.1)
    assert not repeated.done()
    await sender.finish(ID, {"content": ["paid"]})
    assert await repeated == IdempotencyRecord("finished", "f", {"content": ["paid"]})


async def test_claim_released_by_owner_and_sender_is_deleted(cluster: Cluster) -> None:
    sender, owner = await cluster.node("a"), await cluster.node("b")
    assert await sender.claim(ID, "f", "call-1") is None
    assert await owner.claim(ID, "f", "call-1") is None
    await owner.release(ID)
    await sender.release(ID)
    assert await cluster.rows() == 0


async def test_key_is_forgotten_a_day_after_its_outcome(cluster: Cluster) -> None:
    a = await cluster.node("a", follow_timeout=0.1)
    await a.claim(ID, "f", "call-1")
    await cluster.age(86_000)
    await a.finish(ID, {})  # its day begins with its end
    await cluster.age(86_300)
    assert await a.claim(ID, "f", "call-2") == IdempotencyRecord("finished", "f", {})
    await cluster.age(101)
    found = await asyncio.gather(*(a.claim(ID, "g", f"call-{i}") for i in range(3)))
    assert found.count(None) == 1
    assert await cluster.rows() == 1


async def test_running_claim_of_a_living_node_is_never_forgotten(cluster: Cluster) -> None:
    a, b = await cluster.node("a"), await cluster.node("b", follow_timeout=0.1)
    await a.claim(ID, "f", "call-1")
    await cluster.age(1e6)
    assert await b.claim(ID, "f", "call-2") == IdempotencyRecord("running", "f")


async def test_expired_claims_are_cleaned_up_by_later_claims(cluster: Cluster) -> None:
    clock = [0.0]
    epoch = await cluster.nodes.join(NodeInfo("a", "", "1"))
    keys = DbIdempotencyStore(cluster.engine, "acme", lambda: ("a", epoch), a_sealer(), now=lambda: clock[0])
    dead = await cluster.node("dead", tenant="other")
    for number in range(5):
        id = IdempotencyKey("", "s", "t", str(number))
        await keys.claim(id, "f", f"call-{number}")
        if number:
            await keys.finish(id, {})
    await dead.claim(ID, "f", "call-9")
    await cluster.dies("dead")
    await cluster.age(86_401)
    assert await cluster.rows() == 6
    clock[0] += CLEANUP_INTERVAL_S + 1
    assert await keys.claim(ID, "f", "call-10") is None
    assert await cluster.rows() == 2  # the one that runs, and the new one
