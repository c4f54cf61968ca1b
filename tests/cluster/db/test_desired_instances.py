"""What entries ask for becomes places, and nothing is taken away from an owner that lives."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.encryption_keys import an_integrity
from toolway.cluster.db.instances import DesiredInstances, InstanceStore, ServerInstance, apply_desired_instances
from toolway.cluster.db.nodes import NodeInfo, NodeStore
from toolway.cluster.db.poll import ClusterPoll
from toolway.cluster.lease_clock import LeaseSettings

pytestmark = pytest.mark.anyio

PLACE = ServerInstance("acme", "files")


async def _wish(engine: AsyncEngine, wish: DesiredInstances) -> None:
    async with engine.begin() as db:
        await apply_desired_instances(db, "acme", {"files": wish})


async def test_unwanted_instance_is_removed_when_its_owner_releases_it(engine: AsyncEngine) -> None:
    places, nodes = InstanceStore(engine), NodeStore(engine, an_integrity())
    epoch = await nodes.join(NodeInfo("a", "", "1", tenant="acme"))
    await _wish(engine, DesiredInstances(count=3))
    last = ServerInstance("acme", "files", 2)
    (held,) = await places.claim_many([last], "a", epoch)
    await _wish(engine, DesiredInstances(count=1))
    assert await places.find_owner(last) == held  # it may have calls running
    assert await places.claim(ServerInstance("acme", "files", 1), "a", epoch) is None  # it had no owner: it is gone
    assert (await ClusterPoll(engine).fetch("a", "acme", [""])).has_recalled
    assert [(each.instance, each.recalled) for each in await places.list_owned("a", epoch, recalled=True)] == [
        (last, True)
    ]
    assert await places.release_many([held]) == 1
    assert await places.claim(last, "a", epoch) is None
    assert not (await ClusterPoll(engine).fetch("a", "acme", [""])).has_recalled


async def test_server_removed_and_added_again_never_has_two_owners(engine: AsyncEngine) -> None:
    places, nodes = InstanceStore(engine), NodeStore(engine, an_integrity())
    a, b = (
        await nodes.join(NodeInfo("a", "", "1", tenant="acme")),
        await nodes.join(NodeInfo("b", "", "1", tenant="acme")),
    )
    await _wish(engine, DesiredInstances())
    (held,) = await places.claim_many([PLACE], "a", a)
    await _wish(engine, DesiredInstances(count=0))
    await _wish(engine, DesiredInstances())
    assert await places.claim(PLACE, "b", b) is None  # the first owner has it still, and may keep it
    assert not (await ClusterPoll(engine).fetch("a", "acme", [])).has_recalled
    await _wish(engine, DesiredInstances(count=0))
    await places.release_many([held])
    await _wish(engine, DesiredInstances())
    fence = await places.claim(PLACE, "b", b)
    assert fence is not None and fence > held.fence


async def test_unwanted_instance_of_a_dead_node_is_removed(engine: AsyncEngine) -> None:
    places, nodes = InstanceStore(engine), NodeStore(engine, an_integrity())
    epoch = await nodes.join(NodeInfo("a", "", "1", tenant="acme"))
    await _wish(engine, DesiredInstances())
    await places.claim(PLACE, "a", epoch)
    await _wish(engine, DesiredInstances(count=0))
    await nodes.leave("a", epoch)
    assert not (await ClusterPoll(engine).fetch("b", "acme", [""])).pools_with_unowned
    assert await places.list_unowned("acme", [PLACE.slot], 10) == []


async def test_label_change_recalls_an_instance_and_creates_its_pool(engine: AsyncEngine) -> None:
    places, nodes, glance = InstanceStore(engine), NodeStore(engine, an_integrity()), ClusterPoll(engine)
    epoch = await nodes.join(NodeInfo("a", "", "1", tenant="acme"))
    await _wish(engine, DesiredInstances())
    (held,) = await places.claim_many([PLACE], "a", epoch)
    before = (await glance.fetch("a", "acme", [])).revision
    await _wish(engine, DesiredInstances(labels=("gpu", "eu")))
    seen = await glance.fetch("a", "acme", ["eu,gpu"])
    assert seen.has_recalled and not seen.pools_with_unowned and seen.revision > before
    assert list(await nodes.list_pools("acme")) == ["eu,gpu"]
    await _wish(engine, DesiredInstances(labels=("eu", "gpu"), cost=0))
    assert (await glance.fetch("a", "acme", [])).revision == seen.revision  # nothing new among the pools
    await places.release_many([held])
    assert (await glance.fetch("a", "acme", ["", "eu,gpu"])).pools_with_unowned == {"eu,gpu"}
    (free,) = await places.list_unowned("acme", [PLACE.slot], 10, pool="eu,gpu")
    assert (free.instance, free.pool, free.cost) == (PLACE, "eu,gpu", 0)


async def test_many_servers_are_declared_at_once_and_repeatedly(engine: AsyncEngine) -> None:
    names = {f"server-{number}": DesiredInstances(cost=number % 2) for number in range(1200)}
    async with engine.begin() as db:
        await apply_desired_instances(db, "acme", names)
    async with engine.begin() as db:
        await apply_desired_instances(db, "acme", names)
    free = await InstanceStore(engine).list_unowned("acme", range(4096), 5000)
    assert sorted(each.instance.server for each in free) == sorted(names)


async def test_poll_sees_nodes_join_drain_and_leave(engine: AsyncEngine) -> None:
    nodes, glance = NodeStore(engine, an_integrity()), ClusterPoll(engine)
    seen = [(await glance.fetch("a", "acme", [])).revision]
    epoch = await nodes.join(NodeInfo("a", "", "1", tenant="acme"))
    seen.append((await glance.fetch("a", "acme", [])).revision)
    await nodes.drain("a")
    seen.append((await glance.fetch("a", "acme", [])).revision)
    assert await nodes.renew("a", epoch, 7) and (await nodes.list_alive("acme"))[0].load == 7
    assert (await glance.fetch("a", "acme", [])).revision == seen[-1]  # renewing changes nothing for others
    await nodes.leave("a", epoch)
    seen.append((await glance.fetch("a", "acme", [])).revision)
    assert seen == sorted(set(seen))


async def test_poll_sees_an_unrenewed_lease_expire(engine: AsyncEngine) -> None:
    nodes, glance = NodeStore(engine, an_integrity()), ClusterPoll(engine)
    await nodes.join(NodeInfo("a", "", "1", tenant="acme"))
    assert (await glance.fetch("a", "acme", [])).next_expiry_s is None
    await NodeStore(engine, an_integrity(), LeaseSettings(ttl=0.5)).join(NodeInfo("b", "", "1", tenant="acme"))
    await NodeStore(engine, an_integrity(), LeaseSettings(ttl=0.1)).join(NodeInfo("c", "", "1", tenant="other"))
    left = (await glance.fetch("a", "acme", [])).next_expiry_s
    assert left is not None and 0 < left <= 0.5
    await asyncio.sleep(left + 0.02)
    seen = await glance.fetch("a", "acme", [])
    assert seen.dead_nodes == {"b"} and seen.next_expiry_s is None


async def test_tenants_do_not_see_each_other(engine: AsyncEngine) -> None:
    places, nodes, glance = InstanceStore(engine), NodeStore(engine, an_integrity()), ClusterPoll(engine)
    await nodes.join(NodeInfo("a", "", "1", tenant="acme"))
    before = await glance.fetch("a", "acme", [""])
    await nodes.join(NodeInfo("b", "", "1", tenant="other"))
    async with engine.begin() as db:
        await apply_desired_instances(
            db, "other", {"files": DesiredInstances(), "models": DesiredInstances(labels=("gpu",))}
        )
    assert await glance.fetch("a", "acme", ["", "gpu"]) == before
    assert (await glance.fetch("b", "other", ["", "gpu"])).pools_with_unowned == {"", "gpu"}
    assert [seen.info.id for seen in await nodes.list_alive("acme")] == ["a"] and len(
        await nodes.list_alive("other")
    ) == 1
    assert list(await nodes.list_pools("acme")) == [] and await places.list_unowned("acme", range(4096), 10) == []
    assert await places.list_overdue("acme", [""], 10) == []
