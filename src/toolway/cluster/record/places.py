"""Who owns an instance of a server. A place is taken only while nobody with a lease has it, and its fence grows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Select,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    not_,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.placement import RANKS, SLOTS, patience, slot_of
from toolway.cluster.plan import ALL
from toolway.cluster.record.clock import seconds_now
from toolway.cluster.record.engine import for_reading
from toolway.cluster.record.tables import NodeRow, PlaceRow
from toolway.cluster.record.which import are
from toolway.cluster.record.wishes import Wish, declare


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
    """A place and its owner. The fence alone tells two tenures of one place apart."""

    place: Place
    node: str
    fence: int
    pool: str = field(default=ALL, compare=False)
    cost: int = field(default=1, compare=False)
    recalled: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Free:
    """A place that nobody with a lease owns, and for how long."""

    place: Place
    since: float  # seconds
    pool: str = ALL
    cost: int = 1
    orphaned: bool = False  # its owner has died


class Places:
    """Raises what SQLAlchemy raises."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self._reading = for_reading(engine)

    async def declare(
        self, tenant: str, server: str, instances: int, labels: Sequence[str] = (), cost: int = 1
    ) -> None:
        """So many instances shall have an owner. Those that are too many are asked back."""
        async with self.engine.begin() as db:
            await declare(db, tenant, {server: Wish(instances, tuple(labels), cost)})

    async def take(self, place: Place, node: str, epoch: int) -> int | None:
        """The fence under which we own it now; None if somebody else does, or our own lease has ended."""
        taken = await self.take_all([place], node, epoch)
        return taken[0].fence if taken else None

    async def take_all(self, places: Collection[Place], node: str, epoch: int) -> Sequence[Held]:
        """Those of them that we own now."""
        async with self.engine.begin() as db:
            # The rows are locked before they are judged: a statement that waits for a lock judges the other rows by
            # what they were when it began, and two could take one place. What another has locked is left to it.
            asked = select(*_KEY).where(_are(places))
            ours = [Place(*row) for row in await db.execute(_locked(asked, skip_locked=True))]
            if not ours:
                return ()
            mine = exists().where(NodeRow.id == node, NodeRow.epoch == epoch, NodeRow.lease_until > seconds_now())
            taken = await db.execute(
                update(PlaceRow)
                .where(_are(ours), PlaceRow.wanted, _free(), mine)
                .values(node=node, epoch=epoch, fence=PlaceRow.fence + 1, recalled=False)
                .returning(*_KEY, PlaceRow.node, PlaceRow.fence, PlaceRow.pool, PlaceRow.cost, PlaceRow.recalled)
            )
            return [_held(row) for row in taken]

    async def give_up(self, place: Place, node: str, fence: int) -> bool:
        """Hand it back before the lease ends. Whether it was still ours."""
        return bool(await self.give_up_all([Held(place, node, fence)]))

    async def give_up_all(self, some: Collection[Held]) -> int:
        """How many of them were still ours. What is not wanted any more is gone now."""
        async with self.engine.begin() as db:
            asked = select(PlaceRow).where(_are(held.place for held in some))
            found = {_held(row) for row in await db.execute(_locked(asked))}
            ours = _are(held.place for held in found.intersection(some))
            gone = await db.execute(delete(PlaceRow).where(ours, not_(PlaceRow.wanted)))
            free = {"node": None, "epoch": None, "recalled": False, "free_since": seconds_now()}
            done = await db.execute(update(PlaceRow).where(ours).values(free))
            return gone.rowcount + done.rowcount

    async def owner(self, place: Place) -> Held | None:
        async with self._reading.connect() as db:
            row = (await db.execute(select(PlaceRow).where(_are([place]), not_(_free())))).one_or_none()
            return _held(row) if row is not None else None

    async def owners(self, tenant: str, server: str) -> Sequence[Held]:
        """Of all instances of a server that have one, in their order."""
        ours = and_(PlaceRow.tenant == tenant, PlaceRow.server == server)
        asked = select(PlaceRow).where(ours, not_(_free())).order_by(PlaceRow.instance)
        async with self._reading.connect() as db:
            return [_held(row) for row in await db.execute(asked)]

    async def owned_by(self, node: str, epoch: int, *, recalled: bool = False) -> Sequence[Held]:
        """All, or those alone that are wanted back."""
        asked = select(PlaceRow).where(PlaceRow.node == node, PlaceRow.epoch == epoch, not_(_free()))
        async with self._reading.connect() as db:
            return [_held(row) for row in await db.execute(asked.where(PlaceRow.recalled) if recalled else asked)]

    async def ours(
        self, tenant: str, turns: Sequence[Collection[int]], limit: int, *, pool: str = ALL, dead: Collection[str] = ()
    ) -> Sequence[Free]:
        """Places that want an owner, by the turn of their instance in these slots. `dead` are nodes whose lease has
        ended: what they owned is free."""
        in_turn = [and_(PlaceRow.instance % RANKS == turn, _in_slots(slots)) for turn, slots in enumerate(turns)]
        any_turn = _in_slots({slot for slots in turns for slot in slots})  # an index serves this alone
        which = and_(PlaceRow.tenant == tenant, PlaceRow.pool == pool, any_turn, or_(*in_turn))
        return await self._vacant(which, dead, 0.0, limit)

    async def free(
        self,
        tenant: str,
        slots: Collection[int],
        limit: int,
        *,
        pool: str = ALL,
        dead: Collection[str] = (),
        waited: float = 0.0,
    ) -> Sequence[Free]:
        """Places of any turn in these slots that have wanted an owner for so many seconds."""
        which = and_(PlaceRow.tenant == tenant, PlaceRow.pool == pool, _in_slots(slots))
        return await self._vacant(which, dead, waited, limit)

    async def waiting(self, tenant: str, pools: Collection[str], limit: int) -> Sequence[Free]:
        """Places of any slot that have waited so long that those who should take them cannot."""
        which = and_(PlaceRow.tenant == tenant, PlaceRow.pool.in_(list(pools)))
        return await self._vacant(which, (), patience(None), limit)

    async def _vacant(
        self, which: ColumnElement[bool], dead: Collection[str], waited: float, limit: int
    ) -> Sequence[Free]:
        """What dead nodes had, then what nobody has, those first that have waited longest."""
        async with self._reading.connect() as db:
            found: list[Free] = []
            if dead:
                of_dead = _ORPHANED.where(PlaceRow.node.in_(sorted(dead)), which, waited <= _ORPHANED_FOR)
                found += [
                    _free_one(row) for row in await db.execute(of_dead.order_by(_ORPHANED_FOR.desc()).limit(limit))
                ]
            if len(found) < limit:
                nobodys = _NOBODYS.where(which, PlaceRow.free_since <= seconds_now() - waited)
                asked = nobodys.order_by(PlaceRow.free_since).limit(limit - len(found))
                found += [_free_one(row) for row in await db.execute(asked)]
            return found


