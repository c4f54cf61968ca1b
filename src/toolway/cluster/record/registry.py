"""The configuration of a tenant: its servers and what else its file says. Sealed, because entries may hold secrets.

A change is one transaction: all of a file is taken or nothing. It is prepared by what was there before, without a lock;
if somebody else was faster, it is prepared anew. What is heavy is written before the revision is taken, as revision 0,
which nobody else sees.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, and_, delete, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from toolway.cluster.passes import Sealer
from toolway.cluster.record.changes import bump
from toolway.cluster.record.clock import seconds_now
from toolway.cluster.record.entries import Configured, Difference, Entry, configured, difference, wish_of
from toolway.cluster.record.envelopes import Envelopes, Unsealable
from toolway.cluster.record.tables import RemovedRow, ServerRow, TakenRow, TenantRow
from toolway.cluster.record.wishes import Wish, declare
from toolway.cluster.record.writing import insert_once, put, put_all
from toolway.model import Json

KIND: Final = "registry"
TRIES: Final = 10  # by those who change the same at once
AT_ONCE: Final = 500  # rows of one statement that writes
PAGE: Final = 5000  # and of one that reads
TOLD: Final = 20  # entries that do not open
LONGEST: Final = 30.0  # seconds of one statement, where thousands of servers change at once
REMEMBERED: Final = 1000  # files that were taken once
REMOVED_KEPT: Final = 7 * 86_400.0  # seconds for which a server that is no more is told of

T = TypeVar("T")
log = logging.getLogger("toolway.cluster")


class TooMany(Exception):
    """Others change the configuration of this tenant all the time."""


class Registry:
    """Raises `Unsealable`, and what SQLAlchemy raises."""

    def __init__(self, engine: AsyncEngine, sealer: Sealer) -> None:
        self._engine = engine
        self._whole = engine.execution_options(isolation_level="REPEATABLE READ") if _is_server(engine) else engine
        self._envelopes = Envelopes(sealer)

    # -- reading ------------------------------------------------------------------------------------------------------

    async def document(self, tenant: str) -> tuple[int, Json] | None:
        """The revision, and all that is configured, as a file has it; None where nothing ever was."""
        revision, found = await self._read(tenant)
        return (revision, found.document()) if revision else None

    async def settings(self, tenant: str) -> Json | None:
        """What is configured beside the servers; None where nothing ever was."""
        async with self._engine.connect() as db:
            head = await self._head(db, tenant)
        return self._settings(tenant, head.settings) if head is not None and head.revision else None

    async def since(self, tenant: str, revision: int) -> tuple[int, Difference]:
        """The newest revision and what has changed since another, for those who have seen that one within a week."""
        async with self._whole.connect() as db:
            head = await self._head(db, tenant)
            asked = select(ServerRow).where(ServerRow.tenant == tenant, ServerRow.revision > revision)
            rows = (await db.execute(asked)).all()
            gone = select(RemovedRow.name).where(RemovedRow.tenant == tenant, RemovedRow.revision > revision)
            removed = frozenset((await db.execute(gone)).scalars())
        entries = await asyncio.to_thread(self._opened, tenant, rows)
        settings = self._settings(tenant, head.settings) if head is not None else {}
        return (head.revision if head is not None else 0), Difference(entries, removed, settings)

    # -- changing -----------------------------------------------------------------------------------------------------

    async def take(self, tenant: str, document: Json, digest: str, *, force: bool = False) -> bool:
        """Make all that is configured what a file says, unless that very file was taken before: an old one that comes
        back with a node that was away must not undo what came after it. Whether it was taken."""
        wanted = configured(document)
        for _ in range(TRIES):
            before, there = await self._read(tenant)
            if not force and await self._was_taken(tenant, digest):  # after reading: what comes later is noticed
                return False
            if await self._change(tenant, before, difference(there, wanted), digest):
                return True
        raise TooMany

    async def put(self, tenant: str, name: str, entry: Any) -> int:
        """Add or replace a server. The revision of the change."""
        return await self._edit(tenant, Difference({name: Entry(name, entry)}, frozenset(), None))

    async def remove(self, tenant: str, name: str) -> bool:
        """Whether there was such a server."""
        _, there = await self._read(tenant)
        if name not in there.entries:
            return False
        await self._edit(tenant, Difference({}, frozenset({name}), None))
        return True

    async def _edit(self, tenant: str, edit: Difference) -> int:
        for _ in range(TRIES):
            async with self._engine.connect() as db:
                head = await self._head(db, tenant)
            if revision := await self._change(tenant, head.revision if head is not None else 0, edit, None):
                return revision
        raise TooMany

    async def _change(self, tenant: str, before: int, change: Difference, digest: str | None) -> int:
        """The revision of the change; 0 where somebody else has changed something since `before`."""
        rows = await asyncio.to_thread(self._sealed, tenant, change.entries)
        async with self._engine.begin() as db:
            if not await _is_still(db, tenant, before):
                return 0
            if _is_server(self._engine) and len(change) > AT_ONCE:
                await _take_time(db)
            await self._write(db, tenant, rows, change)
            revision = before or 1
            if change or not before:
                revision = await bump(db, KIND, tenant)
                await _stamp(db, tenant, revision)
            if digest is not None:
                await _remember(db, tenant, digest, revision)
            return revision

    async def _write(self, db: AsyncConnection, tenant: str, rows: Sequence[Json], change: Difference) -> None:
        for some in _portions(rows):
            await put_all(db, ServerRow, some)
            await db.execute(delete(RemovedRow).where(_are(RemovedRow, tenant, [row["name"] for row in some])))
        gone = {"tenant": tenant, "revision": 0, "removed_at": seconds_now()}
        for names in _portions(sorted(change.removed)):
            await put_all(db, RemovedRow, [{**gone, "name": name} for name in names])
            await db.execute(delete(ServerRow).where(_are(ServerRow, tenant, names)))
        wishes = {name: wish_of(name, entry.value, os.environ) for name, entry in change.entries.items()}
        await declare(db, tenant, wishes | dict.fromkeys(change.removed, Wish(instances=0)))
        if change.settings is not None:
            sealed = self._envelopes.seal(change.settings, "settings", tenant) if change.settings else ""
            await db.execute(update(TenantRow).where(TenantRow.tenant == tenant).values(settings=sealed))

    # -- sealing ------------------------------------------------------------------------------------------------------

    def _sealed(self, tenant: str, entries: Mapping[str, Entry]) -> list[Json]:
        return [
            {
                "tenant": tenant,
                "name": name,
                "definition": {"sealed": self._envelopes.seal([entry.written, entry.value], "server", tenant, name)},
                "revision": 0,
            }
            for name, entry in entries.items()
        ]

    def _opened(self, tenant: str, rows: Sequence[Any]) -> dict[str, Entry]:
        """An entry that does not open hides no other; where none does, the key is another one. Raises `Unsealable`."""
        found: dict[str, Entry] = {}
        troubles: list[Unsealable] = []
        for row in rows:
            try:
                written, value = self._envelopes.open(row.definition["sealed"], "server", tenant, row.name)
                found[row.name] = Entry(written, value)
            except Unsealable as exc:
                troubles.append(exc)
        if troubles and not found:
            raise troubles[0]
        for each in troubles[:TOLD]:
            log.error("%s", each)
        return found

    def _settings(self, tenant: str, sealed: str) -> Json:
        found: Json = self._envelopes.open(sealed, "settings", tenant) if sealed else {}
        return found

    # -- rows ---------------------------------------------------------------------------------------------------------

    async def _read(self, tenant: str) -> tuple[int, Configured]:
        async with self._whole.connect() as db:
            head = await self._head(db, tenant)
            if head is None:
                return 0, Configured({}, {})
            rows: list[Any] = []
            while page := await _page(db, tenant, rows[-1].name if rows else ""):
                rows += page
        entries = await asyncio.to_thread(self._opened, tenant, rows)
        return head.revision, Configured(entries, self._settings(tenant, head.settings))

    async def _head(self, db: AsyncConnection, tenant: str) -> Any:
        return (await db.execute(select(TenantRow).where(TenantRow.tenant == tenant))).one_or_none()

    async def _was_taken(self, tenant: str, digest: str) -> bool:
        asked = select(TakenRow.revision).where(TakenRow.tenant == tenant, TakenRow.digest == digest)
        async with self._engine.connect() as db:
            return (await db.execute(asked)).first() is not None


def _is_server(engine: AsyncEngine) -> bool:
    """What is read in several statements is of one moment in a file anyway."""
    return engine.dialect.name == "postgresql"


async def _take_time(db: AsyncConnection) -> None:
    """For much at once. The database does not know yet how much there is, and would look through all of it for every
    few hundred rows."""
    await db.execute(text(f"SET LOCAL statement_timeout = {int(LONGEST * 1000)}"))
    await db.execute(text("SET LOCAL enable_seqscan = off"))


async def _page(db: AsyncConnection, tenant: str, after: str) -> Sequence[Any]:
    """Some servers, in the order of their names: no statement takes long."""
    asked = select(ServerRow).where(ServerRow.tenant == tenant, ServerRow.name > after)
    return (await db.execute(asked.order_by(ServerRow.name).limit(PAGE))).all()


async def _is_still(db: AsyncConnection, tenant: str, revision: int) -> bool:
    """Whether nobody has changed anything since; nobody does from here to the end of the transaction."""
    await insert_once(db, TenantRow, {"tenant": tenant, "settings": "", "revision": 0})
    asked = select(TenantRow.revision).where(TenantRow.tenant == tenant).with_for_update()
    return (await db.execute(asked)).scalar_one() == revision


async def _stamp(db: AsyncConnection, tenant: str, revision: int) -> None:
    """That this changed with it; what was removed long ago is forgotten on the way."""
    old = RemovedRow.removed_at < seconds_now() - REMOVED_KEPT
    await db.execute(delete(RemovedRow).where(RemovedRow.tenant == tenant, old))
    await db.execute(update(TenantRow).where(TenantRow.tenant == tenant).values(revision=revision))
    for table in (ServerRow, RemovedRow):
        await db.execute(update(table).where(table.tenant == tenant, table.revision == 0).values(revision=revision))


async def _remember(db: AsyncConnection, tenant: str, digest: str, revision: int) -> None:
    """That a file was taken; what was taken long ago is forgotten on the way."""
    await put(db, TakenRow, {"tenant": tenant, "digest": digest, "revision": revision})
    newest = select(TakenRow.revision).where(TakenRow.tenant == tenant).order_by(TakenRow.revision.desc())
    last = (await db.execute(newest.offset(REMEMBERED).limit(1))).scalar_one_or_none()
    if last is not None:
        await db.execute(delete(TakenRow).where(TakenRow.tenant == tenant, TakenRow.revision <= last))


def _are(table: type[ServerRow] | type[RemovedRow], tenant: str, names: Sequence[str]) -> ColumnElement[bool]:
    return and_(table.tenant == tenant, table.name.in_(names))


def _portions(all: Sequence[T]) -> Iterator[Sequence[T]]:
    return (all[start : start + AT_ONCE] for start in range(0, len(all), AT_ONCE))
