"""The poll that every node runs once a second: has anything changed that concerns it?

One statement. If nothing changed, its cost does not grow with the number of servers or nodes. Counts shown in
`/admin` (`InstanceCounter`) are separate and never polled: they scan all server instances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Select,
    String,
    and_,
    bindparam,
    cast,
    exists,
    func,
    literal,
    select,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.db.engine import db_now, with_autocommit
from toolway.cluster.db.instances import ServerInstance
from toolway.cluster.db.nodes import NODES_CHANGE
from toolway.cluster.db.tables import ChangeRow, InstanceRow, NodeRow

EXPIRES_SOON_S: Final = 1.5  # a regularly renewed lease always has more seconds left


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Result of one poll: changes of nodes, leases and instances that this node must react to."""

    revision: int  # grows whenever a node of the tenant joins, leaves or drains, and with every new pool
    dead_nodes: frozenset[str]  # nodes whose lease has ended
    pools_with_unowned: frozenset[str]  # polled pools that contain an instance without owner
    has_recalled: bool  # an instance of this node is recalled
    next_expiry_s: float | None = None  # seconds until the next end of a lease whose renewal is overdue


class ClusterPoll:
    """One node's periodic query for everything that concerns it, in one SQL statement.

    The statement is built once per set of pools. `fetch` raises SQLAlchemy errors.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._autocommit = with_autocommit(engine)
        self._pools: tuple[str, ...] = ()
        self._query = _build_poll_query(())

    async def fetch(self, node: str, tenant: str, pools: Sequence[str]) -> ClusterSnapshot:
        if tuple(pools) != self._pools:
            self._pools, self._query = tuple(pools), _build_poll_query(pools)
        async with self._autocommit.connect() as db:
            rows = (await db.execute(self._query, {"node": node, "tenant": tenant})).all()
        return ClusterSnapshot(
            revision=next((int(value) for kind, value in rows if kind == "nodes"), 0),
            dead_nodes=frozenset(value for kind, value in rows if kind == "dead"),
            pools_with_unowned=frozenset(value for kind, value in rows if kind == "free"),
            has_recalled=any(kind == "recalled" for kind, _ in rows),
            next_expiry_s=next((float(value) for kind, value in rows if kind == "ending" and value is not None), None),
        )


def _build_poll_query(pools: Sequence[str]) -> CompoundSelect[Any]:
    """Build the poll's SQL statement. Callers cache it: building costs as much as executing."""
    node, tenant = bindparam("node", type_=String), bindparam("tenant", type_=String)
    is_nodes_change = and_(ChangeRow.kind == NODES_CHANGE, ChangeRow.tenant == tenant)
    now = db_now()
    is_expired = and_(NodeRow.tenant == tenant, NodeRow.lease_until <= now)
    is_expiring = and_(NodeRow.tenant == tenant, NodeRow.lease_until > now, NodeRow.lease_until <= now + EXPIRES_SOON_S)
    is_unowned = and_(InstanceRow.node.is_(None), InstanceRow.tenant == tenant, InstanceRow.wanted)

    def select_unowned_pool(pool: str) -> Select[str, str]:
        """Build a query that returns one row if the pool has any unowned server instance, else none.

        It reads in index order. `EXISTS` makes PostgreSQL scan the whole table if its statistics predict many matches
        and there are none.
        """
        index_order = (InstanceRow.tenant, InstanceRow.pool, InstanceRow.slot)
        first = (
            select(InstanceRow.slot)
            .where(is_unowned, InstanceRow.pool == pool)
            .order_by(*index_order)
            .limit(1)
            .subquery()
        )
        return select(literal("free"), literal(pool)).select_from(first)

    return union_all(
        select(literal("nodes").label("what"), cast(ChangeRow.revision, String).label("which")).where(is_nodes_change),
        select(literal("dead"), NodeRow.id).where(is_expired),
        select(literal("ending"), cast(func.min(NodeRow.lease_until - now), String)).where(is_expiring),
        select(literal("recalled"), literal("")).where(exists().where(InstanceRow.node == node, InstanceRow.recalled)),
        *(select_unowned_pool(pool) for pool in pools),
    )


# -- what /admin shows -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InstanceCounts:
    """Number of owned and unowned server instances."""

    owned: Mapping[str, int]  # instances by live owner node
    unowned: int  # instances without a live owner


class InstanceCounter:
    """Counts and lists owned server instances, for `/admin/nodes`.

    Methods raise SQLAlchemy errors.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def count(self, tenant: str) -> InstanceCounts:
        query = (
            select(NodeRow.id, func.count())
            .select_from(InstanceRow)
            .outerjoin(NodeRow, _is_live_owner())
            .where(InstanceRow.tenant == tenant)
            .group_by(NodeRow.id)
        )
        async with self._engine.connect() as db:
            found: dict[str | None, int] = {row[0]: row[1] for row in await db.execute(query)}
        return InstanceCounts({id: count for id, count in found.items() if id is not None}, found.get(None, 0))

    async def list_owned(self, id: str, limit: int) -> Sequence[ServerInstance]:
        """Return the first `limit` server instances that a node owns, by tenant, server and number."""
        query = select(InstanceRow).join(NodeRow, _is_live_owner()).where(InstanceRow.node == id)
        ordered = query.order_by(InstanceRow.tenant, InstanceRow.server, InstanceRow.instance).limit(limit)
        async with self._engine.connect() as db:
            return [ServerInstance(row.tenant, row.server, row.instance) for row in await db.execute(ordered)]

    async def owners_by_server(self, tenant: str) -> dict[str, tuple[str, ...]]:
        """Return the ids of the nodes that own each server of a tenant, in instance order."""
        query = (
            select(InstanceRow.server, NodeRow.id).join(NodeRow, _is_live_owner()).where(InstanceRow.tenant == tenant)
        )
        found: dict[str, tuple[str, ...]] = {}
        async with self._engine.connect() as db:
            for server, node in await db.execute(query.order_by(InstanceRow.server, InstanceRow.instance)):
                found[server] = (*found.get(server, ()), node)
        return found


def _is_live_owner() -> ColumnElement[bool]:
    return and_(NodeRow.id == InstanceRow.node, NodeRow.epoch == InstanceRow.epoch, NodeRow.lease_until > db_now())
