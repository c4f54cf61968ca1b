"""Server instances in the database: their owners and desired counts.

A node claims an instance only if it has no live owner. Every claim increases the fence (ownership number) of the
instance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Select,
    and_,
    bindparam,
    case,
    delete,
    exists,
    false,
    func,
    insert,
    not_,
    or_,
    select,
    text,
    true,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from toolway.cluster.db.changes import record_change
from toolway.cluster.db.engine import db_now, insert_if_absent, with_autocommit
from toolway.cluster.db.nodes import NODES_CHANGE
from toolway.cluster.db.tables import InstanceRow, NodeRow, PoolRow
from toolway.cluster.placement import DEFAULT_POOL, RANKS, SLOTS, claim_delay, pool_for, slot_for

SERVERS_PER_BATCH: Final = 100  # servers per statement, as in config_store.py
ANALYZE_THRESHOLD: Final = 500  # new rows that make the planner's statistics of the table useless

InstanceKey: TypeAlias = tuple[str, str, int]  # tenant, server, instance
KeyInTenant: TypeAlias = tuple[str, int]  # server, instance


@dataclass(frozen=True, slots=True, order=True)
class ServerInstance:
    """Identity of one instance of a configured server: tenant, server name and instance number."""

    tenant: str
    server: str
    index: int = 0

    @property
    def slot(self) -> int:
        return slot_for(self.tenant, self.server, self.index)


@dataclass(frozen=True, slots=True)
class Ownership:
    """Server instance with its owner node.

    The fence is a number that grows with every new owner: it distinguishes two ownerships of one instance.
    """

    instance: ServerInstance
    node: str
    fence: int
    pool: str = field(default=DEFAULT_POOL, compare=False)
    cost: int = field(default=1, compare=False)
    recalled: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class UnownedInstance:
    """A server instance without a live owner, and for how many seconds."""

    instance: ServerInstance
    waited_s: float  # seconds
    pool: str = DEFAULT_POOL
    cost: int = 1
    is_orphaned: bool = False  # the lease of its owner has ended


class InstanceStore:
    """Store of server instances and their owner nodes. Methods raise SQLAlchemy errors."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self._autocommit = with_autocommit(engine)

    async def set_instance_count(
        self, tenant: str, server: str, count: int, labels: Sequence[str] = (), cost: int = 1
    ) -> None:
        """Set how many instances a server should have, with each one's node labels and cost.

        Surplus instances that a node owns are recalled: the node stops and releases them.
        """
        async with self.engine.begin() as db:
            await apply_desired_instances(db, tenant, {server: DesiredInstances(count, tuple(labels), cost)})

    async def claim(self, instance: ServerInstance, node: str, epoch: int) -> int | None:
        """Make `node` the owner of a server instance. Return the fence, the new ownership number.

        Return None if another node owns the instance or the lease of `node` has ended.
        """
        claimed = await self.claim_many([instance], node, epoch)
        return claimed[0].fence if claimed else None

    async def claim_many(self, instances: Collection[ServerInstance], node: str, epoch: int) -> Sequence[Ownership]:
        """Make `node` the owner of several server instances in one transaction. Return those it now owns.

        Instances that another node owns are left out. Without a valid lease with the number `epoch`, none is claimed.
        """
        async with self.engine.begin() as db:
            # Lock the rows before checking them: a statement that waits for a lock sees the other rows as of its start,
            # and two nodes could claim one instance. Rows that another node has locked are skipped.
            query = select(*_PRIMARY_KEY).where(_where_instances(instances))
            locked = [ServerInstance(*row) for row in await db.execute(_with_row_locks(query, skip_locked=True))]
            if not locked:
                return ()
            has_lease = exists().where(NodeRow.id == node, NodeRow.epoch == epoch, NodeRow.lease_until > db_now())
            claimed = await db.execute(
                update(InstanceRow)
                .where(_where_instances(locked), InstanceRow.wanted, _has_no_live_owner(), has_lease)
                .values(node=node, epoch=epoch, fence=InstanceRow.fence + 1, recalled=False)
                .returning(
                    *_PRIMARY_KEY,
                    InstanceRow.node,
                    InstanceRow.fence,
                    InstanceRow.pool,
                    InstanceRow.cost,
                    InstanceRow.recalled,
                )
            )
            return [_to_ownership(row) for row in claimed]

    async def release(self, instance: ServerInstance, node: str, fence: int) -> bool:
        """Give up the ownership of a server instance. Return True if the node still owned it."""
        return bool(await self.release_many([Ownership(instance, node, fence)]))

    async def release_many(self, ownerships: Collection[Ownership]) -> int:
        """Give up the ownership of several server instances. Return how many the nodes still owned.

        Instances that the configuration no longer wants are deleted.
        """
        async with self.engine.begin() as db:
            query = select(InstanceRow).where(_where_instances(ownership.instance for ownership in ownerships))
            current = {_to_ownership(row) for row in await db.execute(_with_row_locks(query))}
            is_owned = _where_instances(ownership.instance for ownership in current.intersection(ownerships))
            deleted = await db.execute(delete(InstanceRow).where(is_owned, not_(InstanceRow.wanted)))
            unowned = {"node": None, "epoch": None, "recalled": False, "free_since": db_now()}
            released = await db.execute(update(InstanceRow).where(is_owned).values(unowned))
            return deleted.rowcount + released.rowcount

    async def find_owner(self, instance: ServerInstance) -> Ownership | None:
        async with self._autocommit.connect() as db:
            row = (
                await db.execute(select(InstanceRow).where(_where_instances([instance]), not_(_has_no_live_owner())))
            ).one_or_none()
            return _to_ownership(row) if row is not None else None

    async def find_owners(self, tenant: str, server: str) -> Sequence[Ownership]:
        """Return the owners (nodes with a lease) of a server's instances, in instance order."""
        is_of_server = and_(InstanceRow.tenant == tenant, InstanceRow.server == server)
        query = select(InstanceRow).where(is_of_server, not_(_has_no_live_owner())).order_by(InstanceRow.instance)
        async with self._autocommit.connect() as db:
            return [_to_ownership(row) for row in await db.execute(query)]

    async def list_owned(self, node: str, epoch: int, *, recalled: bool = False) -> Sequence[Ownership]:
        """Return the server instances that a node owns under the lease `epoch`.

        `recalled` selects only those that the node must release.
        """
        query = select(InstanceRow).where(
            InstanceRow.node == node, InstanceRow.epoch == epoch, not_(_has_no_live_owner())
        )
        async with self._autocommit.connect() as db:
            return [
                _to_ownership(row) for row in await db.execute(query.where(InstanceRow.recalled) if recalled else query)
            ]

    async def list_claimable(
        self,
        tenant: str,
        slots_by_rank: Sequence[Collection[int]],
        limit: int,
        *,
        pool: str = DEFAULT_POOL,
        dead_nodes: Collection[str] = (),
    ) -> Sequence[UnownedInstance]:
        """Return unowned instances of a pool that a node may claim, in the given hash slots.

        Item n of `slots_by_rank` has the allowed slots of the instances whose number modulo `RANKS` is n. `dead_nodes`
        have an expired lease: their instances count as unowned.
        """
        in_rank = [
            and_(InstanceRow.instance % RANKS == rank, _where_in_slots(slots))
            for rank, slots in enumerate(slots_by_rank)
        ]
        # Only this condition can use an index.
        in_any_rank = _where_in_slots({slot for slots in slots_by_rank for slot in slots})
        condition = and_(InstanceRow.tenant == tenant, InstanceRow.pool == pool, in_any_rank, or_(*in_rank))
        return await self._list_unowned_where(condition, dead_nodes, 0.0, limit)

    async def list_unowned(
        self,
        tenant: str,
        slots: Collection[int],
        limit: int,
        *,
        pool: str = DEFAULT_POOL,
        dead_nodes: Collection[str] = (),
        min_wait: float = 0.0,
    ) -> Sequence[UnownedInstance]:
        """Return instances in these hash slots without an owner for at least `min_wait` seconds."""
        condition = and_(InstanceRow.tenant == tenant, InstanceRow.pool == pool, _where_in_slots(slots))
        return await self._list_unowned_where(condition, dead_nodes, min_wait, limit)

    async def list_overdue(self, tenant: str, pools: Collection[str], limit: int) -> Sequence[UnownedInstance]:
        """Return unowned instances of these pools that their preferred nodes did not claim in time."""
        condition = and_(InstanceRow.tenant == tenant, InstanceRow.pool.in_(list(pools)))
        return await self._list_unowned_where(condition, (), claim_delay(None), limit)

    async def _list_unowned_where(
        self, condition: ColumnElement[bool], dead_nodes: Collection[str], min_wait: float, limit: int
    ) -> Sequence[UnownedInstance]:
        """Return unowned instances that match a condition: those of dead nodes first, then by longest wait."""
        async with self._autocommit.connect() as db:
            found: list[UnownedInstance] = []
            if dead_nodes:
                orphaned_query = _ORPHANED.where(
                    InstanceRow.node.in_(sorted(dead_nodes)), condition, min_wait <= _ORPHANED_SECONDS
                )
                found += [
                    _to_unowned(row)
                    for row in await db.execute(orphaned_query.order_by(_ORPHANED_SECONDS.desc()).limit(limit))
                ]
            if len(found) < limit:
                unowned_query = _UNOWNED.where(condition, InstanceRow.free_since <= db_now() - min_wait)
                query = unowned_query.order_by(InstanceRow.free_since).limit(limit - len(found))
                found += [_to_unowned(row) for row in await db.execute(query)]
            return found


