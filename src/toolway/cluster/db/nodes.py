"""Cluster nodes and their leases, measured by the database clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, and_, delete, exists, not_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from toolway.cluster.db.changes import commit_change
from toolway.cluster.db.engine import db_now, upsert, with_autocommit
from toolway.cluster.db.integrity import Integrity
from toolway.cluster.db.tables import EpochRow, InstanceRow, NodeRow, PoolRow
from toolway.cluster.lease_clock import DEFAULT_LEASE_SETTINGS, LeaseSettings

NODES_CHANGE: Final = "nodes"  # kind of change: a node joined, left or drains, or a pool was added
KEEP_EXPIRED_NODE_S: Final = 60.0  # seconds for which a node is kept after its lease has ended


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a node stores about itself when it joins: address, version, capacity, labels, parts."""

    id: str
    address: str
    version: str
    capacity: int = 100  # maximum number of server processes; 0 = it owns nothing
    labels: tuple[str, ...] = ()
    tenant: str = "default"  # the tenant whose servers it owns
    parts: tuple[str, ...] = ()  # features that its configuration uses; a node that lacks one must not join


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """State of a node with a lease, as other nodes read it from the database."""

    info: NodeInfo
    epoch: int
    draining: bool
    lease_left_s: float  # seconds of its lease, by the clock of the database
    load: int = 0  # running server processes at the last lease renewal

    @property
    def free_capacity(self) -> int:
        return max(0, self.info.capacity - self.load)


class NodeStore:
    """Stores nodes and leases. Methods raise SQLAlchemy errors.

    A node signs what it stores about itself. A row without a valid signature is not a node: no server is placed there
    and no call is sent to its address.
    """

    def __init__(
        self, engine: AsyncEngine, integrity: Integrity, settings: LeaseSettings = DEFAULT_LEASE_SETTINGS
    ) -> None:
        self._engine = engine
        self._integrity = integrity
        self._autocommit = with_autocommit(engine)
        self._ttl = settings.ttl

    async def join(self, info: NodeInfo) -> int:
        """Give a node a new lease. Return its epoch, a number unique to this lease.

        Server instances that the node owned under an earlier lease are released.
        """
        epoch = await self._next_epoch()
        async with self._engine.begin() as db:
            await upsert(db, NodeRow, {**_node_row(info, epoch, self._ttl), "mac": self._sign(info, epoch)})
            await _release_instances(db, InstanceRow.node == info.id)
        await commit_change(self._autocommit, NODES_CHANGE, info.tenant)
        return epoch

    async def renew(self, id: str, epoch: int, load: int = 0) -> bool:
        """Renew the lease of a node. Return False if it has already ended and cannot be renewed.

        If it has ended, other nodes may already have claimed the node's servers.
        """
        async with self._autocommit.begin() as db:
            has_lease = (NodeRow.id == id) & (NodeRow.epoch == epoch) & (NodeRow.lease_until > db_now())
            row = {"lease_until": db_now() + self._ttl, "load": load}
            result = await db.execute(update(NodeRow).where(has_lease).values(row))
            return result.rowcount == 1

    async def drain(self, id: str) -> bool:
        """Mark a node as draining: it releases its servers and claims no more.

        Return False if the node does not exist.
        """
        async with self._autocommit.begin() as db:
            statement = update(NodeRow).where(NodeRow.id == id).values(draining=True).returning(NodeRow.tenant)
            tenant = (await db.execute(statement)).scalar_one_or_none()
        if tenant is not None:
            await commit_change(self._autocommit, NODES_CHANGE, tenant)
        return tenant is not None

    async def leave(self, id: str, epoch: int) -> None:
        """End the lease of a node and release its server instances at once."""
        async with self._engine.begin() as db:
            await _release_instances(db, and_(InstanceRow.node == id, InstanceRow.epoch == epoch))
            statement = delete(NodeRow).where(NodeRow.id == id, NodeRow.epoch == epoch).returning(NodeRow.tenant)
            tenant = (await db.execute(statement)).scalar_one_or_none()
        if tenant is not None:
            await commit_change(self._autocommit, NODES_CHANGE, tenant)

    async def remove_named(self, tenant: str, name: str) -> None:
        """Remove the nodes whose ids begin with `name`, and release their server instances at once.

        Only for workers of one machine: their parent starts a worker again after its process has ended.
        """
        async with self._engine.begin() as db:
            is_named = and_(NodeRow.tenant == tenant, NodeRow.id.startswith(f"{name}-", autoescape=True))
            removed = (await db.execute(delete(NodeRow).where(is_named).returning(NodeRow.id))).scalars().all()
            if removed:
                await _release_instances(db, InstanceRow.node.in_(removed))
        if removed:
            await commit_change(self._autocommit, NODES_CHANGE, tenant)

    async def release_stale(self, id: str, epoch: int) -> None:
        """Release server instances that the database still assigns to an earlier lease of a node.

        A claim made under the old lease may be committed after the node has joined again. Other nodes would never claim
        such an instance, because its owner is alive.
        """
        async with self._engine.begin() as db:
            await _release_instances(db, and_(InstanceRow.node == id, InstanceRow.epoch != epoch))

    async def delete_expired(self, tenant: str) -> None:
        """Delete nodes of a tenant whose lease ended a while ago and that own no wanted instance."""
        async with self._engine.begin() as db:
            owns_desired = exists().where(InstanceRow.node == NodeRow.id, InstanceRow.wanted)
            is_expired = and_(
                NodeRow.tenant == tenant, NodeRow.lease_until < db_now() - KEEP_EXPIRED_NODE_S, not_(owns_desired)
            )
            deleted = (await db.execute(delete(NodeRow).where(is_expired).returning(NodeRow.id))).scalars().all()
            if deleted:
                await _release_instances(db, InstanceRow.node.in_(deleted))

    async def list_pools(self, tenant: str) -> Sequence[str]:
        """Return the pools of a tenant: the sets of node labels that its servers require."""
        async with self._autocommit.connect() as db:
            return (await db.execute(select(PoolRow.pool).where(PoolRow.tenant == tenant))).scalars().all()

    async def list_alive(self, tenant: str) -> Sequence[NodeStatus]:
        """Return a tenant's nodes with a valid lease, without rows that no node has signed."""
        now = db_now()
        query = select(NodeRow, (NodeRow.lease_until - now).label("left")).where(
            NodeRow.lease_until > now, NodeRow.tenant == tenant
        )
        async with self._autocommit.connect() as db:
            rows = (await db.execute(query.order_by(NodeRow.id))).all()
        found = [(row.mac, _to_status(row)) for row in rows]
        signed = [status for mac, status in found if status is not None and self._is_signed(mac, status)]
        ids = {status.info.id for status in signed}
        self._integrity.report("nodes", [row.id for row in rows if row.id not in ids])
        return signed

    def _sign(self, info: NodeInfo, epoch: int) -> str:
        return self._integrity.sign("nodes", *_signed_content(info, epoch))

    def _is_signed(self, mac: str, status: NodeStatus) -> bool:
        return self._integrity.is_signed(mac, "nodes", *_signed_content(status.info, status.epoch))

    async def _next_epoch(self) -> int:
        """Take the next lease number in its own statement, so a slow node blocks no other node."""
        async with self._autocommit.begin() as db:
            result = await db.execute(update(EpochRow).values(last=EpochRow.last + 1).returning(EpochRow.last))
            return result.scalar_one()


