"""Tables of parts in the cluster database, where all nodes of a tenant share them (`part_api/database.py`).

A part with signed tables changes them while the state row of the tenant is locked. So if two nodes change a row at
once, one sees the other's change. A table whose rows do not match that state is rejected (`integrity.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, bindparam, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from toolway.cluster.db.engine import with_snapshot
from toolway.cluster.db.integrity import Integrity, StateRefused, TenantState
from toolway.cluster.queries import QueryRunner
from toolway.part_api.database import DatabaseError, Row, Table, Transaction

QUERY_TIMEOUT_S: Final = 2.5  # seconds
_NOW: Final = {
    "postgresql": "extract(epoch from statement_timestamp())::double precision",
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
}
T = TypeVar("T")
_log = logging.getLogger("toolway.cluster")


class ClusterDatabase:
    """A part's `Database` for one tenant. A late query keeps running; its caller gets `DatabaseError`.

    `tables` are the part's tables. Signed ones need the `integrity` of the node.
    """

    def __init__(
        self, engine: AsyncEngine, tenant: str, tables: Sequence[Table] = (), integrity: Integrity | None = None
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._run_query = QueryRunner(QUERY_TIMEOUT_S)
        self._signed = [each for each in tables if each.is_signed]
        self._integrity = integrity

    async def run(self, work: Callable[[Transaction], T]) -> T:
        return await self._reporting(self._run, work)

    async def read(self, work: Callable[[Transaction], T]) -> T:
        return await self._reporting(self._read, work)

    async def close(self) -> None:
        """Wait for queries that still run. The database engine stays open: the node closes it."""
        await self._run_query.wait_pending()

    async def _reporting(self, run: Callable[..., Any], work: Callable[[Transaction], T]) -> T:
        try:
            result: T = await self._run_query(run(work))
            return result
        except (SQLAlchemyError, OSError, TimeoutError, StateRefused) as exc:
            # The text of a database error may contain its address.
            detail = str(exc) if isinstance(exc, StateRefused) else type(exc).__name__
            raise DatabaseError(f"the database of the cluster: {detail}") from exc

    async def _run(self, work: Callable[[Transaction], T]) -> T:
        async with self._engine.begin() as db:
            signatures = None
            if self._signed and self._integrity is not None:
                state = await self._integrity.lock_state(db, self._tenant)
                signatures = await self._check(db, self._integrity, state)
            result = await db.run_sync(lambda each: work(_ClusterTransaction(each, self._tenant, signatures)))
            if signatures is not None and signatures.differences:
                await signatures.integrity.write_state(db, self._tenant, signatures.new_state())
            return result

    async def _read(self, work: Callable[[Transaction], T]) -> T:
        integrity = self._integrity
        newest = integrity.newest(self._tenant) if integrity is not None else None
        async with with_snapshot(self._engine).connect() as db:
            signatures = None
            if self._signed and integrity is not None:
                state = await integrity.read_state(db, self._tenant, newest)
                signatures = await self._check(db, integrity, state)
            return await db.run_sync(lambda each: work(_ClusterTransaction(each, self._tenant, signatures)))

    async def _check(self, db: AsyncConnection, integrity: Integrity, state: TenantState) -> _Signatures:
        """Return the signatures of all signed rows. Raises `StateRefused` if they do not match the state."""
        found = _Signatures(integrity, self._tenant, state)
        for table in self._signed:
            query = text(f'SELECT "key", mac FROM {table.name} WHERE tenant = :tenant')
            macs = {row[0]: row[1] for row in (await db.execute(query, {"tenant": self._tenant})).all()}
            integrity.check(state, self._tenant, table.name, (found.mark(table, *each) for each in macs.items()))
            found.macs[table.name] = macs
        return found


class _Signatures:
    """MACs of a tenant's signed rows by table and key, and how a transaction changes their sums."""

    def __init__(self, integrity: Integrity, tenant: str, state: TenantState) -> None:
        self.integrity = integrity
        self._state = state
        self.macs: dict[str, dict[str, str]] = {}
        self.differences: dict[str, int] = {}
        self._tenant = tenant

    def new_state(self) -> TenantState:
        """Return the tenant's state after this transaction's changes."""
        return self._state.changed(self.differences)

    def mark(self, table: Table, key: str, mac: str) -> int:
        return self.integrity.mark(table.name, self._tenant, key, mac)

    def sign(self, table: Table, key: str, row: Row) -> str:
        """Return the MAC for a row that is about to be written."""
        self.remove(table, key)
        mac = self.macs[table.name][key] = self.integrity.sign(table.name, self._tenant, key, *row)
        self._add(table, self.mark(table, key, mac))
        return mac

    def remove(self, table: Table, key: str) -> None:
        """Note that a row is deleted or overwritten."""
        mac = self.macs[table.name].pop(key, None)
        if mac is not None:
            self._add(table, -self.mark(table, key, mac))

    def is_valid(self, table: Table, key: str, row: Row) -> bool:
        """Return True if a row is exactly as it was written with the cluster key."""
        return self.integrity.is_signed(self.macs[table.name].get(key), table.name, self._tenant, key, *row)

    def _add(self, table: Table, difference: int) -> None:
        self.differences[table.name] = self.differences.get(table.name, 0) + difference


