"""Shared configuration of a tenant in the database: servers and settings, encrypted.

Entries may contain secrets. A change is one transaction: all of a file is imported or nothing. The change is computed
from the stored state without a lock, and computed again if another node changed that state first. Large writes happen
before the revision is taken. They use revision 0, which is not visible to other nodes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, and_, delete, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from toolway.cluster.db.changes import record_change
from toolway.cluster.db.engine import db_now, insert_if_absent, upsert, upsert_many, with_snapshot
from toolway.cluster.db.instances import DesiredInstances, apply_desired_instances
from toolway.cluster.db.integrity import Integrity, MarkedKind, TenantState
from toolway.cluster.db.tables import ImportedConfigRow, RemovedServerRow, ServerRow, TenantRow
from toolway.cluster.db.tokens import DecryptionError, EnvelopeCipher
from toolway.cluster.node_auth import CallTokenSealer
from toolway.config.field_reader import FieldReader
from toolway.config.loader import SERVER_MAP_KEYS, TOOLWAY_BLOCK, normalize_name
from toolway.config.server_entry import parse_cluster_settings
from toolway.errors import ConfigError
from toolway.types import Json

CONFIG_CHANGE: Final = "registry"
MAX_COMMIT_ATTEMPTS: Final = 10  # attempts against concurrent writers
ROWS_PER_WRITE: Final = 100  # rows per write statement: while a longer one is compiled, the transaction idles too long
SERVERS_PER_PAGE: Final = 5000  # rows per read statement
BULK_STATEMENT_TIMEOUT_S: Final = 30.0  # seconds per statement when thousands of servers change at once
MAX_IMPORTED_FILES: Final = 1000  # digests of imported files per tenant
KEEP_REMOVED_S: Final = 7 * 86_400.0  # seconds for which the tombstone of a removed server is kept

T = TypeVar("T")


class ConfigConflict(Exception):
    """Raised when other nodes changed the configuration during every attempt to write it."""


class ConfigStore:
    """Stores the configuration that all nodes of a tenant share.

    Methods raise `DecryptionError`, `StateRefused` and SQLAlchemy errors.
    """

    def __init__(self, engine: AsyncEngine, sealer: CallTokenSealer, integrity: Integrity) -> None:
        self._engine = engine
        self._snapshot_engine = with_snapshot(engine)
        self._envelopes = EnvelopeCipher(sealer)
        self._integrity = integrity

    # -- reading ------------------------------------------------------------------------------------------------------

    async def load(self, tenant: str) -> tuple[int, StoredConfig] | None:
        """Return a tenant's configuration and its revision number, or None if never configured."""
        revision, found = await self._load(tenant)
        return (revision, found) if revision else None

    async def load_settings(self, tenant: str) -> Json | None:
        """Return a tenant's settings without its servers, or None if never configured."""
        newest = self._integrity.newest(tenant)
        async with self._snapshot_engine.connect() as db:
            state = await self._integrity.read_state(db, tenant, newest)
            tenant_row = await self._fetch_tenant(db, tenant)
        self._check_settings(state, tenant, tenant_row)
        return (
            self._decrypt_settings(tenant, tenant_row.settings)
            if tenant_row is not None and tenant_row.revision
            else None
        )

    async def load_changes(self, tenant: str, revision: int, marks: Mapping[str, int]) -> ConfigChanges | None:
        """Return the configuration changes after `revision`, or None if everything must be reloaded.

        `marks` are keyed hashes of the server rows at `revision` (`integrity.py`); the result has those after the
        changes. All must be loaded again if the changes do not add up to the stored state: removed servers are
        remembered for a week only.
        """
        newest = self._integrity.newest(tenant)
        async with self._snapshot_engine.connect() as db:
            state = await self._integrity.read_state(db, tenant, newest)
            tenant_row = await self._fetch_tenant(db, tenant)
            query = select(ServerRow).where(ServerRow.tenant == tenant, ServerRow.revision > revision)
            rows = (await db.execute(query)).all()
            removed_query = select(RemovedServerRow.name).where(
                RemovedServerRow.tenant == tenant, RemovedServerRow.revision > revision
            )
            removed = frozenset((await db.execute(removed_query)).scalars())

        def apply() -> tuple[dict[str, ConfigEntry], dict[str, int], bool]:
            entries, changed = self._decrypt_entries(tenant, rows)
            new = {name: mark for name, mark in marks.items() if name not in removed} | changed
            return entries, new, self._integrity.adds_up(state, "servers", new.values())

        entries, new_marks, is_complete = await asyncio.to_thread(apply)
        if tenant_row is None or not is_complete:
            return None
        self._check_settings(state, tenant, tenant_row)
        settings = self._decrypt_settings(tenant, tenant_row.settings)
        return ConfigChanges(tenant_row.revision, ConfigDiff(entries, removed, settings), new_marks)

    # -- changing -----------------------------------------------------------------------------------------------------

    async def import_document(self, tenant: str, document: Json, digest: str, *, force: bool = False) -> bool:
        """Replace a tenant's configuration with the content of a file.

        Return False if a file with this digest was imported before: a node that returns after a long absence with an
        old file must not undo later changes. `force` skips the check. Raises `ConfigConflict` if other nodes keep
        changing it.
        """
        target = parse_document(document)
        for _ in range(MAX_COMMIT_ATTEMPTS):
            revision, current = await self._load(tenant)
            if not force and await self._was_imported(tenant, digest):  # after reading: a later import is a conflict
                return False
            if await self._try_commit(tenant, revision, diff_configs(current, target), digest):
                return True
        raise ConfigConflict

    async def put_server(self, tenant: str, name: str, entry: Any) -> int:
        """Add or replace a server in the shared configuration. Return the revision of the change."""
        return await self._commit_edit(tenant, ConfigDiff({name: ConfigEntry(name, entry)}, frozenset(), None))

    async def remove_server(self, tenant: str, name: str) -> bool:
        """Remove a server from the shared configuration. Return False if it does not exist."""
        _, current = await self._load(tenant)
        if name not in current.entries:
            return False
        await self._commit_edit(tenant, ConfigDiff({}, frozenset({name}), None))
        return True

    async def _commit_edit(self, tenant: str, edit: ConfigDiff) -> int:
        for _ in range(MAX_COMMIT_ATTEMPTS):
            async with self._engine.connect() as db:
                tenant_row = await self._fetch_tenant(db, tenant)
            if revision := await self._try_commit(
                tenant, tenant_row.revision if tenant_row is not None else 0, edit, None
            ):
                return revision
        raise ConfigConflict

    async def _try_commit(self, tenant: str, base_revision: int, change: ConfigDiff, digest: str | None) -> int:
        """Write a configuration change in one transaction and return its revision.

        Return 0 without writing anything if another writer changed the configuration since `base_revision`.
        """
        rows = await asyncio.to_thread(self._encrypt_entries, tenant, change.entries)
        async with self._engine.begin() as db:
            if not await _lock_if_unchanged(db, tenant, base_revision):
                return 0
            if _is_postgresql(self._engine) and len(change) > ROWS_PER_WRITE:
                await _relax_limits(db)
            marks = await self._write_rows(db, tenant, rows, change)
            revision = base_revision or 1
            if change or not base_revision:
                state = await self._integrity.lock_state(db, tenant)
                await self._integrity.write_state(db, tenant, state.changed(marks))
                revision = await record_change(db, CONFIG_CHANGE, tenant)
                await _set_revision(db, tenant, revision)
            if digest is not None:
                await _remember_import(db, tenant, digest, revision)
            return revision

    async def _write_rows(
        self, db: AsyncConnection, tenant: str, rows: Sequence[Json], change: ConfigDiff
    ) -> dict[MarkedKind, int]:
        """Write a configuration's changed servers, settings and instance counts to the database.

        Return, for each kind of row, the marks (keyed hashes) of the new rows minus the marks of replaced and removed
        ones.
        """
        difference: dict[MarkedKind, int] = {"servers": 0}
        for batch in _split_batches(rows):
            names = [row["name"] for row in batch]
            difference["servers"] -= await self._sum_marks(db, tenant, names)
            await upsert_many(db, ServerRow, batch)
            difference["servers"] += sum(self._mark(tenant, row["name"], row["definition"]) for row in batch)
            await db.execute(delete(RemovedServerRow).where(_where_names(RemovedServerRow, tenant, names)))
        tombstone = {"tenant": tenant, "revision": 0, "removed_at": db_now()}
        for removed in _split_batches(sorted(change.removed)):
            await upsert_many(db, RemovedServerRow, [{**tombstone, "name": name} for name in removed])
            difference["servers"] -= await self._sum_marks(db, tenant, removed)
            await db.execute(delete(ServerRow).where(_where_names(ServerRow, tenant, removed)))
        desired = {name: desired_instances(name, entry.value, os.environ) for name, entry in change.entries.items()}
        await apply_desired_instances(db, tenant, desired | dict.fromkeys(change.removed, DesiredInstances(count=0)))
        if change.settings is not None:
            sealed = self._envelopes.encrypt(change.settings, "settings", tenant) if change.settings else ""
            query = select(TenantRow.settings).where(TenantRow.tenant == tenant)
            replaced = (await db.execute(query)).scalar_one()
            difference["settings"] = self._mark_settings(tenant, sealed) - self._mark_settings(tenant, replaced)
            await db.execute(update(TenantRow).where(TenantRow.tenant == tenant).values(settings=sealed))
        return difference

    # -- marks --------------------------------------------------------------------------------------------------------

    async def _sum_marks(self, db: AsyncConnection, tenant: str, names: Sequence[str]) -> int:
        """Return the sum of the marks (keyed hashes) of the stored server rows that a change replaces or removes."""
        query = select(ServerRow.name, ServerRow.definition).where(_where_names(ServerRow, tenant, names))
        rows = (await db.execute(query)).all()
        return sum(self._mark(tenant, row.name, row.definition) for row in rows if self._opens(tenant, row))

    def _mark(self, tenant: str, name: str, definition: Json) -> int:
        return self._integrity.mark("servers", tenant, name, definition["sealed"])

    def _mark_settings(self, tenant: str, sealed: str) -> int:
        return self._integrity.mark("settings", tenant, "", sealed) if sealed else 0

    def _check_settings(self, state: TenantState, tenant: str, tenant_row: Any) -> None:
        sealed = tenant_row.settings if tenant_row is not None else ""
        self._integrity.check(state, tenant, "settings", [self._mark_settings(tenant, sealed)])

    # -- encryption ---------------------------------------------------------------------------------------------------

    def _encrypt_entries(self, tenant: str, entries: Mapping[str, ConfigEntry]) -> list[Json]:
        return [
            {
                "tenant": tenant,
                "name": name,
                "definition": {
                    "sealed": self._envelopes.encrypt([entry.written_name, entry.value], "server", tenant, name)
                },
                "revision": 0,
            }
            for name, entry in entries.items()
        ]

    def _decrypt_entries(self, tenant: str, rows: Sequence[Any]) -> tuple[dict[str, ConfigEntry], dict[str, int]]:
        """Return the decrypted server entries in these rows, and their marks (keyed hashes).

        Rows that no node has written are reported and left out.
        """
        found: dict[str, ConfigEntry] = {}
        marks: dict[str, int] = {}
        for row in rows:
            try:
                written_name, value = self._decrypt_entry(tenant, row)
            except DecryptionError:
                continue
            found[row.name] = ConfigEntry(written_name, value)
            marks[row.name] = self._mark(tenant, row.name, row.definition)
        return found, marks

    def _decrypt_entry(self, tenant: str, row: Any) -> Any:
        sealed = row.definition.get("sealed") if isinstance(row.definition, dict) else None
        return self._envelopes.decrypt(sealed if isinstance(sealed, str) else "", "server", tenant, row.name)

    def _opens(self, tenant: str, row: Any) -> bool:
        try:
            self._decrypt_entry(tenant, row)
        except DecryptionError:
            return False
        return True

    def _decrypt_settings(self, tenant: str, sealed: str) -> Json:
        found: Json = self._envelopes.decrypt(sealed, "settings", tenant) if sealed else {}
        return found

    # -- rows ---------------------------------------------------------------------------------------------------------

    async def _load(self, tenant: str) -> tuple[int, StoredConfig]:
        newest = self._integrity.newest(tenant)
        async with self._snapshot_engine.connect() as db:
            state = await self._integrity.read_state(db, tenant, newest)
            tenant_row = await self._fetch_tenant(db, tenant)
            rows: list[Any] = []
            while page := await _fetch_servers(db, tenant, rows[-1].name if rows else ""):
                rows += page
        entries, marks = await asyncio.to_thread(self._decrypt_entries, tenant, rows)
        self._integrity.report("servers", [row.name for row in rows if row.name not in marks])
        self._integrity.check(state, tenant, "servers", marks.values())
        self._check_settings(state, tenant, tenant_row)
        if tenant_row is None:
            return 0, StoredConfig({}, {}, {})
        return tenant_row.revision, StoredConfig(entries, self._decrypt_settings(tenant, tenant_row.settings), marks)

    async def _fetch_tenant(self, db: AsyncConnection, tenant: str) -> Any:
        return (await db.execute(select(TenantRow).where(TenantRow.tenant == tenant))).one_or_none()

    async def _was_imported(self, tenant: str, digest: str) -> bool:
        query = select(ImportedConfigRow.revision).where(
            ImportedConfigRow.tenant == tenant, ImportedConfigRow.digest == digest
        )
        async with self._engine.connect() as db:
            return (await db.execute(query)).first() is not None