def _signed_content(info: NodeInfo, epoch: int) -> tuple[Any, ...]:
    """Return the signed fields of a node's row: all but lease, load and `draining`, which change later."""
    return (info.tenant, info.id, epoch, info.address, info.version, info.capacity, info.labels, info.parts)


def _to_status(row: Row[NodeRow, float]) -> NodeStatus | None:
    """Return the status of the node in a row, or None if its labels or parts are not a list."""
    labels, parts = (each.get("all") if isinstance(each, dict) else None for each in (row.labels, row.parts))
    if not isinstance(labels, list) or not isinstance(parts, list):
        return None
    info = NodeInfo(
        *(row.id, row.address, row.version, row.capacity),
        labels=tuple(map(str, labels)),
        tenant=row.tenant,
        parts=tuple(map(str, parts)),
    )
    return NodeStatus(info, row.epoch, row.draining, row.left, row.load)


def _node_row(info: NodeInfo, epoch: int, ttl: float) -> dict[str, Any]:
    now = db_now()
    return {
        "id": info.id,
        "epoch": epoch,
        "tenant": info.tenant,
        "address": info.address,
        "version": info.version,
        "capacity": info.capacity,
        "load": 0,
        "labels": {"all": list(info.labels)},
        "parts": {"all": list(info.parts)},
        "draining": False,
        "joined": now,
        "lease_until": now + ttl,
    }


async def _release_instances(db: AsyncConnection, condition: ColumnElement[bool]) -> None:
    """Release the server instances that match `condition`; delete those no longer wanted."""
    await db.execute(delete(InstanceRow).where(condition, not_(InstanceRow.wanted)))
    unowned = {"node": None, "epoch": None, "recalled": False, "free_since": db_now()}
    await db.execute(update(InstanceRow).where(condition).values(unowned))
