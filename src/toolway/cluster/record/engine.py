"""The way to the database: a small pool, short patience, and tables of the newest form.

A node that is stopped in the middle of something must not hold up the others, so the database ends what idles in a
transaction, and a statement that waits for a lock gives up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, event, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

POOL: Final = 5  # connections of one node
PATIENCE: Final = 2.0  # seconds for a connection, a statement, a lock
#: A database that is gone without a word is noticed: what was sent must be received, and a silent end is asked.
_GONE: Final = {
    "tcp_user_timeout": int(PATIENCE * 1000),
    "keepalives_idle": 1,
    "keepalives_interval": 1,
    "keepalives_count": 2,
}
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
    limit = int(PATIENCE * 1000)
    options = f"-c statement_timeout={limit} -c lock_timeout={limit} -c idle_in_transaction_session_timeout={limit}"
    return create_async_engine(
        target.set(drivername="postgresql+psycopg"),
        pool_size=POOL,
        max_overflow=0,
        pool_timeout=PATIENCE,
        pool_pre_ping=True,
        connect_args={"connect_timeout": int(PATIENCE), "options": options, **_GONE},
    )


def for_reading(engine: AsyncEngine) -> AsyncEngine:
    """The same connections, for questions of one statement: they need no transaction around them, which costs two more
    round trips."""
    single = engine.dialect.name == "postgresql"
    return engine.execution_options(isolation_level="AUTOCOMMIT") if single else engine


async def upgrade(engine: AsyncEngine) -> None:
    """Bring the tables to the form that this version knows. Several nodes may do so at once."""
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
    command.upgrade(config, "head")


def _prepare_sqlite(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # transactions begin where we say so
    for pragma in ("foreign_keys = ON", "journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    """As a writer from the first statement on: one who reads first and then writes cannot wait for another writer."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")
