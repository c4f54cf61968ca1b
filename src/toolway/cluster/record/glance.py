"""The question that a node asks every second: has anything changed that concerns it? One statement, whose cost does not
grow with servers or nodes where nothing has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, String, and_, cast, exists, literal, select, union_all
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.record.clock import seconds_now
from toolway.cluster.record.engine import for_reading
from toolway.cluster.record.tables import EpochRow, NodeRow, PlaceRow


@dataclass(frozen=True, slots=True)
class Glimpse:
    epoch: int  # grows whenever a node joins, leaves or drains, and with every new pool
    dead: frozenset[str]  # nodes whose lease has ended
    free: frozenset[str]  # of the pools that were asked about, those in which something has no owner
    recalled: bool  # something that we own is wanted back


class Glance:
    """Raises what SQLAlchemy raises."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._reading = for_reading(engine)

    async def look(self, node: str, pools: Sequence[str]) -> Glimpse:
        asked = union_all(
            select(literal("epoch").label("what"), cast(EpochRow.last, String).label("which")),
            select(literal("dead"), NodeRow.id).where(NodeRow.lease_until <= seconds_now()),
            select(literal("recalled"), literal("")).where(exists().where(PlaceRow.node == node, PlaceRow.recalled)),
            *(select(literal("free"), literal(pool)).where(exists().where(_waits_in(pool))) for pool in pools),
        )
        async with self._reading.connect() as db:
            found = [(row.what, row.which) for row in await db.execute(asked)]
        return Glimpse(
            epoch=next(int(which) for what, which in found if what == "epoch"),
            dead=frozenset(which for what, which in found if what == "dead"),
            free=frozenset(which for what, which in found if what == "free"),
            recalled=any(what == "recalled" for what, _ in found),
        )


def _waits_in(pool: str) -> ColumnElement[bool]:
    return and_(PlaceRow.node.is_(None), PlaceRow.pool == pool, PlaceRow.wanted)