class _ClusterTransaction:
    def __init__(self, db: Connection, tenant: str, signatures: _Signatures | None) -> None:
        self._db = db
        self._tenant = tenant
        self._signatures = signatures
        self._now: float | None = None
        self._is_sqlite = db.dialect.name == "sqlite"

    @property
    def now(self) -> float:
        if self._now is None:
            self._now = float(self._db.execute(text(f"SELECT {_NOW[self._db.dialect.name]}")).scalar_one())
        return self._now

    def lock_rows(self, table: Table, keys: Sequence[str], empty: Row) -> Mapping[str, Row]:
        if table.is_signed:
            return self._locked_signed(table, keys, empty)
        missing = [{"tenant": self._tenant, "key": key, **dict(zip(table.columns, empty, strict=True))} for key in keys]
        self._db.execute(text(f"{_insert(table)} ON CONFLICT DO NOTHING"), missing)  # a row to lock
        query = (
            f'SELECT "key", {_NOW[self._db.dialect.name]}, {_names(table)} FROM {table.name}'
            ' WHERE tenant = :tenant AND "key" IN :keys ORDER BY "key"'
        )
        locked = text(query if self._is_sqlite else f"{query} FOR UPDATE").bindparams(bindparam("keys", expanding=True))
        found: dict[str, Row] = {}
        for row in self._db.execute(locked, {"tenant": self._tenant, "keys": list(keys)}):
            self._now = float(row[1])
            found[row[0]] = tuple(row[2:])
        return found

    def _locked_signed(self, table: Table, keys: Sequence[str], empty: Row) -> Mapping[str, Row]:
        """Return signed rows, with the tenant's state locked so no other node uses them."""
        found: dict[str, Row] = {}
        for key in keys:
            rows = self.select(table, '"key" = :key', key=key)
            if not rows and key in self._macs(table):
                raise DatabaseError(f"a row of {table.name} was changed without the cluster key")
            found[key] = rows.get(key, empty)
        return found

    def put_rows(self, table: Table, rows: Mapping[str, Row]) -> None:
        names = _columns(table)
        updates = ", ".join(f'"{name}" = excluded."{name}"' for name in names)
        values = [
            {"tenant": self._tenant, "key": key, **dict(zip(names, self._with_mac(table, key, row), strict=True))}
            for key, row in rows.items()
        ]
        self._db.execute(text(f'{_insert(table)} ON CONFLICT (tenant, "key") DO UPDATE SET {updates}'), values)

    def select(self, table: Table, condition: str, **values: Any) -> Mapping[str, Row]:
        query = text(f'SELECT "key", {_names(table)} FROM {table.name} WHERE tenant = :tenant AND ({condition})')
        found = {row[0]: tuple(row[1:]) for row in self._db.execute(query, {**values, "tenant": self._tenant})}
        return {key: row for key, row in found.items() if self._is_valid(table, key, row)}

    def count(self, table: Table, condition: str, **values: Any) -> int:
        query = text(f"SELECT count(*) FROM {table.name} WHERE tenant = :tenant AND ({condition})")
        return int(self._db.execute(query, {**values, "tenant": self._tenant}).scalar_one())

    def delete(self, table: Table, condition: str, **values: Any) -> int:
        query = f"DELETE FROM {table.name} WHERE tenant = :tenant AND ({condition})"
        bound = {**values, "tenant": self._tenant}
        if not table.is_signed:
            return self._db.execute(text(query), bound).rowcount
        keys = self._db.execute(text(f'{query} RETURNING "key"'), bound).scalars().all()
        for key in keys:
            self._require_signatures(table).remove(table, key)
        return len(keys)

    # -- signed tables ------------------------------------------------------------------------------------------------

    def _with_mac(self, table: Table, key: str, row: Row) -> Row:
        return (*row, self._require_signatures(table).sign(table, key, row)) if table.is_signed else row

    def _is_valid(self, table: Table, key: str, row: Row) -> bool:
        if not table.is_signed or self._require_signatures(table).is_valid(table, key, row):
            return True
        _log.error("a row of %s is ignored: %r was changed without the cluster key", table.name, key[:40])
        return False

    def _macs(self, table: Table) -> Mapping[str, str]:
        return self._require_signatures(table).macs[table.name]

    def _require_signatures(self, table: Table) -> _Signatures:
        """Return the signatures of the signed tables. Raises `DatabaseError` if opened without them."""
        if self._signatures is None or table.name not in self._signatures.macs:
            raise DatabaseError(f"the rows of {table.name} cannot be verified")
        return self._signatures


def _columns(table: Table) -> list[str]:
    return [*table.columns, "mac"] if table.is_signed else [*table.columns]


def _names(table: Table) -> str:
    return ", ".join(f'"{name}"' for name in table.columns)


def _insert(table: Table) -> str:
    names = _columns(table)
    quoted, marks = ", ".join(f'"{name}"' for name in names), ", ".join(f":{name}" for name in names)
    return f'INSERT INTO {table.name} (tenant, "key", {quoted}) VALUES (:tenant, :key, {marks})'
