"""What a client of the handshake era settled in its session after it began: from which level on it wants to hear logs,
which resources it subscribed to, that it is done. Most sessions settle nothing, and have no row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import msgspec
from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.record.clock import seconds_now
from toolway.cluster.record.tables import SessionRow
from toolway.cluster.record.writing import insert_once

SOME: Final = 100  # rows that are over and go with each write


class Settled(msgspec.Struct, frozen=True):
    """Fields are only ever added: nodes of two versions work side by side."""

    level: str | None = None
    uris: tuple[str, ...] = ()
    ended: bool = False


NOTHING: Final = Settled()


class Sessions:
    """Ids are digests of the sessions' own, which only their clients should have. Raises what SQLAlchemy raises."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def of(self, tenant: str, ids: Collection[str]) -> Mapping[str, Settled]:
        """Of those that have settled something: hundreds at once, not thousands."""
        asked = select(SessionRow.id, SessionRow.facts).where(SessionRow.tenant == tenant, SessionRow.id.in_(ids))
        async with self._engine.connect() as db:
            return {row.id: _settled(row.facts) for row in await db.execute(asked)}

    async def change(self, tenant: str, id: str, how: Callable[[Settled], Settled], seconds: float) -> Settled:
        """What it is now. Two that change it at once come one after the other. It is forgotten after `seconds`."""
        ours = (SessionRow.tenant == tenant) & (SessionRow.id == id)
        until = seconds_now() + seconds
        async with self._engine.begin() as db:
            await insert_once(db, SessionRow, {"tenant": tenant, "id": id, "facts": {}, "until": until})
            before = (await db.execute(select(SessionRow.facts).where(ours).with_for_update())).scalar_one()
            now = how(_settled(before))
            facts: dict[str, Any] = {**before, **msgspec.to_builtins(now)}
            await db.execute(update(SessionRow).where(ours).values(facts=facts, until=until))
            over = select(SessionRow.id).where(SessionRow.tenant == tenant, SessionRow.until < seconds_now())
            old = (SessionRow.tenant == tenant) & SessionRow.id.in_(over.limit(SOME).scalar_subquery())
            await db.execute(delete(SessionRow).where(old))
        return now


def _settled(facts: dict[str, Any]) -> Settled:
    return msgspec.convert(facts, Settled)
