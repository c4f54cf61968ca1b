"""Leases and places: one owner at a time, by the clock of the database."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.encryption_keys import an_integrity
from toolway.cluster.db.engine import db_now, open_engine, upgrade_schema
from toolway.cluster.db.instances import InstanceStore, Ownership, ServerInstance
from toolway.cluster.db.nodes import NodeInfo, NodeStore
from toolway.cluster.db.tables import Base, InstanceRow, NodeRow, ServerRow
from toolway.cluster.lease_clock import DEFAULT_LEASE_SETTINGS, WORKER_LEASE_SETTINGS

pytestmark = pytest.mark.anyio

PLACE = ServerInstance("acme", "files")


def _card(id: str) -> NodeInfo:
    return NodeInfo(id, f"http://{id}", "1", labels=("gpu",), tenant="acme")


async def _server(engine: AsyncEngine, instances: int = 1) -> InstanceStore:
    async with engine.begin() as db:
        await db.execute(insert(ServerRow).values(tenant="acme", name="files", definition={}, revision=1))
    places = InstanceStore(engine)
    await places.set_instance_count("acme", "files", instances)
    return places


async def _end_lease(engine: AsyncEngine, id: str, ago: float = 1.0) -> None:
    async with engine.begin() as db:
        await db.execute(update(NodeRow).where(NodeRow.id == id).values(lease_until=db_now() - ago))


async def test_migrations_create_the_tables_of_the_models(engine: AsyncEngine) -> None:
    def differences(db: object) -> list[object]:
        from alembic.autogenerate import compare_metadata
        from alembic.migration import MigrationContext

        return list(compare_metadata(MigrationContext.configure(db), Base.metadata))  # type: ignore[arg-type]

    async with engine.connect() as db:
        assert await db.run_sync(differences) == []


async def test_concurrent_and_repeated_upgrades_succeed(empty_url: str) -> None:
    engines = [open_engine(empty_url) for _ in range(4)]
    if empty_url.startswith("sqlite"):
        await upgrade_schema(engines[0])
    await asyncio.gather(*(upgrade_schema(engine) for engine in engines))
    assert await NodeStore(engines[0], an_integrity()).list_alive("acme") == []
    for engine in engines:
        await engine.dispose()


async def test_node_joins_renews_and_leaves(engine: AsyncEngine) -> None:
    nodes = NodeStore(engine, an_integrity())
    epoch = await nodes.join(_card("a"))
    (seen,) = await nodes.list_alive("acme")
    assert (seen.info, seen.epoch, seen.draining) == (_card("a"), epoch, False)
    assert DEFAULT_LEASE_SETTINGS.ttl - 2 < seen.lease_left_s <= DEFAULT_LEASE_SETTINGS.ttl
    assert await nodes.renew("a", epoch)
    assert await nodes.drain("a") and not await nodes.drain("b")
    assert (await nodes.list_alive("acme"))[0].draining
    await nodes.leave("a", epoch)
    assert await nodes.list_alive("acme") == []
    assert not await nodes.renew("a", epoch)


async def test_every_join_gets_a_unique_epoch(engine: AsyncEngine) -> None:
    nodes = NodeStore(engine, an_integrity())
    epochs = await asyncio.gather(*(nodes.join(_card(id)) for id in "abcde"), *(nodes.join(_card("a")) for _ in "123"))
    assert len(set(epochs)) == 8


async def test_expired_lease_is_not_renewed(engine: AsyncEngine) -> None:
    nodes = NodeStore(engine, an_integrity())
    epoch = await nodes.join(_card("a"))
    await _end_lease(engine, "a")
    assert not await nodes.renew("a", epoch)
    assert await nodes.list_alive("acme") == []
    assert await nodes.join(_card("a")) > epoch
    assert not await nodes.renew("a", epoch)


async def test_concurrent_claims_of_an_instance_succeed_once(engine: AsyncEngine) -> None:
    # With leases that outlast a busy machine.
    places, nodes = await _server(engine), NodeStore(engine, an_integrity(), WORKER_LEASE_SETTINGS)
    epochs = {id: await nodes.join(_card(id)) for id in "abcde"}
    before = 0
    for _ in range(20):
        assert await places.find_owner(PLACE) is None
        fences = await asyncio.gather(*(places.claim(PLACE, id, epoch) for id, epoch in epochs.items()))
        (turn,) = [fence for fence in fences if fence is not None]
        assert turn > before
        before = turn
        winner = list(epochs)[[fence is not None for fence in fences].index(True)]
        owner = await places.find_owner(PLACE)
        assert owner == Ownership(PLACE, winner, turn)
        assert await places.list_owned(winner, epochs[winner]) == [owner]
        assert await places.release(PLACE, winner, turn)


async def test_instance_moves_after_lease_expiry_with_a_higher_fence(engine: AsyncEngine) -> None:
    places, nodes = await _server(engine), NodeStore(engine, an_integrity())
    a, b = await nodes.join(_card("a")), await nodes.join(_card("b"))
    first = await places.claim(PLACE, "a", a)
    assert first is not None
    assert await places.claim(PLACE, "b", b) is None
    await _end_lease(engine, "a", ago=3)
    assert await places.find_owner(PLACE) is None
    (free,) = await places.list_unowned("acme", [PLACE.slot], 10, dead_nodes=["a"])
    assert free.instance == PLACE and 2.5 < free.waited_s < 10
    assert await places.claim(PLACE, "b", b) == first + 1
    assert not await places.release(PLACE, "a", first)  # the former owner cannot change it
    assert await places.list_unowned("acme", [PLACE.slot], 10, dead_nodes=["a"]) == []


async def test_node_without_a_lease_claims_nothing(engine: AsyncEngine) -> None:
    places, nodes = await _server(engine), NodeStore(engine, an_integrity())
    epoch = await nodes.join(_card("a"))
    assert await places.claim(PLACE, "a", epoch - 1) is None
    await _end_lease(engine, "a")
    assert await places.claim(PLACE, "a", epoch) is None
    assert await places.claim(PLACE, "nobody", 1) is None


async def test_rejoined_node_owns_none_of_its_former_instances(engine: AsyncEngine) -> None:
    places, nodes = await _server(engine), NodeStore(engine, an_integrity())
    first = await nodes.join(_card("a"))
    fence = await places.claim(PLACE, "a", first)
    second = await nodes.join(_card("a"))
    assert await places.find_owner(PLACE) is None
    assert await places.list_owned("a", second) == [] == await places.list_owned("a", first)
    assert [free.instance for free in await places.list_unowned("acme", [PLACE.slot], 10)] == [PLACE]
    assert fence is not None and await places.claim(PLACE, "a", second) == fence + 1


async def test_released_instance_is_unowned_at_once(engine: AsyncEngine) -> None:
    places, nodes = await _server(engine, instances=2), NodeStore(engine, an_integrity())
    epoch = await nodes.join(_card("a"))
    both = [ServerInstance("acme", "files", instance) for instance in range(2)]
    taken = await places.claim_many(both, "a", epoch)
    assert sorted(held.instance for held in taken) == both
    assert await places.find_owners("acme", "files") == sorted(taken, key=lambda held: held.instance)
    assert await places.release_many(taken[:1]) == 1 and await places.release_many(taken[:1]) == 0
    slots = [place.slot for place in both]
    assert [free.instance for free in await places.list_unowned("acme", slots, 10)] == [taken[0].instance]
    await nodes.leave("a", epoch)
    assert sorted(free.instance for free in await places.list_unowned("acme", slots, 10)) == both


async def test_only_requested_slots_are_listed_as_unowned(engine: AsyncEngine) -> None:
    places = await _server(engine)
    assert await places.list_unowned("acme", [], 10) == []
    assert await places.list_unowned("acme", [PLACE.slot + 1], 10) == []


async def test_claimable_instances_are_listed_by_slots_of_their_index(engine: AsyncEngine) -> None:
    places = await _server(engine, instances=3)
    slot = [PLACE.slot]
    assert [free.instance.index for free in await places.list_claimable("acme", [(), slot, ()], 10)] == [1]
    assert {free.instance.index for free in await places.list_claimable("acme", [slot, (), slot], 10)} == {0, 2}
    assert await places.list_claimable("acme", [(), (), ()], 10) == []


async def test_unowned_instances_are_filtered_by_waiting_time(engine: AsyncEngine) -> None:
    places = await _server(engine)
    assert await places.list_unowned("acme", [PLACE.slot], 10, min_wait=30.0) == []
    assert len(await places.list_unowned("acme", [PLACE.slot], 10, min_wait=0.0)) == 1


async def test_instance_assigned_under_a_former_epoch_is_released(engine: AsyncEngine) -> None:
    """It asked under its old lease, and the answer was slow. It is alive, so no other node claims what it has."""
    places, nodes = await _server(engine), NodeStore(engine, an_integrity())
    before = await nodes.join(_card("a"))
    if engine.dialect.name == "sqlite":  # which has one writer at a time, so it cannot happen
        now = await nodes.join(_card("a"))
        async with engine.begin() as db:
            await db.execute(update(InstanceRow).values(node="a", epoch=before))
    else:
        async with engine.begin() as db:
            await db.execute(select(InstanceRow).with_for_update())
            await db.execute(update(InstanceRow).values(node="a", epoch=before))
            now = await nodes.join(_card("a"))
    assert await places.find_owner(PLACE) is None and not await places.list_unowned("acme", range(4096), 10)
    await nodes.release_stale("a", now)
    assert [free.instance for free in await places.list_unowned("acme", range(4096), 10)] == [PLACE]
    assert await places.claim(PLACE, "a", now)
    await nodes.release_stale("a", now)
    assert await places.find_owner(PLACE) is not None