def _is_postgresql(engine: AsyncEngine) -> bool:
    """Return True if the database is PostgreSQL, not SQLite."""
    return engine.dialect.name == "postgresql"


async def _relax_limits(db: AsyncConnection) -> None:
    """Raise the statement timeout and avoid sequential scans, for bulk changes.

    The planner's statistics are outdated here, and it would scan the table for every few hundred rows."""
    await db.execute(text(f"SET LOCAL statement_timeout = {int(BULK_STATEMENT_TIMEOUT_S * 1000)}"))
    await db.execute(text("SET LOCAL enable_seqscan = off"))


async def _fetch_servers(db: AsyncConnection, tenant: str, after: str) -> Sequence[Any]:
    """Fetch the page of servers with names after `after`, so no SQL statement takes long."""
    query = select(ServerRow).where(ServerRow.tenant == tenant, ServerRow.name > after)
    return (await db.execute(query.order_by(ServerRow.name).limit(SERVERS_PER_PAGE))).all()


async def _lock_if_unchanged(db: AsyncConnection, tenant: str, revision: int) -> bool:
    """Lock the configuration of a tenant until the transaction ends.

    Return True if its revision is still `revision`.
    """
    await insert_if_absent(db, TenantRow, {"tenant": tenant, "settings": "", "revision": 0})
    query = select(TenantRow.revision).where(TenantRow.tenant == tenant).with_for_update()
    return (await db.execute(query)).scalar_one() == revision


