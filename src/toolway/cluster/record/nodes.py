"""Leases of nodes, by the clock of the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from toolway.cluster.record.clock import seconds_now
from toolway.cluster.record.tables import EpochRow, NodeRow, PlaceRow
from toolway.cluster.tenure import TERMS, Terms


@dataclass(frozen=True, slots=True)
class Card:
    """What a node says of itself."""

    id: str
    address: str
    version: str
    capacity: int = 100
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """A node as the others know it."""

    card: Card
    epoch: int
    draining: bool
    left: float  # seconds of its lease, by the clock of the database


class Nodes:
    """Raises what SQLAlchemy raises."""

    def __init__(self, engine: AsyncEngine, terms: Terms = TERMS) -> None:
        self._engine = engine
        self._ttl = terms.ttl

    async def join(self, card: Card) -> int:
        """A new lease, under a number that nobody had before. Whatever this node held under another is lost to it."""
        async with self._engine.begin() as db:
            epoch = await _next_epoch(db)
            now = seconds_now()
            row = {
                "epoch": epoch,
                "address": card.address,
                "version": card.version,
                "capacity": card.capacity,
                "labels": {"all": list(card.labels)},
                "draining": False,
                "joined": now,
                "lease_until": now + self._ttl,
            }
            done = await db.execute(update(NodeRow).where(NodeRow.id == card.id).values(row))
            if not done.rowcount:
                await db.execute(insert(NodeRow).values(id=card.id, **row))
            return epoch

    async def renew(self, id: str, epoch: int) -> bool:
        """Whether the lease is ours for another term. One that has ended is not: others may have acted on it."""
        async with self._engine.begin() as db:
            ours = (NodeRow.id == id) & (NodeRow.epoch == epoch) & (NodeRow.lease_until > seconds_now())
            done = await db.execute(update(NodeRow).where(ours).values(lease_until=seconds_now() + self._ttl))
            return done.rowcount == 1

    async def drain(self, id: str) -> bool:
        """From now on it takes nothing. Whether there is such a node."""
        async with self._engine.begin() as db:
            done = await db.execute(update(NodeRow).where(NodeRow.id == id).values(draining=True))
            return done.rowcount == 1

    async def leave(self, id: str, epoch: int) -> None:
        """What it owned is free at once."""
        async with self._engine.begin() as db:
            free = {"node": None, "epoch": None, "free_since": seconds_now()}
            await db.execute(update(PlaceRow).where(PlaceRow.node == id, PlaceRow.epoch == epoch).values(free))
            await db.execute(delete(NodeRow).where(NodeRow.id == id, NodeRow.epoch == epoch))

    async def alive(self) -> Sequence[Seen]:
        """The nodes that have a lease."""
        now = seconds_now()
        asked = select(NodeRow, (NodeRow.lease_until - now).label("left")).where(NodeRow.lease_until > now)
        async with self._engine.connect() as db:
            return [
                Seen(
                    Card(row.id, row.address, row.version, row.capacity, tuple(row.labels["all"])),
                    row.epoch,
                    row.draining,
                    row.left,
                )
                for row in await db.execute(asked.order_by(NodeRow.id))
            ]


async def _next_epoch(db: AsyncConnection) -> int:
    """The row is locked to the end of the transaction, so numbers are given in the order in which tenures begin."""
    taken = await db.execute(update(EpochRow).values(last=EpochRow.last + 1).returning(EpochRow.last))
    return taken.scalar_one()
