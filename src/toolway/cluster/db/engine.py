"""Database engine of a cluster node: connection pool, timeouts, schema upgrades, clock, upserts.

A stopped node must not block other nodes. So the database ends idle transactions before the waiters for their locks
time out. An acknowledged commit is on the database's disk.

A hostile or hanging database must not block a node forever either. The database enforces statement timeouts itself,
so each node has another one: it cuts connections that get no answer.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, LiteralString, TypeAlias

import msgspec
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Dialect, Double, event, insert, make_url, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement

from toolway._os import O_UNSHARED
from toolway.cluster.db.tables import Base, PartTablesRow, add_part_tables
from toolway.errors import ConfigError
from toolway.part_api import registry
from toolway.part_api.database import TablesTooNew, upgrade_statements

if TYPE_CHECKING:
    from psycopg import AsyncConnection as PsycopgConnection

    from toolway.part_api.part import Part

POOL_SIZE: Final = 5  # connections of one node
DATABASE_TIMEOUT_S: Final = 2.0  # seconds for a connection, a statement, a lock
ANSWER_TIMEOUT_S: Final = 15.0  # seconds for the answer to one statement, with all its rows, by our own clock
PAUSE_GRACE_S: Final = 5.0  # seconds more, to read an answer that arrived while this process did not run
UPGRADE_TIMEOUT_S: Final = 3600.0  # seconds for one statement of a schema upgrade
PING_AFTER_IDLE_S: Final = 1.0  # seconds of idling after which a pooled connection is pinged before use
IDLE_TRANSACTION_TIMEOUT_S: Final = 1.2  # seconds that a transaction may idle before the database ends it
#: Detect a database host that disappeared without closing: limit unacknowledged data, send keepalives.
_TCP_OPTIONS: Final = {
    "tcp_user_timeout": int(DATABASE_TIMEOUT_S * 1000),
    "keepalives_idle": 1,
    "keepalives_interval": 1,
    "keepalives_count": 2,
}
#: Stronger settings are your choice and are kept.
_REQUIRE_SYNC_COMMIT: Final = (
    "SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') IN ('off', 'local')"
)
_MIGRATIONS_DIR: Final = Path(__file__).parent / "migrations"
_UPGRADE_LOCK_ID: Final = 0x746F6F6C776179  # advisory lock id that serializes nodes that start at the same time

Columns: TypeAlias = Mapping[str, Any]


def open_engine(url: str) -> AsyncEngine:
    """Create the SQLAlchemy engine for `postgresql://…` or `sqlite:///file`.

    Does not connect yet.
    """
    target = make_url(url)
    if target.get_backend_name() == "sqlite":
        engine = create_async_engine(
            target.set(drivername="sqlite+aiosqlite"),
            connect_args={"timeout": DATABASE_TIMEOUT_S},
            json_deserializer=_decode_json,
        )
        event.listen(engine.sync_engine, "do_connect", partial(_make_private, Path(target.database or "")))
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return engine
    engine = create_async_engine(
        target.set(drivername="postgresql+psycopg"),
        pool_size=POOL_SIZE,
        max_overflow=0,
        pool_timeout=DATABASE_TIMEOUT_S,
        connect_args=postgresql_options(async_creator_fn=connection_class().connect),
        json_deserializer=_decode_json,
    )
    event.listen(engine.sync_engine, "connect", _prepare_postgresql)
    event.listen(engine.sync_engine, "checkin", _set_last_use)
    event.listen(engine.sync_engine, "checkout", partial(_ping_if_idle, engine.dialect))
    return engine


@cache
def connection_class() -> type[PsycopgConnection[Any]]:
    """Return the class of connections to PostgreSQL, which are cut if nothing is answered for `ANSWER_TIMEOUT_S`.

    A statement then fails with `psycopg.OperationalError`, as after any lost connection.
    """
    import psycopg  # here, because a cluster on SQLite does not need it

    class BoundedConnection(psycopg.AsyncConnection[Any]):
        answer_timeout_s = ANSWER_TIMEOUT_S

        async def wait(self, *args: Any, **options: Any) -> Any:
            loop = asyncio.get_running_loop()
            timers: list[asyncio.TimerHandle] = []

            def check() -> None:
                # After a pause of this process, the answer may be there, and is only not read yet.
                timers.append(loop.call_later(PAUSE_GRACE_S, self._cut))

            timers.append(loop.call_later(self.answer_timeout_s, check))
            try:
                return await super().wait(*args, **options)
            finally:
                for timer in timers:
                    timer.cancel()

        def _cut(self) -> None:
            """Cut the connection below psycopg. Even cancelling a query would wait for an answer."""
            with suppress(OSError, psycopg.Error), socket.socket(fileno=socket.dup(self.fileno())) as connection:
                connection.shutdown(socket.SHUT_RDWR)

    return BoundedConnection


def _decode_json(stored: str | bytes) -> Any:
    """Decode the value of a JSON column; None if it is not readable.

    PostgreSQL accepts JSON that decoders reject: numbers of any length, half a character, any depth. An error here
    would fail the whole query, with all its other rows.
    """
    try:
        return msgspec.json.decode(stored)
    except (msgspec.DecodeError, RecursionError):
        return None


def postgresql_options(**more: Any) -> dict[str, Any]:
    """Return the keyword arguments of a new PostgreSQL connection: time limits, TCP options, and those in `more`."""
    timeout_ms, idle_ms = int(DATABASE_TIMEOUT_S * 1000), int(IDLE_TRANSACTION_TIMEOUT_S * 1000)
    settings = {
        "statement_timeout": timeout_ms,
        "lock_timeout": timeout_ms,
        "idle_in_transaction_session_timeout": idle_ms,
        # A generic plan compares each row with each of a thousand names; a custom plan uses the index.
        "plan_cache_mode": "force_custom_plan",
    }
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return {"connect_timeout": int(DATABASE_TIMEOUT_S), "options": options, **_TCP_OPTIONS, **more}


def require_sync_commit() -> LiteralString:
    """Return the SQL statement after which every commit of a connection waits for the database's disk."""
    return _REQUIRE_SYNC_COMMIT


