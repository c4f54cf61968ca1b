"""What changed, and when: the one question that every node asks all the time.

Whoever changes what others must know of takes the next revision in the same transaction, at its end: all who change
something take turns from there to the commit, so nothing large is written after it, and no lock is waited for.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, BindParameter, bindparam, case, literal, select, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from toolway.cluster.record.engine import for_reading
from toolway.cluster.record.tables import ChangeRow, RevisionRow
from toolway.cluster.record.writing import put

_SEEN: BindParameter[int] = bindparam("seen", type_=BigInteger)
_AFTER = case((RevisionRow.last < _SEEN, literal(0)), else_=_SEEN)
# It is asked every second: putting it together each time costs as much as asking it.
_SINCE = select(RevisionRow.last, ChangeRow.kind, ChangeRow.tenant).outerjoin(ChangeRow, ChangeRow.revision > _AFTER)


class Changes:
    """Raises what SQLAlchemy raises."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = for_reading(engine)

    async def since(self, revision: int) -> tuple[int, frozenset[tuple[str, str]]]:
        """The newest revision, and what has changed since `revision`, as (kind, tenant). A record that is older than
        that was put back from a copy: then all may have changed."""
        async with self._engine.connect() as db:
            found = (await db.execute(_SINCE, {"seen": revision})).all()
        return found[0].last, frozenset((row.kind, row.tenant) for row in found if row.kind is not None)


async def bump(db: AsyncConnection, kind: str, tenant: str) -> int:
    """The revision of a change of this kind, in the transaction that makes it."""
    revision = await next_revision(db)
    await note(db, kind, tenant, revision)
    return revision


async def announce(singly: AsyncEngine, kind: str, tenant: str) -> None:
    """Say that something of this kind has changed, after it has; `singly` is an engine for single statements. Where the
    database can do it in one, whoever is slow holds up nobody."""
    async with singly.begin() as db:
        if db.dialect.name != "postgresql":
            await bump(db, kind, tenant)
            return
        taken = update(RevisionRow).values(last=RevisionRow.last + 1).returning(RevisionRow.last).cte("taken")
        change = select(literal(kind), literal(tenant), taken.c.last)
        told = postgresql.insert(ChangeRow).from_select(["kind", "tenant", "revision"], change)
        later = {"revision": told.excluded.revision}
        await db.execute(told.on_conflict_do_update(index_elements=["kind", "tenant"], set_=later))


async def next_revision(db: AsyncConnection) -> int:
    taken = await db.execute(update(RevisionRow).values(last=RevisionRow.last + 1).returning(RevisionRow.last))
    return taken.scalar_one()


async def note(db: AsyncConnection, kind: str, tenant: str, revision: int) -> None:
    """Say that something of this kind changed with a revision that the transaction has taken."""
    await put(db, ChangeRow, {"kind": kind, "tenant": tenant, "revision": revision})
