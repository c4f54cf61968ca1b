"""Tables of parts in the cluster database, where all nodes of a tenant share them (`part_api/database.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, bindparam, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.queries import QueryRunner
from toolway.part_api.database import DatabaseError, Row, Table, Transaction

QUERY_TIMEOUT_S: Final = 2.5  # seconds
_NOW: Final = {
    "postgresql": "extract(epoch from statement_timestamp())::double precision",
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
}
T = TypeVar("T")


class ClusterDatabase:
    """`Database` of parts for one tenant. A query that is late runs on; its caller gets `DatabaseError`."""

    def __init__(self, engine: AsyncEngine, tenant: str) -> None:
        self._engine = engine
        self._tenant = tenant
        self._run_query = QueryRunner(QUERY_TIMEOUT_S)

    async def run(self, work: Callable[[Transaction], T]) -> T:
        try:
            return await self._run_query(self._run(work))
        except (SQLAlchemyError, OSError, TimeoutError) as exc:
            raise DatabaseError(type(exc).__name__) from exc  # its text may contain the URL of the database

    async def close(self) -> None:
        """Wait for queries that still run. The database engine stays open: the node closes it."""
        await self._run_query.wait_pending()

    async def _run(self, work: Callable[[Transaction], T]) -> T:
        async with self._engine.begin() as db:
            return await db.run_sync(lambda connection: work(_ClusterTransaction(connection, self._tenant)))


class _ClusterTransaction:
    def __init__(self, db: Connection, tenant: str) -> None:
        self._db = db
        self._tenant = tenant
        self._now: float | None = None
        self._is_sqlite = db.dialect.name == "sqlite"

    @property
    def now(self) -> float:
        if self._now is None:
            self._now = float(self._db.execute(text(f"SELECT {_NOW[self._db.dialect.name]}")).scalar_one())
        return self._now

    def lock_rows(self, table: Table, keys: Sequence[str], empty: Row) -> Mapping[str, Row]:
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

    def put_rows(self, table: Table, rows: Mapping[str, Row]) -> None:
        updates = ", ".join(f'"{name}" = excluded."{name}"' for name in table.columns)
        values = [
            {"tenant": self._tenant, "key": key, **dict(zip(table.columns, row, strict=True))}
            for key, row in rows.items()
        ]
        self._db.execute(text(f'{_insert(table)} ON CONFLICT (tenant, "key") DO UPDATE SET {updates}'), values)

    def select(self, table: Table, condition: str, **values: Any) -> Mapping[str, Row]:
        query = text(f'SELECT "key", {_names(table)} FROM {table.name} WHERE tenant = :tenant AND ({condition})')
        return {row[0]: tuple(row[1:]) for row in self._db.execute(query, {**values, "tenant": self._tenant})}

    def delete(self, table: Table, condition: str, **values: Any) -> int:
        query = text(f"DELETE FROM {table.name} WHERE tenant = :tenant AND ({condition})")
        return self._db.execute(query, {**values, "tenant": self._tenant}).rowcount


def _names(table: Table) -> str:
    return ", ".join(f'"{name}"' for name in table.columns)


def _insert(table: Table) -> str:
    marks = ", ".join(f":{name}" for name in table.columns)
    return f'INSERT INTO {table.name} (tenant, "key", {_names(table)}) VALUES (:tenant, :key, {marks})'
