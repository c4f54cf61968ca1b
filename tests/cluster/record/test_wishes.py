"""What entries ask for becomes places, and nothing is taken away from an owner that lives."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.record.glance import Glance
from toolway.cluster.record.nodes import Card, Nodes
from toolway.cluster.record.places import Place, Places
from toolway.cluster.record.wishes import Wish, declare
from toolway.cluster.tenure import Terms

pytestmark = pytest.mark.anyio

PLACE = Place("acme", "files")


async def _wish(engine: AsyncEngine, wish: Wish) -> None:
    async with engine.begin() as db:
        await declare(db, "acme", {"files": wish})


async def test_a_place_that_is_not_wanted_goes_when_its_owner_hands_it_back(engine: AsyncEngine) -> None:
    places, nodes = Places(engine), Nodes(engine)
    epoch = await nodes.join(Card("a", "", "1", tenant="acme"))
    await _wish(engine, Wish(instances=3))
    last = Place("acme", "files", 2)
    (held,) = await places.take_all([last], "a", epoch)
    await _wish(engine, Wish(instances=1))
    assert await places.owner(last) == held  # it may have calls under way
    assert await places.take(Place("acme", "files", 1), "a", epoch) is None  # nobody had it: it is gone
    assert (await Glance(engine).look("a", "acme", [""])).recalled
    assert [(each.place, each.recalled) for each in await places.owned_by("a", epoch, recalled=True)] == [(last, True)]
    assert await places.give_up_all([held]) == 1
    assert await places.take(last, "a", epoch) is None
    assert not (await Glance(engine).look("a", "acme", [""])).recalled


async def test_a_server_that_is_removed_and_comes_again_never_has_two_owners(engine: AsyncEngine) -> None:
    places, nodes = Places(engine), Nodes(engine)
    a, b = await nodes.join(Card("a", "", "1", tenant="acme")), await nodes.join(Card("b", "", "1", tenant="acme"))
    await _wish(engine, Wish())
    (held,) = await places.take_all([PLACE], "a", a)
    await _wish(engine, Wish(instances=0))
    await _wish(engine, Wish())
    assert await places.take(PLACE, "b", b) is None  # the first owner has it still, and may keep it
    assert not (await Glance(engine).look("a", "acme", [])).recalled
    await _wish(engine, Wish(instances=0))
    await places.give_up_all([held])
    await _wish(engine, Wish())
    fence = await places.take(PLACE, "b", b)
    assert fence is not None and fence > held.fence


async def test_what_a_dead_node_had_and_nobody_wants_goes_with_it(engine: AsyncEngine) -> None:
    places, nodes = Places(engine), Nodes(engine)
    epoch = await nodes.join(Card("a", "", "1", tenant="acme"))
    await _wish(engine, Wish())
    await places.take(PLACE, "a", epoch)
    await _wish(engine, Wish(instances=0))
    await nodes.leave("a", epoch)
    assert not (await Glance(engine).look("b", "acme", [""])).free
    assert await places.free("acme", [PLACE.slot], 10) == []


async def test_other_labels_recall_a_place_and_make_a_pool_once(engine: AsyncEngine) -> None:
    places, nodes, glance = Places(engine), Nodes(engine), Glance(engine)
    epoch = await nodes.join(Card("a", "", "1", tenant="acme"))
    await _wish(engine, Wish())
    (held,) = await places.take_all([PLACE], "a", epoch)
    before = (await glance.look("a", "acme", [])).revision
    await _wish(engine, Wish(labels=("gpu", "eu")))
    seen = await glance.look("a", "acme", ["eu,gpu"])
    assert seen.recalled and not seen.free and seen.revision > before
    assert list(await nodes.pools("acme")) == ["eu,gpu"]
    await _wish(engine, Wish(labels=("eu", "gpu"), cost=0))
    assert (await glance.look("a", "acme", [])).revision == seen.revision  # nothing new among the pools
    await places.give_up_all([held])
    assert (await glance.look("a", "acme", ["", "eu,gpu"])).free == {"eu,gpu"}
    (free,) = await places.free("acme", [PLACE.slot], 10, pool="eu,gpu")
    assert (free.place, free.pool, free.cost) == (PLACE, "eu,gpu", 0)


async def test_many_servers_are_declared_at_once_and_again_without_a_change(engine: AsyncEngine) -> None:
    names = {f"server-{number}": Wish(cost=number % 2) for number in range(1200)}
    async with engine.begin() as db:
        await declare(db, "acme", names)
    async with engine.begin() as db:
        await declare(db, "acme", names)
    free = await Places(engine).free("acme", range(4096), 5000)
    assert sorted(each.place.server for each in free) == sorted(names)


async def test_a_glance_sees_nodes_that_come_go_drain_and_die(engine: AsyncEngine) -> None:
    nodes, glance = Nodes(engine), Glance(engine)
    seen = [(await glance.look("a", "acme", [])).revision]
    epoch = await nodes.join(Card("a", "", "1", tenant="acme"))
    seen.append((await glance.look("a", "acme", [])).revision)
    await nodes.drain("a")
    seen.append((await glance.look("a", "acme", [])).revision)
    assert await nodes.renew("a", epoch, 7) and (await nodes.alive())[0].load == 7
    assert (await glance.look("a", "acme", [])).revision == seen[-1]  # renewing changes nothing for others
    await nodes.leave("a", epoch)
    seen.append((await glance.look("a", "acme", [])).revision)
    assert seen == sorted(set(seen))


async def test_a_glance_sees_when_a_lease_ends_that_is_not_renewed(engine: AsyncEngine) -> None:
    nodes, glance = Nodes(engine), Glance(engine)
    await nodes.join(Card("a", "", "1", tenant="acme"))
    assert (await glance.look("a", "acme", [])).next_death is None
    await Nodes(engine, Terms(ttl=0.5)).join(Card("b", "", "1", tenant="acme"))
    await Nodes(engine, Terms(ttl=0.1)).join(Card("c", "", "1", tenant="other"))
    left = (await glance.look("a", "acme", [])).next_death
    assert left is not None and 0 < left <= 0.5
    await asyncio.sleep(left + 0.02)
    seen = await glance.look("a", "acme", [])
    assert seen.dead == {"b"} and seen.next_death is None


async def test_tenants_do_not_see_each_other(engine: AsyncEngine) -> None:
    places, nodes, glance = Places(engine), Nodes(engine), Glance(engine)
    await nodes.join(Card("a", "", "1", tenant="acme"))
    before = await glance.look("a", "acme", [""])
    await nodes.join(Card("b", "", "1", tenant="other"))
    async with engine.begin() as db:
        await declare(db, "other", {"files": Wish(), "models": Wish(labels=("gpu",))})
    assert await glance.look("a", "acme", ["", "gpu"]) == before
    assert (await glance.look("b", "other", ["", "gpu"])).free == {"", "gpu"}
    assert [seen.card.id for seen in await nodes.alive("acme")] == ["a"] and len(await nodes.alive()) == 2
    assert list(await nodes.pools("acme")) == [] and await places.free("acme", range(4096), 10) == []
    assert await places.waiting("acme", [""], 10) == []