async def _set_revision(db: AsyncConnection, tenant: str, revision: int) -> None:
    """Give rows written by this transaction (revision 0) their final revision.

    Also delete old tombstones of removed servers.
    """
    is_old = RemovedServerRow.removed_at < db_now() - KEEP_REMOVED_S
    await db.execute(delete(RemovedServerRow).where(RemovedServerRow.tenant == tenant, is_old))
    await db.execute(update(TenantRow).where(TenantRow.tenant == tenant).values(revision=revision))
    for table in (ServerRow, RemovedServerRow):
        await db.execute(update(table).where(table.tenant == tenant, table.revision == 0).values(revision=revision))


async def _remember_import(db: AsyncConnection, tenant: str, digest: str, revision: int) -> None:
    """Record the digest of an imported config file, and drop the oldest over the limit."""
    await upsert(db, ImportedConfigRow, {"tenant": tenant, "digest": digest, "revision": revision})
    newest = (
        select(ImportedConfigRow.revision)
        .where(ImportedConfigRow.tenant == tenant)
        .order_by(ImportedConfigRow.revision.desc())
    )
    last = (await db.execute(newest.offset(MAX_IMPORTED_FILES).limit(1))).scalar_one_or_none()
    if last is not None:
        await db.execute(
            delete(ImportedConfigRow).where(ImportedConfigRow.tenant == tenant, ImportedConfigRow.revision <= last)
        )


