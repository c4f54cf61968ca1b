"""Nodes that come, go, drain and are cut off: every place has an owner soon, and never two."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.db_lab import PLACES, TERMS, Lab, OwnershipLog, lab_of
from tests.cluster.db.encryption_keys import an_integrity
from tests.timing import within
from toolway.cluster import member
from toolway.cluster.db.instances import DesiredInstances, InstanceStore
from toolway.cluster.db.nodes import NodeInfo, NodeStore
from toolway.cluster.db.tables import InstanceRow
from toolway.cluster.member import FIRST_CLAIM_DELAY_S, Member

# SQLite has one writer at a time: nodes that share it wait for its disk, and their short leases end.
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("url", ["postgresql"], indirect=True)]


async def test_leaving_nodes_instances_move_to_the_remaining_nodes(
    engine: AsyncEngine,
) -> None:
    async with lab_of(engine, "a", "b", "c") as lab:
        await lab.until(lambda: lab.all_owned("a", "b", "c"))
        kept = {place: held for place, held in lab.ownership_log.owners.items() if held.node != "b"}
        await lab.stop("b")
        took = await lab.until(lambda: lab.all_owned("a", "c"))
        assert took < within(TERMS.ttl)  # it released its lease, so no node waited for the end of it
        assert kept.items() <= lab.ownership_log.owners.items()  # what the others had they kept


async def test_disconnected_node_stops_before_another_node_starts(
    engine: AsyncEngine,
) -> None:
    async with lab_of(engine, "a", "b") as lab:
        await lab.until(lambda: lab.all_owned("a", "b"))
        member = lab.members["b"][0]
        lab.cut("b")
        await lab.until(lambda: not member.owned, within(TERMS.hold + 1))
        await lab.until(lambda: lab.all_owned("a"), within(TERMS.ttl + 8))
        lab.cut("b", False)
        await lab.until(lambda: lab.all_owned("a", "b"))  # its share is handed back to it, a few places at a time


async def test_joining_node_gets_its_share_when_calls_have_ended(engine: AsyncEngine) -> None:
    async with lab_of(engine, "a") as lab:
        await lab.until(lambda: lab.all_owned("a"))
        lab.ownership_log.busy.update(PLACES)
        lab.start("b")
        await asyncio.sleep(2.5)
        assert lab.ownership_log.shares() == {"a": len(PLACES)}  # all are busy
        lab.ownership_log.busy.clear()
        await lab.until(lambda: lab.all_owned("a", "b"))


async def test_instance_assigned_under_an_expired_lease_is_reassigned(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "RESYNC_INTERVAL_S", 1.0)
    monkeypatch.setattr(member, "FORCED_RESYNC_S", 0.0)
    async with lab_of(engine, "a", "b") as lab:
        await lab.until(lambda: lab.all_owned("a", "b"))
        lost = next(held for held in lab.ownership_log.owners.values() if held.node == "a")
        async with engine.begin() as db:
            where = (InstanceRow.server == lost.instance.server, InstanceRow.node == "a")
            await db.execute(
                update(InstanceRow).where(*where).values(epoch=InstanceRow.epoch - 1, fence=InstanceRow.fence + 1)
            )
        await lab.until(
            lambda: (held := lab.ownership_log.owners.get(lost.instance)) is not None and held.fence > lost.fence + 1
        )


async def test_instance_is_not_handed_to_a_dead_node(engine: AsyncEngine) -> None:
    async with lab_of(engine) as lab:
        await NodeStore(engine, an_integrity(), TERMS).join(
            NodeInfo("dead", "", "1", tenant="acme")
        )  # it has a lease, and takes nothing
        lab.start("a")
        await lab.until(lambda: lab.all_owned("a"))
        await asyncio.sleep(TERMS.ttl)
        assert {len(fences) for fences in lab.ownership_log.fences.values()} == {1}, "each was taken once, and kept"


async def test_draining_node_hands_everything_over(engine: AsyncEngine) -> None:
    async with lab_of(engine, "a", "b") as lab:
        await lab.until(lambda: lab.all_owned("a", "b"))
        assert await NodeStore(engine, an_integrity()).drain("a")
        await lab.until(lambda: lab.all_owned("b"))
        assert lab.members["a"][0].owned == ()


async def test_ownership_expires_by_the_clock_without_any_loop_running(engine: AsyncEngine) -> None:
    """After a sleep of the machine nothing has run yet, and nothing is ours."""
    ownership_log, now = OwnershipLog(), [100.0]
    lab = Lab(engine)
    await lab.declare({place.server: DesiredInstances() for place in PLACES})
    member = Member(
        NodeInfo("a", "", "1", tenant="acme"),
        NodeStore(engine, an_integrity(), TERMS),
        InstanceStore(engine),
        ownership_log,
        lambda: now[0],
        TERMS,
    )
    task = asyncio.create_task(member.run())
    await lab.until(lambda: member.epoch is not None)
    now[0] += FIRST_CLAIM_DELAY_S
    await lab.until(lambda: len(ownership_log.owners) == len(PLACES))
    assert all(member.fence_of(place) == ownership_log.owners[place].fence for place in PLACES)
    now[0] += TERMS.hold
    assert all(member.fence_of(place) is None for place in PLACES) and member.owned == ()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