_PRIMARY_KEY = (InstanceRow.tenant, InstanceRow.server, InstanceRow.instance)


def _where_instances(instances: Iterable[ServerInstance]) -> ColumnElement[bool]:
    return where_keys((instance.tenant, instance.server, instance.index) for instance in instances)


def _with_row_locks(query: Select[*tuple[Any, ...]], *, skip_locked: bool = False) -> Select[*tuple[Any, ...]]:
    """Add FOR UPDATE to a query, with rows in primary-key order.

    One lock order for all transactions prevents deadlocks.
    """
    return query.order_by(*_PRIMARY_KEY).with_for_update(skip_locked=skip_locked)


def _where_in_slots(slots: Collection[int]) -> ColumnElement[bool]:
    if len(slots) == SLOTS:
        return true()
    slot_list: BindParameter[Any] = bindparam("slots", sorted(slots), expanding=True, literal_execute=True, unique=True)
    return InstanceRow.slot.in_(slot_list)


def _has_no_live_owner() -> ColumnElement[bool]:
    """Build the SQL condition that no node with a valid lease owns the server instance."""
    owner = NodeRow.__table__.alias("owner")
    alive = and_(owner.c.id == InstanceRow.node, owner.c.epoch == InstanceRow.epoch, owner.c.lease_until > db_now())
    return not_(exists(select(1).select_from(owner).where(alive)))


