"""Leases and places: one owner at a time, by the clock of the database."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.record.clock import seconds_now
from toolway.cluster.record.engine import open_engine, upgrade
from toolway.cluster.record.nodes import Card, Nodes
from toolway.cluster.record.places import Held, Place, Places
from toolway.cluster.record.tables import Base, NodeRow, PlaceRow, ServerRow
from toolway.cluster.tenure import TERMS

pytestmark = pytest.mark.anyio

PLACE = Place("acme", "files")


def _card(id: str) -> Card:
    return Card(id, f"http://{id}", "1", labels=("gpu",), tenant="acme")


async def _server(engine: AsyncEngine, instances: int = 1) -> Places:
    async with engine.begin() as db:
        await db.execute(insert(ServerRow).values(tenant="acme", name="files", definition={}, revision=1))
    places = Places(engine)
    await places.declare("acme", "files", instances)
    return places


async def _end_lease(engine: AsyncEngine, id: str, ago: float = 1.0) -> None:
    async with engine.begin() as db:
        await db.execute(update(NodeRow).where(NodeRow.id == id).values(lease_until=seconds_now() - ago))


async def test_the_migrations_make_the_tables_of_the_models(engine: AsyncEngine) -> None:
    def differences(db: object) -> list[object]:
        from alembic.autogenerate import compare_metadata
        from alembic.migration import MigrationContext

        return list(compare_metadata(MigrationContext.configure(db), Base.metadata))  # type: ignore[arg-type]

    async with engine.connect() as db:
        assert await db.run_sync(differences) == []


async def test_many_may_upgrade_at_once_and_again(empty_url: str) -> None:
    engines = [open_engine(empty_url) for _ in range(4)]
    if empty_url.startswith("sqlite"):
        await upgrade(engines[0])
    await asyncio.gather(*(upgrade(engine) for engine in engines))
    assert await Nodes(engines[0]).alive() == []
    for engine in engines:
        await engine.dispose()


async def test_a_node_joins_renews_and_leaves(engine: AsyncEngine) -> None:
    nodes = Nodes(engine)
    epoch = await nodes.join(_card("a"))
    (seen,) = await nodes.alive()
    assert (seen.card, seen.epoch, seen.draining) == (_card("a"), epoch, False)
    assert TERMS.ttl - 2 < seen.left <= TERMS.ttl
    assert await nodes.renew("a", epoch)
    assert await nodes.drain("a") and not await nodes.drain("b")
    assert (await nodes.alive())[0].draining
    await nodes.leave("a", epoch)
    assert await nodes.alive() == []
    assert not await nodes.renew("a", epoch)


async def test_every_tenure_has_a_number_of_its_own(engine: AsyncEngine) -> None:
    nodes = Nodes(engine)
    epochs = await asyncio.gather(*(nodes.join(_card(id)) for id in "abcde"), *(nodes.join(_card("a")) for _ in "123"))
    assert len(set(epochs)) == 8


async def test_a_lease_that_ended_is_not_renewed(engine: AsyncEngine) -> None:
    nodes = Nodes(engine)
    epoch = await nodes.join(_card("a"))
    await _end_lease(engine, "a")
    assert not await nodes.renew("a", epoch)
    assert await nodes.alive() == []
    assert await nodes.join(_card("a")) > epoch
    assert not await nodes.renew("a", epoch)


async def test_of_many_who_want_a_place_one_gets_it(engine: AsyncEngine) -> None:
    places, nodes = await _server(engine), Nodes(engine)
    epochs = {id: await nodes.join(_card(id)) for id in "abcde"}
    before = 0
    for _ in range(20):
        assert await places.owner(PLACE) is None
        fences = await asyncio.gather(*(places.take(PLACE, id, epoch) for id, epoch in epochs.items()))
        (turn,) = [fence for fence in fences if fence is not None]
        assert turn > before
        before = turn
        winner = list(epochs)[[fence is not None for fence in fences].index(True)]
        owner = await places.owner(PLACE)
        assert owner == Held(PLACE, winner, turn)
        assert await places.owned_by(winner, epochs[winner]) == [owner]
        assert await places.give_up(PLACE, winner, turn)


async def test_a_place_moves_when_the_lease_of_its_owner_ended_and_its_fence_grows(engine: AsyncEngine) -> None:
    places, nodes = await _server(engine), Nodes(engine)
    a, b = await nodes.join(_card("a")), await nodes.join(_card("b"))
    first = await places.take(PLACE, "a", a)
    assert first is not None
    assert await places.take(PLACE, "b", b) is None
    await _end_lease(engine, "a", ago=3)
    assert await places.owner(PLACE) is None
    (free,) = await places.free("acme", [PLACE.slot], 10, dead=["a"])
    assert free.place == PLACE and 2.5 < free.since < 10
    assert await places.take(PLACE, "b", b) == first + 1
    assert not await places.give_up(PLACE, "a", first)  # who was the owner before changes nothing any more
    assert await places.free("acme", [PLACE.slot], 10, dead=["a"]) == []


async def test_who_has_no_lease_takes_nothing(engine: AsyncEngine) -> None:
    places, nodes = await _server(engine), Nodes(engine)
    epoch = await nodes.join(_card("a"))
    assert await places.take(PLACE, "a", epoch - 1) is None
    await _end_lease(engine, "a")
    assert await places.take(PLACE, "a", epoch) is None
    assert await places.take(PLACE, "nobody", 1) is None


async def test_a_node_that_joins_anew_owns_nothing_of_what_it_had(engine: AsyncEngine) -> None:
    places, nodes = await _server(engine), Nodes(engine)
    first = await nodes.join(_card("a"))
    fence = await places.take(PLACE, "a", first)
    second = await nodes.join(_card("a"))
    assert await places.owner(PLACE) is None
    assert await places.owned_by("a", second) == [] == await places.owned_by("a", first)
    assert [free.place for free in await places.free("acme", [PLACE.slot], 10)] == [PLACE]
    assert fence is not None and await places.take(PLACE, "a", second) == fence + 1


async def test_what_is_handed_back_is_free_at_once(engine: AsyncEngine) -> None:
    places, nodes = await _server(engine, instances=2), Nodes(engine)
    epoch = await nodes.join(_card("a"))
    both = [Place("acme", "files", instance) for instance in range(2)]
    taken = await places.take_all(both, "a", epoch)
    assert sorted(held.place for held in taken) == both
    assert await places.owners("acme", "files") == sorted(taken, key=lambda held: held.place)
    assert await places.give_up_all(taken[:1]) == 1 and await places.give_up_all(taken[:1]) == 0
    slots = [place.slot for place in both]
    assert [free.place for free in await places.free("acme", slots, 10)] == [taken[0].place]
    await nodes.leave("a", epoch)
    assert sorted(free.place for free in await places.free("acme", slots, 10)) == both


async def test_only_slots_that_were_asked_for_are_looked_at(engine: AsyncEngine) -> None:
    places = await _server(engine)
    assert await places.free("acme", [], 10) == []
    assert await places.free("acme", [PLACE.slot + 1], 10) == []


async def test_places_are_asked_for_by_the_turn_of_their_instance(engine: AsyncEngine) -> None:
    places = await _server(engine, instances=3)
    slot = [PLACE.slot]
    assert [free.place.instance for free in await places.ours("acme", [(), slot, ()], 10)] == [1]
    assert {free.place.instance for free in await places.ours("acme", [slot, (), slot], 10)} == {0, 2}
    assert await places.ours("acme", [(), (), ()], 10) == []


async def test_who_comes_later_sees_what_has_waited(engine: AsyncEngine) -> None:
    places = await _server(engine)
    assert await places.free("acme", [PLACE.slot], 10, waited=30.0) == []
    assert len(await places.free("acme", [PLACE.slot], 10, waited=0.0)) == 1


async def test_what_is_given_to_a_node_that_has_joined_anew_meanwhile_is_free_again(engine: AsyncEngine) -> None:
    """It asked under its old lease, and the answer was slow. It lives, so that nobody else looks for what it has."""
    places, nodes = await _server(engine), Nodes(engine)
    before = await nodes.join(_card("a"))
    if engine.dialect.name == "sqlite":  # which has one writer at a time, so that it cannot happen
        now = await nodes.join(_card("a"))
        async with engine.begin() as db:
            await db.execute(update(PlaceRow).values(node="a", epoch=before))
    else:
        async with engine.begin() as db:
            await db.execute(select(PlaceRow).with_for_update())
            await db.execute(update(PlaceRow).values(node="a", epoch=before))
            now = await nodes.join(_card("a"))
    assert await places.owner(PLACE) is None and not await places.free("acme", range(4096), 10)
    await nodes.disown_past("a", now)
    assert [free.place for free in await places.free("acme", range(4096), 10)] == [PLACE]
    assert await places.take(PLACE, "a", now)
    await nodes.disown_past("a", now)
    assert await places.owner(PLACE) is not None