def _where_names(
    table: type[ServerRow] | type[RemovedServerRow], tenant: str, names: Sequence[str]
) -> ColumnElement[bool]:
    return and_(table.tenant == tenant, table.name.in_(names))


def _split_batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + ROWS_PER_WRITE] for start in range(0, len(items), ROWS_PER_WRITE))


# -- stored configuration ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One server entry of the configuration, with its name as written in the file."""

    written_name: str
    value: Any


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """Complete configuration of a tenant: server entries and settings."""

    entries: Mapping[str, ConfigEntry]  # by normalized server name
    settings: Json  # the `toolway` block
    marks: Mapping[str, int]  # of the stored servers, by name (`integrity.py`)

    def to_document(self) -> Json:
        """Return the configuration as the JSON document of a configuration file."""
        servers = {entry.written_name: entry.value for entry in self.entries.values()}
        return {SERVER_MAP_KEYS[0]: servers} | ({TOOLWAY_BLOCK: self.settings} if self.settings else {})


@dataclass(frozen=True, slots=True)
class ConfigDiff:
    """Changes between two configurations of a tenant: new entries, removed servers, settings."""

    entries: Mapping[str, ConfigEntry]  # new or changed
    removed: frozenset[str]
    settings: Json | None  # None = unchanged

    def __len__(self) -> int:
        """Return the number of changed and removed servers, plus one if the settings changed."""
        return len(self.entries) + len(self.removed) + (self.settings is not None)


