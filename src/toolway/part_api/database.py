"""A part's tables, written once for SQLite on one machine and for a cluster's database.

A transaction's work is a plain function. It runs in the file's thread, or in a greenlet of the cluster's database
engine, so the event loop never waits. Use only SQL that both databases understand, with `:name` for values.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from toolway.part_api.sqlite_file import SqliteFile, transaction

if TYPE_CHECKING:
    from toolway.part_api.part import Part

T = TypeVar("T")
Row = tuple[Any, ...]
MAX_KEYS: Final = 500  # of one statement


class DatabaseError(Exception):
    """Raised when a part's database cannot be read or written."""


class TablesTooNew(DatabaseError):
    """Raised when the tables were written by a newer version of the part."""


def upgrade_statements(part: Part, stored: int) -> list[str]:
    """Return the SQL that upgrades a part's tables from the stored version. Raises `TablesTooNew`."""
    if stored > part.table_version:
        known = part.table_version
        raise TablesTooNew(f"the tables of the part {part.name} have version {stored}; this version knows {known}")
    return [each for version in range(stored, part.table_version) for each in part.upgrade_tables(version)]


class Table:
    """A table of rows, each found by a text key. `columns` maps names to SQL types: TEXT, BIGINT, DOUBLE, or BLOB.

    In a cluster database, each row also belongs to a tenant. If `is_signed`, each row there has a MAC, and a sealed
    checksum covers the tenant's rows. Anyone without the cluster key who removes or restores a row makes the table
    unusable, and a row that they change is skipped. `toolway cluster trust` empties the table.
    """

    __slots__ = ("columns", "is_signed", "name")

    def __init__(self, name: str, columns: Mapping[str, str], *, is_signed: bool = False) -> None:
        self.name = name
        self.columns = columns
        self.is_signed = is_signed

    def create_sql(self) -> str:
        """Return the statement that creates the table in SQLite."""
        columns = ", ".join(f'"{name}" {_SQLITE_TYPES[type_]} NOT NULL' for name, type_ in self.columns.items())
        return f'CREATE TABLE IF NOT EXISTS {self.name} ("key" TEXT PRIMARY KEY, {columns}) WITHOUT ROWID'


_SQLITE_TYPES: Final = {"TEXT": "TEXT", "BIGINT": "INTEGER", "DOUBLE": "REAL", "BLOB": "BLOB"}


class Transaction(Protocol):
    """One transaction. Other processes see all of its changes or none, and an exception rolls it back."""

    @property
    def now(self) -> float:
        """Seconds since 1970, by the clock that all processes share."""
        ...

    def lock_rows(self, table: Table, keys: Sequence[str], empty: Row) -> Mapping[str, Row]:
        """Lock the rows with these keys, and return their column values by key.

        Another process that locks the same rows waits until this transaction ends. A missing row has the values in
        `empty`.
        """
        ...

    def put_rows(self, table: Table, rows: Mapping[str, Row]) -> None:
        """Store rows by key, replacing existing ones."""
        ...

    def select(self, table: Table, condition: str, **values: Any) -> Mapping[str, Row]:
        """Return the rows that match an SQL condition on the columns, by key.

        In a signed table, rows that were changed without the cluster key are skipped and logged.
        """
        ...

    def count(self, table: Table, condition: str, **values: Any) -> int:
        """Count the rows that match an SQL condition, including rows that `select` skips."""
        ...

    def delete(self, table: Table, condition: str, **values: Any) -> int:
        """Delete the rows that match an SQL condition, and return how many there were."""
        ...


class Database(Protocol):
    """Database with one part's tables. All processes of a gateway share it."""

    async def run(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in a transaction and return its result. Raises `DatabaseError` if that fails."""
        ...

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run `work`, which only reads, and return its result, without waiting for other transactions.

        Raises `DatabaseError` if that fails.
        """
        ...

    async def close(self) -> None: ...


class SqliteDatabase:
    """A part's database in one SQLite file, created or upgraded on first use."""

    def __init__(self, path: Path, part: Part, now: Callable[[], float] = time.time) -> None:
        self._part = part
        self._now = now
        self._file = SqliteFile(path, f"toolway-{path.stem}", self._prepare)

    async def run(self, work: Callable[[Transaction], T]) -> T:
        return await self._in_thread(lambda db: self._run(db, work))

    async def read(self, work: Callable[[Transaction], T]) -> T:
        return await self._in_thread(lambda db: work(_SqliteTransaction(db, self._now)))

    async def close(self) -> None:
        """Wait for pending writes, then close the file."""
        await self._file.close()

    async def _in_thread(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._file.run(work)
        except (sqlite3.Error, OSError) as exc:
            raise DatabaseError(f"{self._file.path}: {exc}") from exc

    def _run(self, db: sqlite3.Connection, work: Callable[[Transaction], T]) -> T:
        with transaction(db):  # it holds the write lock from its beginning
            return work(_SqliteTransaction(db, self._now))

    def _prepare(self, db: sqlite3.Connection) -> None:
        with transaction(db):
            stored = int(db.execute("PRAGMA user_version").fetchone()[0])  # 0: the file is new
            for statement in upgrade_statements(self._part, stored) if stored else ():
                db.execute(statement)
            for table in self._part.tables():
                db.execute(table.create_sql())
            db.execute(f"PRAGMA user_version = {self._part.table_version}")


class _SqliteTransaction:
    def __init__(self, db: sqlite3.Connection, now: Callable[[], float]) -> None:
        self._db = db
        self._now = now

    @property
    def now(self) -> float:
        return self._now()

    def lock_rows(self, table: Table, keys: Sequence[str], empty: Row) -> Mapping[str, Row]:
        query = f'SELECT {_names(table)} FROM {table.name} WHERE "key" = ?'
        return {key: self._db.execute(query, (key,)).fetchone() or empty for key in keys}

    def put_rows(self, table: Table, rows: Mapping[str, Row]) -> None:
        marks = ", ".join("?" * (1 + len(table.columns)))
        values = ((key, *row) for key, row in rows.items())
        self._db.executemany(f"INSERT OR REPLACE INTO {table.name} VALUES ({marks})", values)

    def select(self, table: Table, condition: str, **values: Any) -> Mapping[str, Row]:
        query = f'SELECT "key", {_names(table)} FROM {table.name} WHERE {condition}'
        return {row[0]: row[1:] for row in self._db.execute(query, values)}

    def count(self, table: Table, condition: str, **values: Any) -> int:
        query = f"SELECT count(*) FROM {table.name} WHERE {condition}"
        return int(self._db.execute(query, values).fetchone()[0])

    def delete(self, table: Table, condition: str, **values: Any) -> int:
        return self._db.execute(f"DELETE FROM {table.name} WHERE {condition}", values).rowcount


def _names(table: Table) -> str:
    return ", ".join(f'"{name}"' for name in table.columns)
