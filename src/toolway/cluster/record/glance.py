"""The question that a node asks every second: has anything changed that concerns it? One statement, whose cost does not
grow with servers or nodes where nothing has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import CompoundSelect, Select, String, and_, bindparam, cast, exists, func, literal, select, union_all
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.record.clock import seconds_now
from toolway.cluster.record.engine import for_reading
from toolway.cluster.record.nodes import KIND
from toolway.cluster.record.tables import ChangeRow, NodeRow, PlaceRow

SOON: Final = 1.5  # seconds that no lease has left while its node renews it


@dataclass(frozen=True, slots=True)
class Glimpse:
    revision: int  # grows whenever a node of the tenant joins, leaves or drains, and with every new pool
    dead: frozenset[str]  # nodes whose lease has ended
    free: frozenset[str]  # of the pools that were asked about, those in which something has no owner
    recalled: bool  # something that we own is wanted back
    next_death: float | None = None  # seconds until a lease ends that nobody has renewed for long


class Glance:
    """Raises what SQLAlchemy raises."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._reading = for_reading(engine)
        self._pools: tuple[str, ...] = ()
        self._asked = _question(())

    async def look(self, node: str, tenant: str, pools: Sequence[str]) -> Glimpse:
        if tuple(pools) != self._pools:
            self._pools, self._asked = tuple(pools), _question(pools)
        async with self._reading.connect() as db:
            found = (await db.execute(self._asked, {"node": node, "tenant": tenant})).all()
        return Glimpse(
            revision=next((int(which) for what, which in found if what == "nodes"), 0),
            dead=frozenset(which for what, which in found if what == "dead"),
            free=frozenset(which for what, which in found if what == "free"),
            recalled=any(what == "recalled" for what, _ in found),
            next_death=next((float(which) for what, which in found if what == "ending" and which is not None), None),
        )


def _question(pools: Sequence[str]) -> CompoundSelect[Any]:
    """Putting it together costs as much as asking it, so that is done once."""
    node, tenant = bindparam("node", type_=String), bindparam("tenant", type_=String)
    changed = and_(ChangeRow.kind == KIND, ChangeRow.tenant == tenant)
    now = seconds_now()
    ended = and_(NodeRow.tenant == tenant, NodeRow.lease_until <= now)
    ending = and_(NodeRow.tenant == tenant, NodeRow.lease_until > now, NodeRow.lease_until <= now + SOON)
    waits = and_(PlaceRow.node.is_(None), PlaceRow.tenant == tenant, PlaceRow.wanted)

    def free(pool: str) -> Select[str, str]:
        """The first of them, in the order of their index: whoever asks whether there is any has the whole table read
        where there is none, if the database believes that there are many."""
        by_index = (PlaceRow.tenant, PlaceRow.pool, PlaceRow.slot)
        first = select(PlaceRow.slot).where(waits, PlaceRow.pool == pool).order_by(*by_index).limit(1).subquery()
        return select(literal("free"), literal(pool)).select_from(first)

    return union_all(
        select(literal("nodes").label("what"), cast(ChangeRow.revision, String).label("which")).where(changed),
        select(literal("dead"), NodeRow.id).where(ended),
        select(literal("ending"), cast(func.min(NodeRow.lease_until - now), String)).where(ending),
        select(literal("recalled"), literal("")).where(exists().where(PlaceRow.node == node, PlaceRow.recalled)),
        *(free(pool) for pool in pools),
    )