_UNOWNED = select(InstanceRow, (db_now() - InstanceRow.free_since).label("waited")).where(
    InstanceRow.node.is_(None), InstanceRow.wanted
)
#: Seconds since the lease of the owner ended, or since the owner joined again under another epoch.
_ORPHANED_SECONDS = db_now() - case(
    (NodeRow.epoch == InstanceRow.epoch, NodeRow.lease_until),
    else_=func.coalesce(NodeRow.joined, InstanceRow.free_since),
)
_ORPHANED = (
    select(InstanceRow, _ORPHANED_SECONDS.label("waited"))
    .outerjoin(NodeRow, NodeRow.id == InstanceRow.node)
    .where(InstanceRow.wanted, _has_no_live_owner())
)


def _to_unowned(row: Any) -> UnownedInstance:
    return UnownedInstance(_to_instance(row), max(row.waited, 0.0), row.pool, row.cost, row.node is not None)


def _to_instance(row: Any) -> ServerInstance:
    return ServerInstance(row.tenant, row.server, row.instance)


def _to_ownership(row: Any) -> Ownership:
    return Ownership(_to_instance(row), row.node, row.fence, row.pool, row.cost, row.recalled)


def where_keys(keys: Iterable[InstanceKey]) -> ColumnElement[bool]:
    """Return the SQL condition that selects server instances by key and can use the index.

    A list of complete keys is one condition per key, compared with every row: seconds for 500 of 50,000 instances. A
    list of server names is one condition, with an index.
    """
    servers: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for tenant, server, instance in keys:
        servers[tenant, instance].append(server)
    return or_(
        false(),
        *(
            and_(InstanceRow.tenant == tenant, InstanceRow.instance == instance, InstanceRow.server.in_(names))
            for (tenant, instance), names in servers.items()
        ),
    )


# -- desired instances ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DesiredInstances:
    """Desired number, node labels and cost of the instances of one server."""

    count: int = 1  # 0 = the server was removed
    labels: tuple[str, ...] = ()  # that a node must have
    cost: int = 1  # 1 = runs a process on its node; 0 = remote server


