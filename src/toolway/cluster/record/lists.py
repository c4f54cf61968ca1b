"""What each server has, as the node that owns it heard it: so every node can list them without asking anybody.

An owner writes under its fence. Who was the owner before and does not know yet that it is over changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from sqlalchemy import Row, and_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.record.changes import bump
from toolway.cluster.record.tables import ListRow
from toolway.model import Era, Json

KIND: Final = "lists"
_KEY: Final = ("tenant", "server")


class Listed(msgspec.Struct, frozen=True):
    """What is known of one server."""

    identity: str  # what makes it the same server: lists of another under its name are of no use
    era: Era
    agreement: Json  # capabilities, serverInfo, instructions, version: as the session keeps them
    lists: dict[str, list[Any]]  # by kind: tools, prompts, resources, templates
    fence: int = 0
    revision: int = 0


class Lists:
    """Raises what SQLAlchemy raises."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def put(self, tenant: str, server: str, listed: Listed) -> int | None:
        """The revision of the change; None where a later owner has written, or there is no such server."""
        body = msgspec.json.encode([listed.era, listed.agreement, listed.lists])
        row = {"tenant": tenant, "server": server, "fence": listed.fence, "identity": listed.identity, "body": body}
        try:
            return await self._put(row)
        except IntegrityError:
            return None  # the server was removed

    async def _put(self, row: Mapping[str, Any]) -> int | None:
        ours = and_(ListRow.tenant == row["tenant"], ListRow.server == row["server"])
        async with self._engine.begin() as db:
            make = sqlite.insert if db.dialect.name == "sqlite" else postgresql.insert
            written = await db.execute(
                make(ListRow)
                .values({**row, "revision": 0})
                .on_conflict_do_update(index_elements=_KEY, set_=row, where=ListRow.fence <= row["fence"])
                .returning(ListRow.fence)
            )
            if written.first() is None:
                return None
            revision = await bump(db, KIND, row["tenant"])
            await db.execute(update(ListRow).where(ours).values(revision=revision))
            return revision

    async def of(self, tenant: str, server: str) -> Listed | None:
        asked = select(ListRow).where(ListRow.tenant == tenant, ListRow.server == server)
        async with self._engine.connect() as db:
            row = (await db.execute(asked)).one_or_none()
        return _listed(row) if row is not None else None

    async def all(self, tenant: str, after: int = 0) -> Mapping[str, Listed]:
        """Those that have changed after a revision, by server."""
        asked = select(ListRow).where(ListRow.tenant == tenant, ListRow.revision > after)
        async with self._engine.connect() as db:
            rows = (await db.execute(asked)).all()
        return {row.server: _listed(row) for row in rows}


def _listed(row: Row[Any]) -> Listed:
    era, agreement, lists = msgspec.json.decode(row.body)
    return Listed(row.identity, era, agreement, lists, row.fence, row.revision)
