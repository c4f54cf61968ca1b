"""How many owners a server wants, and where: what entries say becomes places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, delete, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from toolway.cluster.placement import slot_of
from toolway.cluster.plan import ALL, pool_of
from toolway.cluster.record.changes import bump
from toolway.cluster.record.clock import seconds_now
from toolway.cluster.record.nodes import KIND
from toolway.cluster.record.tables import PlaceRow, PoolRow
from toolway.cluster.record.which import are
from toolway.cluster.record.writing import insert_once

AT_ONCE: Final = 500  # servers
MANY: Final = 500  # new places that change how the database should look for them

Key = tuple[str, int]  # server and instance


@dataclass(frozen=True, slots=True)
class Wish:
    instances: int = 1  # 0 = it is no longer there
    labels: tuple[str, ...] = ()  # that a node must have
    cost: int = 1  # 1: a program runs for it; 0: it is only looked after


async def declare(db: AsyncConnection, tenant: str, wishes: Mapping[str, Wish]) -> None:
    """Make the places of these servers as they are wished, within a transaction; other servers stay as they are.

    Nothing is taken away from an owner that lives: it is asked to hand back what shall not be or not be there, and
    finds out at its next look."""
    left, new = iter(wishes.items()), 0
    while some := dict(islice(left, AT_ONCE)):
        new += await _declare_some(db, tenant, some)
    if new >= MANY and db.dialect.name == "postgresql":
        # It counts by itself, a minute later: until then it would take the table for an empty one, and each node would
        # have it read all of it whenever it looks for its share.
        await db.execute(text(f"ANALYZE (SKIP_LOCKED) {PlaceRow.__tablename__}"))
    await _know_pools(db, tenant, {pool_of(wish.labels) for wish in wishes.values() if wish.instances} - {ALL})


async def _know_pools(db: AsyncConnection, tenant: str, pools: set[str]) -> None:
    new = [await insert_once(db, PoolRow, {"tenant": tenant, "pool": pool}) for pool in sorted(pools)]
    if any(new):
        await bump(db, KIND, tenant)  # nodes look at the pools again


async def _declare_some(db: AsyncConnection, tenant: str, wishes: Mapping[str, Wish]) -> int:
    """How many places are new."""
    ours = and_(PlaceRow.tenant == tenant, PlaceRow.server.in_(list(wishes)))
    asked = select(PlaceRow.server, PlaceRow.instance, PlaceRow.node, PlaceRow.pool, PlaceRow.cost, PlaceRow.wanted)
    found = await db.execute(asked.where(ours).order_by(PlaceRow.server, PlaceRow.instance).with_for_update())
    there = {(row.server, row.instance): row for row in found}
    wanted = {(name, number): wish for name, wish in wishes.items() for number in range(wish.instances)}
    await _drop(db, tenant, [(key, row.node) for key, row in there.items() if key not in wanted])
    for key, wish in wanted.items():
        if (row := there.get(key)) is not None:
            await _change(db, tenant, key, row, wish)
    missing = {key: wish for key, wish in wanted.items() if key not in there}
    if missing:
        now = (await db.execute(select(seconds_now()))).scalar_one()
        rows = [_row(tenant, key, wish, now) for key, wish in missing.items()]
        await db.execute(insert(PlaceRow).returning(PlaceRow.slot), rows)  # with an answer it is one statement
    return len(missing)


async def _drop(db: AsyncConnection, tenant: str, some: Sequence[tuple[Key, str | None]]) -> None:
    if free := [key for key, node in some if node is None]:
        await db.execute(delete(PlaceRow).where(_are(tenant, free)))
    if owned := [key for key, node in some if node is not None]:
        await db.execute(update(PlaceRow).where(_are(tenant, owned)).values(wanted=False, recalled=True))


async def _change(db: AsyncConnection, tenant: str, key: Key, row: Any, wish: Wish) -> None:
    pool = pool_of(wish.labels)
    if (row.pool, row.cost, row.wanted) != (pool, wish.cost, True):
        values = {"pool": pool, "cost": wish.cost, "wanted": True}
        if row.node is not None:
            values["recalled"] = row.pool != pool  # what was recalled because it was not wanted may stay
        await db.execute(update(PlaceRow).where(_are(tenant, [key])).values(values))


def _row(tenant: str, key: Key, wish: Wish, now: float) -> dict[str, Any]:
    server, instance = key
    return {
        "tenant": tenant,
        "server": server,
        "instance": instance,
        "pool": pool_of(wish.labels),
        "slot": slot_of(tenant, server, instance),
        "cost": wish.cost,
        "fence": int(now * 1000),  # greater than any of a place of that name before
        "free_since": now,
    }


def _are(tenant: str, keys: Sequence[Key]) -> ColumnElement[bool]:
    return are((tenant, *key) for key in keys)
