"""Who has how much, for the people who look after a cluster. Asked by nobody else: it looks at every place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.record.clock import seconds_now
from toolway.cluster.record.places import Place
from toolway.cluster.record.tables import NodeRow, PlaceRow


@dataclass(frozen=True, slots=True)
class Counted:
    owned: Mapping[str, int]  # places, by the node that owns them and has a lease
    free: int  # places that nobody with a lease owns


class Counts:
    """Raises what SQLAlchemy raises."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def counted(self) -> Counted:
        asked = select(NodeRow.id, func.count()).select_from(PlaceRow).outerjoin(NodeRow, _owner()).group_by(NodeRow.id)
        async with self._engine.connect() as db:
            found: dict[str | None, int] = {row[0]: row[1] for row in await db.execute(asked)}
        return Counted({id: count for id, count in found.items() if id is not None}, found.get(None, 0))

    async def of_node(self, id: str, limit: int) -> Sequence[Place]:
        """The places that a node owns, in the order of their names; no more than `limit`."""
        asked = select(PlaceRow).join(NodeRow, _owner()).where(PlaceRow.node == id)
        ordered = asked.order_by(PlaceRow.tenant, PlaceRow.server, PlaceRow.instance).limit(limit)
        async with self._engine.connect() as db:
            return [Place(row.tenant, row.server, row.instance) for row in await db.execute(ordered)]

    async def owners(self, tenant: str) -> dict[str, tuple[str, ...]]:
        """The nodes that own each server of a tenant, in the order of its instances."""
        asked = select(PlaceRow.server, NodeRow.id).join(NodeRow, _owner()).where(PlaceRow.tenant == tenant)
        found: dict[str, tuple[str, ...]] = {}
        async with self._engine.connect() as db:
            for server, node in await db.execute(asked.order_by(PlaceRow.server, PlaceRow.instance)):
                found[server] = (*found.get(server, ()), node)
        return found


def _owner() -> ColumnElement[bool]:
    return and_(NodeRow.id == PlaceRow.node, NodeRow.epoch == PlaceRow.epoch, NodeRow.lease_until > seconds_now())