@dataclass(frozen=True, slots=True)
class ConfigChanges:
    """Configuration changes since a revision, and the marks (keyed hashes) of all server rows after them."""

    revision: int
    diff: ConfigDiff
    marks: Mapping[str, int]


def parse_document(document: Json) -> StoredConfig:
    """Parse a configuration document and assign each entry its server name.

    A name that is already valid wins over one that must be normalized. An entry whose normalized name is taken keeps
    its written name: it cannot be called, but the reader of the configuration reports it."""
    servers: Json = document.get(SERVER_MAP_KEYS[0]) or {}
    names = {written_name: written_name for written_name in servers if normalize_name(written_name) == written_name}
    used_names = set(names)
    for written_name in servers:
        if written_name not in names:
            name = normalize_name(written_name)
            names[written_name] = written_name if name in used_names else name
            used_names.add(names[written_name])
    entries = {names[written_name]: ConfigEntry(written_name, value) for written_name, value in servers.items()}
    return StoredConfig(entries, document.get(TOOLWAY_BLOCK) or {}, {})


def diff_configs(before: StoredConfig, after: StoredConfig) -> ConfigDiff:
    entries = {name: entry for name, entry in after.entries.items() if before.entries.get(name) != entry}
    removed = frozenset(before.entries.keys() - after.entries.keys())
    return ConfigDiff(entries, removed, after.settings if after.settings != before.settings else None)


def desired_instances(name: str, entry: Any, variables: Mapping[str, str]) -> DesiredInstances:
    """Return number, labels and cost of the instances that a server's entry asks for.

    An unusable entry gets zero instances.
    """
    if normalize_name(name) != name:
        return DesiredInstances(count=0)
    if isinstance(entry, str):
        return DesiredInstances(cost=0 if "://" in entry.split(maxsplit=1)[0] else 1)
    if not isinstance(entry, Mapping):
        return DesiredInstances(count=0)
    fields = FieldReader(entry, variables)
    try:
        settings = parse_cluster_settings(fields)
        enabled = fields.get_bool("enabled", True) and not fields.get_bool("disabled", False)
    except ConfigError:
        return DesiredInstances(count=0)
    return DesiredInstances(
        settings["instances"] if enabled else 0, settings["node_labels"], 1 if entry.get("command") else 0
    )