def with_autocommit(engine: AsyncEngine) -> AsyncEngine:
    """Return the engine in autocommit mode, which saves two round trips per single statement.

    SQLite has no such mode: its engine is returned unchanged.
    """
    has_autocommit = engine.dialect.name == "postgresql"
    return engine.execution_options(isolation_level="AUTOCOMMIT") if has_autocommit else engine


def with_snapshot(engine: AsyncEngine) -> AsyncEngine:
    """Return the engine in a mode in which all statements of a transaction see the same rows.

    SQLite always does so: its engine is returned unchanged.
    """
    has_levels = engine.dialect.name == "postgresql"
    return engine.execution_options(isolation_level="REPEATABLE READ") if has_levels else engine


def _prepare_postgresql(connection: Any, connection_record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(_REQUIRE_SYNC_COMMIT)
    cursor.close()
    connection.commit()


def _set_last_use(connection: Any, connection_record: Any) -> None:
    connection_record.info["used"] = time.monotonic()
    if connection is not None:
        vars(connection_record.driver_connection).pop("answer_timeout_s", None)  # set by `upgrade_locked`


def _ping_if_idle(dialect: Dialect, connection: Any, connection_record: Any, proxy: Any) -> None:
    """Ping a pooled connection before use if it was idle for `PING_AFTER_IDLE_S`.

    `pool_pre_ping` would add a round trip to every statement. Raises `DisconnectionError` if the connection is dead;
    the pool then replaces it.
    """
    if time.monotonic() - connection_record.info.get("used", math.inf) > PING_AFTER_IDLE_S:
        try:
            alive = dialect.do_ping(connection)
        except dialect.loaded_dbapi.Error:
            alive = False
        if not alive:
            raise DisconnectionError


def _make_private(file: Path, *connect_arguments: Any) -> None:
    """Create a SQLite database file that only its user can read, or fix the mode of an existing one.

    SQLite gives its `-wal` and `-shm` files the mode of the database. Raises `ConfigError` if that is not possible.

    A file that exists is not opened: closing it would end the locks of all connections of this process (POSIX), and
    another process would then delete the `-wal` file, with all that this node writes from then on.
    """
    with suppress(OSError):  # it exists; of other errors SQLite reports
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | O_UNSHARED, 0o600))
    try:
        for each in (file, file.with_name(f"{file.name}-wal"), file.with_name(f"{file.name}-shm")):
            if each.exists() and each.stat().st_mode & 0o077:
                each.chmod(0o600)
    except OSError as exc:
        raise ConfigError(
            f"cluster database is open to other users: {file}",
            detail=exc.strerror or str(exc),
            hint="use a file that belongs to this user: --database sqlite:///FILE",
            code="E-RECORD",
        ) from None


def _prepare_sqlite(connection: Any, connection_record: Any) -> None:
    connection.isolation_level = None  # the driver starts no transactions; `_begin_sqlite` does
    for pragma in ("foreign_keys = ON", "journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    """Begin every SQLite transaction as a writer: a reader could not wait for the write lock later."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")


# -- schema -----------------------------------------------------------------------------------------------------------


async def upgrade_schema(engine: AsyncEngine) -> None:
    """Upgrade the tables to this version's schema, or keep a newer compatible one.

    Several nodes may call this at once. Raises `ConfigError` if the schema is too new or too old for this version.
    """
    async with engine.begin() as db:
        await upgrade_locked(db)


