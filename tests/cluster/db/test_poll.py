"""How much each node owns, as operators of a cluster see it."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.encryption_keys import an_integrity
from toolway.cluster.db.engine import db_now
from toolway.cluster.db.instances import InstanceStore, ServerInstance
from toolway.cluster.db.nodes import NodeInfo, NodeStore
from toolway.cluster.db.poll import InstanceCounter
from toolway.cluster.db.tables import NodeRow, ServerRow

pytestmark = pytest.mark.anyio


async def _three(engine: AsyncEngine) -> InstanceStore:
    async with engine.begin() as db:
        await db.execute(insert(ServerRow).values(tenant="acme", name="files", definition={}, revision=1))
    places = InstanceStore(engine)
    await places.set_instance_count("acme", "files", 3)
    return places


async def test_instances_are_counted_by_living_owner(engine: AsyncEngine) -> None:
    places, nodes, counts = await _three(engine), NodeStore(engine, an_integrity()), InstanceCounter(engine)
    assert (await counts.count("acme")).unowned == 3
    first = await nodes.join(NodeInfo("a", "", "1"))
    second = await nodes.join(NodeInfo("b", "", "1"))
    await places.claim(ServerInstance("acme", "files", 0), "a", first)
    await places.claim(ServerInstance("acme", "files", 2), "a", first)
    await places.claim(ServerInstance("acme", "files", 1), "b", second)
    found = await counts.count("acme")
    assert (found.owned, found.unowned) == ({"a": 2, "b": 1}, 0)
    assert list(await counts.list_owned("a", 10)) == [
        ServerInstance("acme", "files", 0),
        ServerInstance("acme", "files", 2),
    ]
    assert list(await counts.list_owned("a", 1)) == [ServerInstance("acme", "files", 0)]
    assert await counts.owners_by_server("acme") == {"files": ("a", "b", "a")}
    assert await counts.owners_by_server("another") == {}
    async with engine.begin() as db:
        await db.execute(update(NodeRow).where(NodeRow.id == "a").values(lease_until=db_now() - 1))
    found = await counts.count("acme")
    assert (found.owned, found.unowned) == ({"b": 1}, 2)
    assert list(await counts.list_owned("a", 10)) == []
    assert await counts.owners_by_server("acme") == {"files": ("b",)}


async def test_rejoined_node_owns_none_of_its_former_instances(engine: AsyncEngine) -> None:
    places, nodes, counts = await _three(engine), NodeStore(engine, an_integrity()), InstanceCounter(engine)
    await places.claim(ServerInstance("acme", "files", 0), "a", await nodes.join(NodeInfo("a", "", "1")))
    await nodes.join(NodeInfo("a", "", "1"))
    assert (await counts.count("acme")).unowned == 3