_KEY = (PlaceRow.tenant, PlaceRow.server, PlaceRow.instance)


def _are(places: Iterable[Place]) -> ColumnElement[bool]:
    return are((place.tenant, place.server, place.instance) for place in places)


def _locked(asked: Select[*tuple[Any, ...]], *, skip_locked: bool = False) -> Select[*tuple[Any, ...]]:
    """All lock rows in one order, so that nobody waits for somebody who waits for them."""
    return asked.order_by(*_KEY).with_for_update(skip_locked=skip_locked)


def _in_slots(slots: Collection[int]) -> ColumnElement[bool]:
    if len(slots) == SLOTS:
        return true()
    some: BindParameter[Any] = bindparam("slots", sorted(slots), expanding=True, literal_execute=True, unique=True)
    return PlaceRow.slot.in_(some)


def _free() -> ColumnElement[bool]:
    """Nobody who has a lease owns it."""
    owner = NodeRow.__table__.alias("owner")
    alive = and_(owner.c.id == PlaceRow.node, owner.c.epoch == PlaceRow.epoch, owner.c.lease_until > seconds_now())
    return not_(exists(select(1).select_from(owner).where(alive)))


_NOBODYS = select(PlaceRow, (seconds_now() - PlaceRow.free_since).label("waited")).where(
    PlaceRow.node.is_(None), PlaceRow.wanted
)
#: Since the lease of its owner ended, or since its owner joined as another one.
_ORPHANED_FOR = seconds_now() - case(
    (NodeRow.epoch == PlaceRow.epoch, NodeRow.lease_until), else_=func.coalesce(NodeRow.joined, PlaceRow.free_since)
)
_ORPHANED = (
    select(PlaceRow, _ORPHANED_FOR.label("waited"))
    .outerjoin(NodeRow, NodeRow.id == PlaceRow.node)
    .where(PlaceRow.wanted, _free())
)


def _free_one(row: Any) -> Free:
    return Free(_place(row), max(row.waited, 0.0), row.pool, row.cost, row.node is not None)


def _place(row: Any) -> Place:
    return Place(row.tenant, row.server, row.instance)


def _held(row: Any) -> Held:
    return Held(_place(row), row.node, row.fence, row.pool, row.cost, row.recalled)
