"""`/admin/nodes`, on a real record."""

from __future__ import annotations

from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import insert, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.encryption_keys import an_integrity
from toolway.cluster import admin
from toolway.cluster.admin import NodesAdmin
from toolway.cluster.db.engine import db_now, open_engine
from toolway.cluster.db.instances import InstanceStore, ServerInstance
from toolway.cluster.db.nodes import NodeInfo, NodeStore
from toolway.cluster.db.poll import InstanceCounter
from toolway.cluster.db.tables import NodeRow, ServerRow
from toolway.cluster.options import ClusterOptions
from toolway.errors import NotFound, ServerUnavailable
from toolway.gateway.admin.routes import ROUTES, AdminEndpoint, AdminRequest, RouteTable
from toolway.gateway.principals import LOCAL_ADMIN

pytestmark = pytest.mark.anyio
OPTIONS = ClusterOptions(nats_urls=("nats://a",), database_url="postgresql://db/x", tenant_key=bytes(32), tenant="acme")


def find_route(method: str, path: str) -> Any:
    return RouteTable([(route, None) for route in ROUTES]).match(method, path)


class Cluster:
    def __init__(self, engine: AsyncEngine) -> None:
        self.nodes = NodeStore(engine, an_integrity())
        self.notified = 0
        self.admin = NodesAdmin(OPTIONS, "one-1", self.nodes, InstanceCounter(engine), list, lambda: True, self._notify)

    async def _notify(self) -> None:
        self.notified += 1

    async def ask(self, method: str, path: str) -> Any:
        found = find_route(method, f"/admin/{path}")
        assert found is not None
        route, params, _ = found
        admin = cast(AdminEndpoint, SimpleNamespace(nodes=self.admin))
        request = AdminRequest(params, "", {}, LOCAL_ADMIN, dict, lambda name: None)
        return await cast(Awaitable[Any], route.handler(admin, request))


@pytest.fixture
async def cluster(engine: AsyncEngine) -> Cluster:
    made = Cluster(engine)
    async with engine.begin() as db:
        await db.execute(insert(ServerRow).values(tenant="acme", name="files", definition={}, revision=1))
    places = InstanceStore(engine)
    await places.set_instance_count("acme", "files", 2)
    epoch = await made.nodes.join(NodeInfo("one-1", "http://one", "0.1", 10, ("gpu",), "acme"))
    await made.nodes.join(NodeInfo("two-1", "", "0.2", tenant="acme"))
    await places.claim(ServerInstance("acme", "files", 1), "one-1", epoch)
    return made


async def test_all_nodes_are_shown_with_their_counts(cluster: Cluster) -> None:
    found = await cluster.ask("GET", "nodes")
    assert (found["node"], found["tenant"], found["nats"], found["unowned"]) == ("one-1", "acme", True, 1)
    one, two = found["nodes"]
    assert 8 < one.pop("lease") <= 10 and 0 <= one.pop("seen") < 2
    assert one == {
        "id": "one-1",
        "address": "http://one",
        "version": "0.1",
        "capacity": 10,
        "labels": ["gpu"],
        "state": "ready",
        "draining": False,
        "servers": 1,
    }
    assert (two["id"], two["address"], two["servers"]) == ("two-1", "", 0)


async def test_node_is_shown_with_its_servers_by_id_or_name(cluster: Cluster) -> None:
    for named in ("one-1", "one"):
        found = await cluster.ask("GET", f"nodes/{named}")
        assert found["owns"] == [{"tenant": "acme", "server": "files", "instance": 1}] and not found["more"]


async def test_drained_node_is_shown_as_draining_and_others_notified(cluster: Cluster) -> None:
    assert await cluster.ask("POST", "nodes/two/drain") == {"draining": "two-1"}
    assert cluster.notified == 1
    states = {each["id"]: each["state"] for each in (await cluster.ask("GET", "nodes"))["nodes"]}
    assert states == {"one-1": "ready", "two-1": "draining"}


async def test_overdue_lease_is_shown_as_silent(cluster: Cluster, engine: AsyncEngine) -> None:
    async with engine.begin() as db:
        await db.execute(update(NodeRow).where(NodeRow.id == "two-1").values(lease_until=db_now() + 3))
    assert [each["state"] for each in (await cluster.ask("GET", "nodes"))["nodes"]] == ["ready", "silent"]


async def test_unknown_or_ambiguous_node_name_is_rejected(cluster: Cluster) -> None:
    with pytest.raises(NotFound, match="unknown node 'three'"):
        await cluster.ask("POST", "nodes/three/drain")
    with pytest.raises(NotFound) as caught:
        await cluster.ask("GET", "nodes/tow-1")
    assert "two-1" in caught.value.hint
    await cluster.nodes.join(NodeInfo("two-2", "", "0.2", tenant="acme"))
    with pytest.raises(NotFound, match="ambiguous node name 'two'"):
        await cluster.ask("POST", "nodes/two/drain")
    assert cluster.notified == 0


async def test_owners_stay_known_while_the_database_is_down(
    cluster: Cluster, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "OWNERS_CACHE_S", 0.0)
    assert await cluster.admin.owners_by_server() == {"files": ("one-1",)}
    async with engine.begin() as db:
        await db.execute(text("ALTER TABLE instances RENAME TO elsewhere"))
    assert await cluster.admin.owners_by_server() == {"files": ("one-1",)}
    with pytest.raises(ServerUnavailable):
        await cluster.ask("GET", "nodes")


async def test_other_node_routes_do_not_exist(cluster: Cluster) -> None:
    assert find_route("DELETE", "/admin/nodes/one") is None
    assert find_route("GET", "/admin/nodes/one/drain") is None


async def test_unavailable_database_error_hides_the_password() -> None:
    engine = open_engine("postgresql://toolway:word-of-the-database@127.0.0.1:1/x")
    try:
        with pytest.raises(ServerUnavailable) as caught:
            await Cluster(engine).ask("GET", "nodes")
    finally:
        await engine.dispose()
    assert caught.value.code == "E-RECORD" and caught.value.hint
    assert "refused" in caught.value.detail and "word-of-the-database" not in str(caught.value)
