"""Who has how much, as the people who look after a cluster are told."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.record.clock import seconds_now
from toolway.cluster.record.counts import Counts
from toolway.cluster.record.nodes import Card, Nodes
from toolway.cluster.record.places import Place, Places
from toolway.cluster.record.tables import NodeRow, ServerRow

pytestmark = pytest.mark.anyio


async def _three(engine: AsyncEngine) -> Places:
    async with engine.begin() as db:
        await db.execute(insert(ServerRow).values(tenant="acme", name="files", definition={}, revision=1))
    places = Places(engine)
    await places.declare("acme", "files", 3)
    return places


async def test_places_are_counted_by_their_owners_and_a_lease_that_ended_owns_nothing(engine: AsyncEngine) -> None:
    places, nodes, counts = await _three(engine), Nodes(engine), Counts(engine)
    assert (await counts.counted()).free == 3
    first = await nodes.join(Card("a", "", "1"))
    second = await nodes.join(Card("b", "", "1"))
    await places.take(Place("acme", "files", 0), "a", first)
    await places.take(Place("acme", "files", 2), "a", first)
    await places.take(Place("acme", "files", 1), "b", second)
    found = await counts.counted()
    assert (found.owned, found.free) == ({"a": 2, "b": 1}, 0)
    assert list(await counts.of_node("a", 10)) == [Place("acme", "files", 0), Place("acme", "files", 2)]
    assert list(await counts.of_node("a", 1)) == [Place("acme", "files", 0)]
    assert await counts.owners("acme") == {"files": ("a", "b", "a")}
    assert await counts.owners("another") == {}
    async with engine.begin() as db:
        await db.execute(update(NodeRow).where(NodeRow.id == "a").values(lease_until=seconds_now() - 1))
    found = await counts.counted()
    assert (found.owned, found.free) == ({"b": 1}, 2)
    assert list(await counts.of_node("a", 10)) == []
    assert await counts.owners("acme") == {"files": ("b",)}


async def test_who_joined_anew_owns_nothing_of_before(engine: AsyncEngine) -> None:
    places, nodes, counts = await _three(engine), Nodes(engine), Counts(engine)
    await places.take(Place("acme", "files", 0), "a", await nodes.join(Card("a", "", "1")))
    await nodes.join(Card("a", "", "1"))
    assert (await counts.counted()).free == 3