async def upgrade_locked(db: AsyncConnection) -> None:
    """Upgrade the tables, and lock the schema until the transaction ends, so no other node upgrades it.

    The time limits of the transaction are removed, because an upgrade may take long. If the node stops in the middle of
    it, PostgreSQL ends the transaction and the lock after a minute.
    """
    if db.dialect.name == "postgresql":
        await db.execute(text("SET LOCAL statement_timeout = 0"))
        await db.execute(text("SET LOCAL lock_timeout = 0"))
        await db.execute(text("SET LOCAL idle_in_transaction_session_timeout = '60s'"))
        driver: Any = (await db.get_raw_connection()).driver_connection
        driver.answer_timeout_s = UPGRADE_TIMEOUT_S  # until the connection is back in the pool
        await db.execute(text(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK_ID})"))
    await db.run_sync(_run_migrations)


def _run_migrations(db: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS_DIR))
    config.attributes["connection"] = db
    scripts = ScriptDirectory.from_config(config)
    current, newest = MigrationContext.configure(db).get_current_revision(), scripts.get_current_head() or ""
    if current is None or any(script.revision == current for script in scripts.walk_revisions()):
        command.upgrade(config, "head")
    elif current.isdigit() and int(current) < int(newest):
        raise ConfigError(
            "cluster database schema is older than this version of Toolway supports",
            detail=f"schema {current}; this version has {newest}",
            hint="use an empty database, or the version of Toolway that wrote this one",
            code="E-RECORD-OLD",
        )
    elif not _is_compatible(current, newest):
        raise ConfigError(
            "cluster database schema is newer than this version of Toolway supports",
            detail=f"schema {current}; this version supports up to {newest}",
            hint="install the Toolway version that the other nodes run",
            code="E-RECORD-NEWER",
        )
    for part in registry.in_use():
        _prepare_part_tables(db, part)


def _prepare_part_tables(db: Connection, part: Part) -> None:
    """Upgrade a part's tables, and create missing ones. Raises `ConfigError` if they are too new."""
    tables = add_part_tables([part])
    if not tables:
        return
    is_part = PartTablesRow.part == part.name
    stored = db.execute(select(PartTablesRow.version).where(is_part)).scalar_one_or_none()
    try:
        statements = upgrade_statements(part, stored) if stored is not None else []
    except TablesTooNew as exc:
        raise ConfigError(
            f"cluster database: {exc}",
            hint="install the Toolway version that the other nodes run",
            code="E-RECORD-NEWER",
        ) from exc
    for statement in statements:
        db.execute(text(statement))
    Base.metadata.create_all(db, tables)
    if stored is None:
        db.execute(insert(PartTablesRow).values(part=part.name, version=part.table_version))
    elif statements or stored != part.table_version:
        db.execute(update(PartTablesRow).where(is_part).values(version=part.table_version))


def _is_compatible(current: str, newest: str) -> bool:
    """Return True if the schema `current` only adds to `newest`, the newest that this version knows.

    Then this version can use it, as in a rolling upgrade. A schema change that removes something starts a new hundred.
    """
    return current.isdigit() and int(current) > int(newest) and int(current) // 100 == int(newest) // 100


# -- database clock ---------------------------------------------------------------------------------------------------


class db_now(FunctionElement[float]):
    """Start time of the current SQL statement, in seconds since 1970 by the database clock.

    It is the only clock that all nodes share. Not the transaction start, which can be long ago. Not the current
    moment: a statement that waited for a lock sees other rows as of its start, and would treat a lease that was renewed
    in between as expired."""

    type = Double()
    inherit_cache = True
    name = "seconds_now"


@compiles(db_now, "postgresql")
def _compile_now_postgresql(element: db_now, compiler: Any, **options: Any) -> str:
    return "extract(epoch from statement_timestamp())::double precision"


@compiles(db_now, "sqlite")
def _compile_now_sqlite(element: db_now, compiler: Any, **options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


# -- upserts ----------------------------------------------------------------------------------------------------------


# SQLAlchemy constructs them differently for PostgreSQL and SQLite.


async def insert_if_absent(db: AsyncConnection, table: type[Base], row: Columns) -> bool:
    """Insert a row unless its primary key exists. Return True if the row was inserted."""
    dialect_insert = sqlite.insert if db.dialect.name == "sqlite" else postgresql.insert
    inserted = await db.execute(
        dialect_insert(table).values(row).on_conflict_do_nothing().returning(*_primary_key(table))
    )
    return inserted.first() is not None


async def upsert(db: AsyncConnection, table: type[Base], row: Columns) -> None:
    """Insert a row, or overwrite the row that has the same primary key."""
    await upsert_many(db, table, [row])


async def upsert_many(db: AsyncConnection, table: type[Base], rows: Sequence[Columns]) -> None:
    """Upsert several rows with the same columns in one statement: hundreds, not thousands."""
    keys = [column.name for column in _primary_key(table)]
    dialect_insert = sqlite.insert if db.dialect.name == "sqlite" else postgresql.insert
    statement = dialect_insert(table).values(rows)
    updates = {name: statement.excluded[name] for name in rows[0] if name not in keys}
    await db.execute(statement.on_conflict_do_update(index_elements=keys, set_=updates))


def _primary_key(table: type[Base]) -> list[Any]:
    return list(table.__table__.primary_key)
