"""Tool, prompt and resource lists of each server, stored by its owner for all nodes.

An owner writes with its fence, a number that grows with each new owner, so a former owner that has not noticed its
loss yet cannot change anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Row, and_, exists, not_, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.db.changes import record_change
from toolway.cluster.db.engine import upsert, with_autocommit
from toolway.cluster.db.integrity import Integrity
from toolway.cluster.db.tables import ServerListsRow, ServerRow
from toolway.types import Era, Json

LISTS_CHANGE: Final = "lists"
LISTS_PER_PAGE: Final = 500  # lists per read statement


class StoredList(msgspec.Struct, frozen=True):
    """One server's tool, prompt and resource lists and protocol details, as stored by its owner."""

    identity: str  # identifies the server; lists of another server under the same name are not used
    era: Era
    agreement: Json  # capabilities, serverInfo, instructions, version: as the session has them
    lists: dict[str, list[Any]]  # by kind: tools, prompts, resources, templates
    fence: int = 0
    revision: int = 0


#: One statement, so a slow node does not block other nodes while it holds the revision row. The server row is
#: locked first, as a transaction that removes the server does; that one also takes its revision last.
_PUT_STATEMENT: Final = text(
    """
    WITH current_server AS (
        SELECT 1 FROM servers WHERE tenant = :tenant AND name = :server
        AND NOT EXISTS (SELECT 1 FROM lists WHERE tenant = :tenant AND server = :server AND fence > :fence)
        FOR KEY SHARE OF servers
    ),
    new_revision AS (
        UPDATE revisions SET last = last + 1 WHERE EXISTS (SELECT 1 FROM current_server) RETURNING last
    ),
    change AS (
        INSERT INTO changes (kind, tenant, revision) SELECT 'lists', :tenant, last FROM new_revision
        ON CONFLICT (kind, tenant) DO UPDATE SET revision = excluded.revision
    )
    INSERT INTO lists (tenant, server, fence, identity, body, mac, revision)
    SELECT :tenant, :server, :fence, :identity, :body, :mac, last FROM new_revision
    ON CONFLICT (tenant, server) DO UPDATE
    SET fence = excluded.fence, identity = excluded.identity, body = excluded.body, mac = excluded.mac,
        revision = excluded.revision
    WHERE lists.fence <= excluded.fence
    RETURNING revision
    """
)


class ListStore:
    """Stores the tool, prompt and resource lists of all servers.

    Lists without a node's signature are ignored, because models read them. Methods raise SQLAlchemy errors.
    """

    def __init__(self, engine: AsyncEngine, integrity: Integrity) -> None:
        self._engine = engine
        self._integrity = integrity
        self._refused: set[str] = set()  # servers whose stored lists have no valid signature
        self._autocommit = with_autocommit(engine)

    async def put(self, tenant: str, server: str, stored: StoredList) -> int | None:
        """Store a server's tool, prompt and resource lists.

        Return the revision of the change, or None if nothing changed. Nothing changes if the lists are the same, a
        later owner has written, or the server was removed.
        """
        body = msgspec.json.encode([stored.era, stored.agreement, stored.lists])
        row = {"tenant": tenant, "server": server, "fence": stored.fence, "identity": stored.identity, "body": body}
        row["mac"] = self._integrity.sign("lists", tenant, server, stored.identity, body)
        if await self._claim_if_identical(row):
            return None
        if self._engine.dialect.name == "postgresql":
            async with self._autocommit.begin() as db:
                return (await db.execute(_PUT_STATEMENT, row)).scalar_one_or_none()
        return await self._put_in_transaction(row)

    async def _claim_if_identical(self, row: Json) -> bool:
        """Set the fence (ownership number) of the stored lists if they equal those in `row`.

        Returns False, with nothing set, if they differ or a later owner wrote them.
        """
        names = ("tenant", "server", "identity", "body", "mac")
        same = and_(
            *(getattr(ServerListsRow, name) == row[name] for name in names), ServerListsRow.fence <= row["fence"]
        )
        async with self._autocommit.begin() as db:
            result = await db.execute(update(ServerListsRow).where(same).values(fence=row["fence"]))
            return result.rowcount > 0

    async def _put_in_transaction(self, row: Json) -> int | None:
        async with self._engine.begin() as db:
            exists_server = exists().where(ServerRow.tenant == row["tenant"], ServerRow.name == row["server"])
            exists_newer = exists().where(
                _where_server(row["tenant"], row["server"]), ServerListsRow.fence > row["fence"]
            )
            if (await db.execute(select(or_(not_(exists_server), exists_newer)))).scalar_one():
                return None
            revision = await record_change(db, LISTS_CHANGE, row["tenant"])
            await upsert(db, ServerListsRow, {**row, "revision": revision})
            return revision

    async def load(self, tenant: str, server: str) -> StoredList | None:
        async with self._autocommit.connect() as db:
            row = (await db.execute(select(ServerListsRow).where(_where_server(tenant, server)))).one_or_none()
        return self._report_unsigned([row], self._decode_signed([row])).get(server) if row is not None else None

    async def load_changed(self, tenant: str, after: int = 0) -> Mapping[str, StoredList]:
        """Return the lists that changed after revision `after`, by server name."""
        found: dict[str, StoredList] = {}
        while page := await self._fetch_page(tenant, after):
            found |= self._report_unsigned(page, await asyncio.to_thread(self._decode_signed, page))
            after = page[-1].revision
            if len(page) < LISTS_PER_PAGE:
                break
        return found

    def _decode_signed(self, rows: Sequence[Row[Any]]) -> dict[str, StoredList]:
        return {row.server: _to_stored_list(row) for row in rows if self._is_signed(row)}

    def _report_unsigned(self, rows: Sequence[Row[Any]], signed: dict[str, StoredList]) -> dict[str, StoredList]:
        self._refused = (self._refused - signed.keys()) | {row.server for row in rows if row.server not in signed}
        self._integrity.report("lists", sorted(self._refused))
        return signed

    def _is_signed(self, row: Row[Any]) -> bool:
        return self._integrity.is_signed(row.mac, "lists", row.tenant, row.server, row.identity, row.body)

    async def _fetch_page(self, tenant: str, after: int) -> Sequence[Row[Any]]:
        """Fetch one page of the rows of server lists after revision `after`; pages keep each SQL statement short.

        Every row has its own revision, so the last one of a page is where the next page begins.
        """
        query = select(ServerListsRow).where(ServerListsRow.tenant == tenant, ServerListsRow.revision > after)
        async with self._autocommit.connect() as db:
            return (await db.execute(query.order_by(ServerListsRow.revision).limit(LISTS_PER_PAGE))).all()


def _where_server(tenant: str, server: str) -> ColumnElement[bool]:
    return and_(ServerListsRow.tenant == tenant, ServerListsRow.server == server)


def _to_stored_list(row: Row[Any]) -> StoredList:
    era, agreement, lists = msgspec.json.decode(row.body)
    return StoredList(row.identity, era, agreement, lists, row.fence, row.revision)
