"""`/admin/nodes`: list the nodes of the cluster, show their servers, drain a node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Final, TypeVar

from toolway.cluster.bootstrap import database_unavailable
from toolway.cluster.db.nodes import NodeStatus, NodeStore
from toolway.cluster.db.poll import InstanceCounter
from toolway.cluster.lease_clock import DEFAULT_LEASE_SETTINGS
from toolway.cluster.options import ClusterOptions
from toolway.errors import NotFound, ServerUnavailable
from toolway.types import Json

OWNERS_CACHE_S: Final = 1.0  # seconds for which the owners of servers are cached
MAX_LISTED_SERVERS: Final = 1000  # servers of one node in one response
#: Seconds left of a lease whose last renewal is overdue.
SILENT_LEASE_S: Final = DEFAULT_LEASE_SETTINGS.ttl - 2 * DEFAULT_LEASE_SETTINGS.renew_interval

T = TypeVar("T")


class NodesAdmin:
    """Handlers for `/admin/nodes` on a cluster node; implements `ClusterAdmin`.

    `findings` returns a line for each database row that this node rejects. `publish_change` makes the other nodes
    poll the database at once, if NATS is available.
    """

    def __init__(
        self,
        options: ClusterOptions,
        own_id: str,
        nodes: NodeStore,
        counts: InstanceCounter,
        findings: Callable[[], Sequence[str]],
        is_connected: Callable[[], bool],
        publish_change: Callable[[], Awaitable[object]],
        restart: Callable[[str], None] = lambda server: None,
    ) -> None:
        self._options = options
        self._own_id = own_id
        self._nodes = nodes
        self._counts = counts
        self._findings = findings
        self._is_connected = is_connected
        self._publish_change = publish_change
        self.restart = restart
        self._cached_owners: tuple[float, Mapping[str, Sequence[str]]] = (0.0, {})  # cached until, owners by server

    async def owners_by_server(self) -> Mapping[str, Sequence[str]]:
        """Return the ids of the nodes that own each server of the tenant, cached for a short time.

        If the database is unavailable, the last known owners are returned.
        """
        now = asyncio.get_running_loop().time()
        until, found = self._cached_owners
        if now >= until:
            with suppress(ServerUnavailable):
                found = await _run_query(self._counts.owners_by_server(self._options.tenant))
            self._cached_owners = (now + OWNERS_CACHE_S, found)
        return found

    async def list_nodes(self) -> Json:
        nodes = await _run_query(self._nodes.list_alive(self._options.tenant))
        counts = await _run_query(self._counts.count(self._options.tenant))
        return {
            "cluster": self._options.cluster_name,
            "tenant": self._options.tenant,
            "node": self._own_id,
            "nats": self._is_connected(),
            "nodes": [{**_node_to_json(each), "servers": counts.owned.get(each.info.id, 0)} for each in nodes],
            "unowned": counts.unowned,
            "rejected": list(self._findings()),
        }

    async def get_node(self, name: str) -> Json:
        """Return one node with the server instances it owns.

        Raises `NotFound` if the node does not exist, `ServerUnavailable` if the database does not respond.
        """
        node = resolve_node(name, await _run_query(self._nodes.list_alive(self._options.tenant)))
        instances = await _run_query(self._counts.list_owned(node.info.id, MAX_LISTED_SERVERS))
        owned = [{"tenant": each.tenant, "server": each.server, "instance": each.index} for each in instances]
        return {**_node_to_json(node), "owns": owned, "more": len(owned) == MAX_LISTED_SERVERS}

    async def drain_node(self, name: str) -> Json:
        """Make a node release all servers it owns and claim no more.

        Raises `NotFound` if the node does not exist, `ServerUnavailable` if the database does not respond.
        """
        node = resolve_node(name, await _run_query(self._nodes.list_alive(self._options.tenant)))
        if not await _run_query(self._nodes.drain(node.info.id)):
            raise _node_not_found(name, ())
        await self._publish_change()
        return {"draining": node.info.id}


def resolve_node(name: str, nodes: Iterable[NodeStatus]) -> NodeStatus:
    """Return the node with this id, or the only node with this name.

    Raises `NotFound` if there is none, or if several nodes have the name.
    """
    by_id = {each.info.id: each for each in nodes}
    if name in by_id:
        return by_id[name]
    matches = [id_ for id_ in by_id if id_.rpartition("-")[0] == name]
    if len(matches) == 1:
        return by_id[matches[0]]
    raise _node_not_found(name, matches or get_close_matches(name, by_id, n=3, cutoff=0.5), ambiguous=bool(matches))


def _node_not_found(name: str, close: Sequence[str], *, ambiguous: bool = False) -> NotFound:
    message = f"ambiguous node name {name!r}" if ambiguous else f"unknown node {name!r}"
    hint = f"did you mean {' or '.join(close[:3])}?" if close else "list the nodes: toolway cluster nodes"
    return NotFound(
        message, detail="no node with a lease has this id" if not ambiguous else ", ".join(close[:9]), hint=hint
    )


def _node_to_json(node: NodeStatus) -> Json:
    info = node.info
    return {
        "id": info.id,
        "address": info.address,
        "version": info.version,
        "capacity": info.capacity,
        "labels": list(info.labels),
        "state": "silent" if node.lease_left_s < SILENT_LEASE_S else "draining" if node.draining else "ready",
        "draining": node.draining,
        "lease": round(node.lease_left_s, 1),
        "seen": round(max(0.0, DEFAULT_LEASE_SETTINGS.ttl - node.lease_left_s), 1),  # seconds since the last renewal
    }


async def _run_query(query: Awaitable[T]) -> T:
    """Run a database query; its time limit is set in `db/engine.py`.

    Raises `ServerUnavailable` if the query fails for any reason.
    """
    try:
        return await query
    except Exception as exc:  # any driver error: the admin needs the reason
        raise database_unavailable(exc) from None
