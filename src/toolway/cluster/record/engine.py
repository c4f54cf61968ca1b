"""The way to the database: a small pool, short patience, and tables of the newest form.

A node that is stopped in the middle of something must not hold up the others, so the database ends what idles in a
transaction, before those give up who wait for its locks. What the record has acknowledged is on disk there.
"""

from __future__ import annotations

import math
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Dialect, event, make_url, text
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from toolway.errors import ConfigError

POOL: Final = 5  # connections of one node
PATIENCE: Final = 2.0  # seconds for a connection, a statement, a lock
ASKED_AFTER: Final = 1.0  # seconds after which a connection is asked whether it is still there
STOPPED: Final = 1.2  # seconds that a transaction may wait for its node
#: A database that is gone without a word is noticed: what was sent must be received, and a silent end is asked.
_GONE: Final = {
    "tcp_user_timeout": int(PATIENCE * 1000),
    "keepalives_idle": 1,
    "keepalives_interval": 1,
    "keepalives_count": 2,
}
#: Whatever is stronger is the operator's, and stays.
_DURABLE: Final = (
    "SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') IN ('off', 'local')"
)
_MIGRATIONS: Final = Path(__file__).parent / "migrations"
_UPGRADE_LOCK: Final = 0x746F6F6C776179  # all nodes that start at once use this number, and take turns


def open_engine(url: str) -> AsyncEngine:
    """`postgresql://…` or `sqlite:///file`. Nothing is connected yet."""
    target = make_url(url)
    if target.get_backend_name() == "sqlite":
        engine = create_async_engine(target.set(drivername="sqlite+aiosqlite"), connect_args={"timeout": PATIENCE})
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return engine
    limit, idle = int(PATIENCE * 1000), int(STOPPED * 1000)
    settings = {
        "statement_timeout": limit,
        "lock_timeout": limit,
        "idle_in_transaction_session_timeout": idle,
        # A plan for any parameters compares each row with each of a thousand names; one for these looks them up.
        "plan_cache_mode": "force_custom_plan",
    }
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    engine = create_async_engine(
        target.set(drivername="postgresql+psycopg"),
        pool_size=POOL,
        max_overflow=0,
        pool_timeout=PATIENCE,
        connect_args={"connect_timeout": int(PATIENCE), "options": options, **_GONE},
    )
    event.listen(engine.sync_engine, "connect", _prepare_postgresql)
    event.listen(engine.sync_engine, "checkin", _remember_use)
    event.listen(engine.sync_engine, "checkout", partial(_ask_if_idle, engine.dialect))
    return engine


def for_reading(engine: AsyncEngine) -> AsyncEngine:
    """The same connections, for questions of one statement: they need no transaction around them, which costs two more
    round trips."""
    single = engine.dialect.name == "postgresql"
    return engine.execution_options(isolation_level="AUTOCOMMIT") if single else engine


async def upgrade(engine: AsyncEngine) -> None:
    """Bring the tables to the form that this version knows, or leave them where a newer version has been. Several nodes
    may do so at once. Raises `ConfigError` where they are too new for this version."""
    async with engine.begin() as db:
        if engine.dialect.name == "postgresql":
            await db.execute(text("SET LOCAL statement_timeout = 0"))  # others upgrade first, and that may take long
            await db.execute(text("SET LOCAL lock_timeout = 0"))
            await db.execute(text(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK})"))
        await db.run_sync(_to_newest)


def _to_newest(db: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = db
    scripts = ScriptDirectory.from_config(config)
    found, newest = MigrationContext.configure(db).get_current_revision(), scripts.get_current_head() or ""
    if found is None or any(script.revision == found for script in scripts.walk_revisions()):
        command.upgrade(config, "head")
    elif not _is_usable(found, newest):
        raise ConfigError(
            "the database of the cluster was changed by a newer Toolway, and this one cannot use it",
            evidence=f"its form is {found}; this version knows {newest}",
            fix="install the version that the other gateways have",
            code="E-RECORD-NEWER",
        )


def _is_usable(found: str, newest: str) -> bool:
    """Whether a form that came after this version only adds to what it knows: then nodes of both versions work side by
    side, as they do while a cluster is upgraded. A change that takes something away begins a new hundred."""
    return found.isdigit() and int(found) > int(newest) and int(found) // 100 == int(newest) // 100


def _prepare_postgresql(connection: Any, record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(_DURABLE)
    cursor.close()
    connection.commit()


def _remember_use(connection: Any, record: Any) -> None:
    record.info["used"] = time.monotonic()


def _ask_if_idle(dialect: Dialect, connection: Any, record: Any, proxy: Any) -> None:
    """As the pool can do by itself before every use, which costs every statement a second round trip. Whoever is told
    that a connection is gone has another one, or says so."""
    if time.monotonic() - record.info.get("used", math.inf) > ASKED_AFTER:
        try:
            alive = dialect.do_ping(connection)
        except dialect.loaded_dbapi.Error:
            alive = False
        if not alive:
            raise DisconnectionError


def _prepare_sqlite(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # transactions begin where we say so
    for pragma in ("foreign_keys = ON", "journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    """As a writer from the first statement on: one who reads first and then writes cannot wait for another writer."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")
