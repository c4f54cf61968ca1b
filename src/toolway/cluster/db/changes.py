"""Revisions: numbers of changes in the database, which every node polls to find out whether it must reload.

A transaction that changes shared state takes the next revision at its end. From there to the commit it holds the
revision row, so writers are serialized. So nothing large is written and no lock is awaited after that.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, BindParameter, bindparam, case, literal, select, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from toolway.cluster.db.engine import upsert, with_autocommit
from toolway.cluster.db.tables import ChangeRow, RevisionRow

_SEEN_REVISION: BindParameter[int] = bindparam("seen", type_=BigInteger)
_AFTER_REVISION = case((RevisionRow.last < _SEEN_REVISION, literal(0)), else_=_SEEN_REVISION)
# Polled every second: building the statement each time costs as much as executing it.
_CHANGES_SINCE = select(RevisionRow.last, ChangeRow.kind, ChangeRow.tenant).outerjoin(
    ChangeRow, ChangeRow.revision > _AFTER_REVISION
)


class ChangeReader:
    """Reads which kinds of shared state changed since a revision.

    Methods raise SQLAlchemy errors.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = with_autocommit(engine)

    async def fetch_since(self, revision: int) -> tuple[int, frozenset[tuple[str, str]]]:
        """Return the newest revision and the (kind, tenant) pairs that changed after `revision`.

        If the newest revision is below `revision`, the database was restored from a backup: all pairs are returned.
        """
        async with self._engine.connect() as db:
            found = (await db.execute(_CHANGES_SINCE, {"seen": revision})).all()
        return found[0].last, frozenset((row.kind, row.tenant) for row in found if row.kind is not None)


async def record_change(db: AsyncConnection, kind: str, tenant: str) -> int:
    """Record a change of state of this `kind`, in the transaction that makes it. Return the revision of the change."""
    revision = await take_revision(db)
    await record_change_at(db, kind, tenant, revision)
    return revision


async def commit_change(autocommit: AsyncEngine, kind: str, tenant: str) -> None:
    """Record a change of state of this `kind` in its own transaction, after the change was committed.

    `autocommit` is an engine in autocommit mode. PostgreSQL needs one statement for it, so a slow node does not hold
    the revision row and block other nodes.
    """
    async with autocommit.begin() as db:
        if db.dialect.name != "postgresql":
            await record_change(db, kind, tenant)
            return
        new_revision = (
            update(RevisionRow).values(last=RevisionRow.last + 1).returning(RevisionRow.last).cte("new_revision")
        )
        change = select(literal(kind), literal(tenant), new_revision.c.last)
        statement = postgresql.insert(ChangeRow).from_select(["kind", "tenant", "revision"], change)
        updates = {"revision": statement.excluded.revision}
        await db.execute(statement.on_conflict_do_update(index_elements=["kind", "tenant"], set_=updates))


async def take_revision(db: AsyncConnection) -> int:
    result = await db.execute(update(RevisionRow).values(last=RevisionRow.last + 1).returning(RevisionRow.last))
    return result.scalar_one()


async def record_change_at(db: AsyncConnection, kind: str, tenant: str, revision: int) -> None:
    """Record a change of state of this `kind` under `revision`, which the transaction has already taken."""
    await upsert(db, ChangeRow, {"kind": kind, "tenant": tenant, "revision": revision})
