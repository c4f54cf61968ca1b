"""Leases of nodes, by the clock of the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, delete, exists, not_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from toolway.cluster.record.changes import announce
from toolway.cluster.record.clock import seconds_now
from toolway.cluster.record.engine import for_reading
from toolway.cluster.record.tables import EpochRow, NodeRow, PlaceRow, PoolRow
from toolway.cluster.record.writing import put
from toolway.cluster.tenure import TERMS, Terms

KIND: Final = "nodes"  # of changes: a node came, went or drains, or a pool is new
REMEMBERED: Final = 60.0  # seconds after the end of its lease for which a node is


@dataclass(frozen=True, slots=True)
class Card:
    """What a node says of itself."""

    id: str
    address: str
    version: str
    capacity: int = 100  # programs that it runs at the most; 0 = it owns nothing
    labels: tuple[str, ...] = ()
    tenant: str = "default"  # whose servers it owns


@dataclass(frozen=True, slots=True)
class Seen:
    """A node as the others know it."""

    card: Card
    epoch: int
    draining: bool
    left: float  # seconds of its lease, by the clock of the database
    load: int = 0  # programs that it runs, when it renewed its lease last

    @property
    def room(self) -> int:
        return max(0, self.card.capacity - self.load)


class Nodes:
    """Raises what SQLAlchemy raises."""

    def __init__(self, engine: AsyncEngine, terms: Terms = TERMS) -> None:
        self._engine = engine
        self._singly = for_reading(engine)
        self._ttl = terms.ttl

    async def join(self, card: Card) -> int:
        """A new lease, under a number that nobody had before. Whatever this node held under another is free."""
        epoch = await self._next_epoch()
        async with self._engine.begin() as db:
            await put(db, NodeRow, _row(card, epoch, self._ttl))
            await _free_places(db, PlaceRow.node == card.id)
        await announce(self._singly, KIND, card.tenant)
        return epoch

    async def renew(self, id: str, epoch: int, load: int = 0) -> bool:
        """Whether the lease is ours for another term. One that has ended is not: others may have acted on it."""
        async with self._singly.begin() as db:
            ours = (NodeRow.id == id) & (NodeRow.epoch == epoch) & (NodeRow.lease_until > seconds_now())
            row = {"lease_until": seconds_now() + self._ttl, "load": load}
            done = await db.execute(update(NodeRow).where(ours).values(row))
            return done.rowcount == 1

    async def drain(self, id: str) -> bool:
        """From now on it takes nothing. Whether there is such a node."""
        async with self._singly.begin() as db:
            drained = update(NodeRow).where(NodeRow.id == id).values(draining=True).returning(NodeRow.tenant)
            tenant = (await db.execute(drained)).scalar_one_or_none()
        if tenant is not None:
            await announce(self._singly, KIND, tenant)
        return tenant is not None

    async def leave(self, id: str, epoch: int) -> None:
        """What it owned is free at once."""
        async with self._engine.begin() as db:
            await _free_places(db, and_(PlaceRow.node == id, PlaceRow.epoch == epoch))
            gone = delete(NodeRow).where(NodeRow.id == id, NodeRow.epoch == epoch).returning(NodeRow.tenant)
            tenant = (await db.execute(gone)).scalar_one_or_none()
        if tenant is not None:
            await announce(self._singly, KIND, tenant)

    async def disown_past(self, id: str, epoch: int) -> None:
        """Free what it is said to own under a lease that has ended. A place that it asked for under that lease may have
        been given to it when it had joined anew already, and nobody else looks at what a living node has."""
        async with self._engine.begin() as db:
            await _free_places(db, and_(PlaceRow.node == id, PlaceRow.epoch != epoch))

    async def sweep(self, tenant: str) -> None:
        """Forget nodes of a tenant whose lease ended a while ago, when others have what they owned."""
        async with self._engine.begin() as db:
            owned = exists().where(PlaceRow.node == NodeRow.id, PlaceRow.wanted)
            ended = and_(NodeRow.tenant == tenant, NodeRow.lease_until < seconds_now() - REMEMBERED, not_(owned))
            gone = (await db.execute(delete(NodeRow).where(ended).returning(NodeRow.id))).scalars().all()
            if gone:
                await _free_places(db, PlaceRow.node.in_(gone))

    async def pools(self, tenant: str) -> Sequence[str]:
        """The sets of labels that servers of a tenant ask of their nodes, in any order."""
        async with self._singly.connect() as db:
            return (await db.execute(select(PoolRow.pool).where(PoolRow.tenant == tenant))).scalars().all()

    async def alive(self, tenant: str | None = None) -> Sequence[Seen]:
        """The nodes of a tenant, or of all, that have a lease."""
        now = seconds_now()
        asked = select(NodeRow, (NodeRow.lease_until - now).label("left")).where(NodeRow.lease_until > now)
        if tenant is not None:
            asked = asked.where(NodeRow.tenant == tenant)
        async with self._singly.connect() as db:
            return [
                Seen(
                    Card(row.id, row.address, row.version, row.capacity, tuple(row.labels["all"]), row.tenant),
                    row.epoch,
                    row.draining,
                    row.left,
                    row.load,
                )
                for row in await db.execute(asked.order_by(NodeRow.id))
            ]

    async def _next_epoch(self) -> int:
        """In a statement of its own: whoever held the row for longer, and was slow, would hold up all who join."""
        async with self._singly.begin() as db:
            taken = await db.execute(update(EpochRow).values(last=EpochRow.last + 1).returning(EpochRow.last))
            return taken.scalar_one()


def _row(card: Card, epoch: int, ttl: float) -> dict[str, Any]:
    now = seconds_now()
    return {
        "id": card.id,
        "epoch": epoch,
        "tenant": card.tenant,
        "address": card.address,
        "version": card.version,
        "capacity": card.capacity,
        "load": 0,
        "labels": {"all": list(card.labels)},
        "draining": False,
        "joined": now,
        "lease_until": now + ttl,
    }


async def _free_places(db: AsyncConnection, which: ColumnElement[bool]) -> None:
    """The owner of these does nothing more with them."""
    await db.execute(delete(PlaceRow).where(which, not_(PlaceRow.wanted)))
    free = {"node": None, "epoch": None, "recalled": False, "free_since": seconds_now()}
    await db.execute(update(PlaceRow).where(which).values(free))
