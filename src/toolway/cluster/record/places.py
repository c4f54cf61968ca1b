"""Who owns an instance of a server. A place is taken only while nobody with a lease has it, and its fence grows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, case, delete, exists, func, insert, not_, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.placement import slot_of
from toolway.cluster.record.clock import seconds_now
from toolway.cluster.record.tables import NodeRow, PlaceRow


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """An instance of a server."""

    tenant: str
    server: str
    instance: int = 0

    @property
    def slot(self) -> int:
        return slot_of(self.tenant, self.server, self.instance)


@dataclass(frozen=True, slots=True)
class Held:
    """A place and its owner."""

    place: Place
    node: str
    fence: int


@dataclass(frozen=True, slots=True)
class Free:
    """A place that nobody with a lease owns, and for how long."""

    place: Place
    since: float  # seconds


class Places:
    """Raises what SQLAlchemy raises."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def declare(self, tenant: str, server: str, instances: int) -> None:
        """So many instances shall have an owner; those that are too many lose theirs."""
        async with self._engine.begin() as db:
            ours = (PlaceRow.tenant == tenant) & (PlaceRow.server == server)
            await db.execute(delete(PlaceRow).where(ours, PlaceRow.instance >= instances))
            known = set((await db.execute(select(PlaceRow.instance).where(ours))).scalars())
            for instance in set(range(instances)) - known:
                slot = slot_of(tenant, server, instance)
                await db.execute(
                    insert(PlaceRow).values(
                        tenant=tenant,
                        server=server,
                        instance=instance,
                        slot=slot,
                        fence=0,
                        free_since=seconds_now(),
                    )
                )

    async def take(self, place: Place, node: str, epoch: int) -> int | None:
        """The fence under which we own it now; None if somebody else does, or our own lease has ended."""
        async with self._engine.begin() as db:
            # The row is locked before it is judged: a statement that waits for a lock judges the other rows by what
            # they were when it began, and two could take one place.
            await db.execute(select(PlaceRow.fence).where(_is(place)).with_for_update())
            mine = exists().where(NodeRow.id == node, NodeRow.epoch == epoch, NodeRow.lease_until > seconds_now())
            taken = await db.execute(
                update(PlaceRow)
                .where(_is(place), _free(), mine)
                .values(node=node, epoch=epoch, fence=PlaceRow.fence + 1)
                .returning(PlaceRow.fence)
            )
            return taken.scalar_one_or_none()

    async def give_up(self, place: Place, node: str, fence: int) -> bool:
        """Hand it back before the lease ends. Whether it was still ours."""
        async with self._engine.begin() as db:
            ours = and_(_is(place), PlaceRow.node == node, PlaceRow.fence == fence)
            free = {"node": None, "epoch": None, "free_since": seconds_now()}
            done = await db.execute(update(PlaceRow).where(ours).values(free))
            return done.rowcount == 1

    async def owner(self, place: Place) -> Held | None:
        async with self._engine.connect() as db:
            row = (await db.execute(select(PlaceRow).where(_is(place), not_(_free())))).one_or_none()
            return Held(place, row.node, row.fence) if row is not None else None

    async def owned_by(self, node: str, epoch: int) -> Sequence[Held]:
        asked = select(PlaceRow).where(PlaceRow.node == node, PlaceRow.epoch == epoch, not_(_free()))
        async with self._engine.connect() as db:
            return [Held(_place(row), row.node, row.fence) for row in await db.execute(asked)]

    async def free(self, slots: Collection[int], limit: int) -> Sequence[Free]:
        """Places of these slots that want an owner, those first that have waited longest."""
        waited = (seconds_now() - _free_since()).label("waited")
        asked = (
            select(PlaceRow, waited)
            .outerjoin(NodeRow, NodeRow.id == PlaceRow.node)
            .where(PlaceRow.slot.in_(sorted(slots)), _free())
            .order_by(waited.desc())
            .limit(limit)
        )
        async with self._engine.connect() as db:
            return [Free(_place(row), max(row.waited, 0.0)) for row in await db.execute(asked)]


def _is(place: Place) -> ColumnElement[bool]:
    return and_(PlaceRow.tenant == place.tenant, PlaceRow.server == place.server, PlaceRow.instance == place.instance)


def _free() -> ColumnElement[bool]:
    """Nobody who has a lease owns it."""
    owner = NodeRow.__table__.alias("owner")
    alive = and_(owner.c.id == PlaceRow.node, owner.c.epoch == PlaceRow.epoch, owner.c.lease_until > seconds_now())
    return not_(exists(select(1).select_from(owner).where(alive)))


def _free_since() -> ColumnElement[float]:
    """Since it was handed back, since the lease of its owner ended, or since its owner joined as another one."""
    return case(
        (PlaceRow.node.is_(None), PlaceRow.free_since),
        (NodeRow.epoch == PlaceRow.epoch, NodeRow.lease_until),
        else_=func.coalesce(NodeRow.joined, PlaceRow.free_since),
    )


def _place(row: Any) -> Place:
    return Place(row.tenant, row.server, row.instance)