async def apply_desired_instances(db: AsyncConnection, tenant: str, desired: Mapping[str, DesiredInstances]) -> None:
    """Make the instance rows of these servers match the desired state, within a transaction.

    Other servers are not changed. A live owner keeps its instances: surplus or misplaced ones are marked as recalled,
    and the owner releases them on its next poll."""
    remaining, new = iter(desired.items()), 0
    while batch := dict(islice(remaining, SERVERS_PER_BATCH)):
        new += await _apply_batch(db, tenant, batch)
    if new >= ANALYZE_THRESHOLD and db.dialect.name == "postgresql":
        # Autovacuum updates the statistics only a minute later. Until then the planner assumes an empty table, and each
        # node's search for its share would scan all of it.
        await db.execute(text(f"ANALYZE (SKIP_LOCKED) {InstanceRow.__tablename__}"))
    await _add_pools(db, tenant, {pool_for(each.labels) for each in desired.values() if each.count} - {DEFAULT_POOL})


async def _add_pools(db: AsyncConnection, tenant: str, pools: set[str]) -> None:
    new = [await insert_if_absent(db, PoolRow, {"tenant": tenant, "pool": pool}) for pool in sorted(pools)]
    if any(new):
        await record_change(db, NODES_CHANGE, tenant)  # nodes reload the pools


async def _apply_batch(db: AsyncConnection, tenant: str, desired: Mapping[str, DesiredInstances]) -> int:
    """Apply the desired state of one batch of servers. Return the number of new instances."""
    in_batch = and_(InstanceRow.tenant == tenant, InstanceRow.server.in_(list(desired)))
    query = select(
        InstanceRow.server,
        InstanceRow.instance,
        InstanceRow.node,
        InstanceRow.pool,
        InstanceRow.cost,
        InstanceRow.wanted,
    )
    found = await db.execute(query.where(in_batch).order_by(InstanceRow.server, InstanceRow.instance).with_for_update())
    existing = {(row.server, row.instance): row for row in found}
    wanted_by_key = {(name, number): each for name, each in desired.items() for number in range(each.count)}
    await _remove_instances(db, tenant, [(key, row.node) for key, row in existing.items() if key not in wanted_by_key])
    for key, each in wanted_by_key.items():
        if (row := existing.get(key)) is not None:
            await _update_instance(db, tenant, key, row, each)
    missing = {key: each for key, each in wanted_by_key.items() if key not in existing}
    if missing:
        now = (await db.execute(select(db_now()))).scalar_one()
        rows = [_instance_row(tenant, key, each, now) for key, each in missing.items()]
        await db.execute(insert(InstanceRow).returning(InstanceRow.slot), rows)  # RETURNING makes it one statement
    return len(missing)


async def _remove_instances(
    db: AsyncConnection, tenant: str, surplus: Sequence[tuple[KeyInTenant, str | None]]
) -> None:
    if unowned := [key for key, node in surplus if node is None]:
        await db.execute(delete(InstanceRow).where(_where_keys_in_tenant(tenant, unowned)))
    if owned := [key for key, node in surplus if node is not None]:
        await db.execute(
            update(InstanceRow).where(_where_keys_in_tenant(tenant, owned)).values(wanted=False, recalled=True)
        )


async def _update_instance(
    db: AsyncConnection, tenant: str, key: KeyInTenant, row: Any, desired: DesiredInstances
) -> None:
    pool = pool_for(desired.labels)
    if (row.pool, row.cost, row.wanted) != (pool, desired.cost, True):
        values = {"pool": pool, "cost": desired.cost, "wanted": True}
        if row.node is not None:
            values["recalled"] = row.pool != pool  # undo a recall of an instance that is desired again
        await db.execute(update(InstanceRow).where(_where_keys_in_tenant(tenant, [key])).values(values))


def _instance_row(tenant: str, key: KeyInTenant, desired: DesiredInstances, now: float) -> dict[str, Any]:
    server, instance = key
    return {
        "tenant": tenant,
        "server": server,
        "instance": instance,
        "pool": pool_for(desired.labels),
        "slot": slot_for(tenant, server, instance),
        "cost": desired.cost,
        "fence": int(now * 1000),  # greater than any fence of a deleted instance with this key
        "free_since": now,
    }


def _where_keys_in_tenant(tenant: str, keys: Sequence[KeyInTenant]) -> ColumnElement[bool]:
    return where_keys((tenant, *key) for key in keys)
