"""What each server has, as the node that owns it heard it: so every node can list them without asking anybody.

An owner writes under its fence. Who was the owner before and does not know yet that it is over changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Row, and_, exists, not_, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.record.changes import bump
from toolway.cluster.record.engine import for_reading
from toolway.cluster.record.tables import ListRow, ServerRow
from toolway.cluster.record.writing import put
from toolway.model import Era, Json

KIND: Final = "lists"
PAGE: Final = 500  # lists that are read at once


class Listed(msgspec.Struct, frozen=True):
    """What is known of one server."""

    identity: str  # what makes it the same server: lists of another under its name are of no use
    era: Era
    agreement: Json  # capabilities, serverInfo, instructions, version: as the session keeps them
    lists: dict[str, list[Any]]  # by kind: tools, prompts, resources, templates
    fence: int = 0
    revision: int = 0


#: In one statement, so that nobody who is slow holds up the others while it has a number. The server is locked first,
#: as by whoever removes it, who takes his number last.
_PUT: Final = text(
    """
    WITH there AS (
        SELECT 1 FROM servers WHERE tenant = :tenant AND name = :server
        AND NOT EXISTS (SELECT 1 FROM lists WHERE tenant = :tenant AND server = :server AND fence > :fence)
        FOR KEY SHARE OF servers
    ),
    taken AS (UPDATE revisions SET last = last + 1 WHERE EXISTS (SELECT 1 FROM there) RETURNING last),
    told AS (
        INSERT INTO changes (kind, tenant, revision) SELECT 'lists', :tenant, last FROM taken
        ON CONFLICT (kind, tenant) DO UPDATE SET revision = excluded.revision
    )
    INSERT INTO lists (tenant, server, fence, identity, body, revision)
    SELECT :tenant, :server, :fence, :identity, :body, last FROM taken
    ON CONFLICT (tenant, server) DO UPDATE
    SET fence = excluded.fence, identity = excluded.identity, body = excluded.body, revision = excluded.revision
    WHERE lists.fence <= excluded.fence
    RETURNING revision
    """
)


class Lists:
    """Raises what SQLAlchemy raises."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._single = for_reading(engine)

    async def put(self, tenant: str, server: str, listed: Listed) -> int | None:
        """The revision of the change. None where nothing is new to others: it was so before, a later owner has
        written, or the server was removed."""
        body = msgspec.json.encode([listed.era, listed.agreement, listed.lists])
        row = {"tenant": tenant, "server": server, "fence": listed.fence, "identity": listed.identity, "body": body}
        if await self._is_so(row):
            return None
        if self._engine.dialect.name == "postgresql":
            async with self._single.begin() as db:
                return (await db.execute(_PUT, row)).scalar_one_or_none()
        return await self._put(row)

    async def _is_so(self, row: Json) -> bool:
        """Whether an owner before us has written the very same; from now on it is ours."""
        names = ("tenant", "server", "identity", "body")
        same = and_(*(getattr(ListRow, name) == row[name] for name in names), ListRow.fence <= row["fence"])
        async with self._single.begin() as db:
            done = await db.execute(update(ListRow).where(same).values(fence=row["fence"]))
            return done.rowcount > 0

    async def _put(self, row: Json) -> int | None:
        async with self._engine.begin() as db:
            there = exists().where(ServerRow.tenant == row["tenant"], ServerRow.name == row["server"])
            later = exists().where(_is(row["tenant"], row["server"]), ListRow.fence > row["fence"])
            if (await db.execute(select(or_(not_(there), later)))).scalar_one():
                return None
            revision = await bump(db, KIND, row["tenant"])
            await put(db, ListRow, {**row, "revision": revision})
            return revision

    async def of(self, tenant: str, server: str) -> Listed | None:
        async with self._single.connect() as db:
            row = (await db.execute(select(ListRow).where(_is(tenant, server)))).one_or_none()
        return _listed(row) if row is not None else None

    async def all(self, tenant: str, after: int = 0) -> Mapping[str, Listed]:
        """Those that have changed after a revision, by server."""
        found: dict[str, Listed] = {}
        while page := await self._page(tenant, after):
            found |= await asyncio.to_thread(_decoded, page)
            after = page[-1].revision
            if len(page) < PAGE:
                break
        return found

    async def _page(self, tenant: str, after: int) -> Sequence[Row[Any]]:
        """A few: no statement takes long, and no revision is that of two lists."""
        asked = select(ListRow).where(ListRow.tenant == tenant, ListRow.revision > after)
        async with self._single.connect() as db:
            return (await db.execute(asked.order_by(ListRow.revision).limit(PAGE))).all()


def _is(tenant: str, server: str) -> ColumnElement[bool]:
    return and_(ListRow.tenant == tenant, ListRow.server == server)


def _decoded(rows: Sequence[Row[Any]]) -> dict[str, Listed]:
    return {row.server: _listed(row) for row in rows}


def _listed(row: Row[Any]) -> Listed:
    era, agreement, lists = msgspec.json.decode(row.body)
    return Listed(row.identity, era, agreement, lists, row.fence, row.revision)
