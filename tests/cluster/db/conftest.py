"""The same tests on SQLite and on a real PostgreSQL, which is started once. Tables are made once, and then copied."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.telemetry.postgres_server import binaries, postgres_server
from toolway.cluster.db.engine import open_engine, upgrade_schema
from toolway.cluster.db.tables import Base


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The address of a server, without a database."""
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    with postgres_server(programs) as address:
        yield address


@pytest.fixture(scope="session")
def made_in_postgresql(postgresql: str) -> str:
    """The address of a database with all tables. There is one for all tests: to make one takes 15 MB of writing."""
    address = _database(postgresql)
    asyncio.run(_make_tables(address))
    return address


@pytest.fixture(scope="session")
def made_in_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with all tables."""
    file = tmp_path_factory.mktemp("made") / "record"
    asyncio.run(_make_tables(f"sqlite:///{file}"))
    return file


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables, of the test's own."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'record'}"
    return _database(request.getfixturevalue("postgresql"))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database with all tables, and nothing in them."""
    if request.param == "sqlite":
        shutil.copyfile(request.getfixturevalue("made_in_sqlite"), tmp_path / "record")
        yield f"sqlite:///{tmp_path / 'record'}"
    else:
        address: str = request.getfixturevalue("made_in_postgresql")
        _clear(address)  # a connection of the test before may have written after it was cleared
        yield address
        _clear(address)


@pytest.fixture
async def engine(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncEngine]:
    with monkeypatch.context() as patched:  # on a busy machine a statement may take seconds, and the next one, too
        patched.setattr("toolway.cluster.db.engine.DATABASE_TIMEOUT_S", 30.0)
        patched.setattr("toolway.cluster.db.engine.IDLE_TRANSACTION_TIMEOUT_S", 20.0)
        engine = open_engine(url)
    yield engine
    await engine.dispose()


async def _make_tables(url: str) -> None:
    engine = open_engine(url)
    await upgrade_schema(engine)
    await engine.dispose()


def _database(server: str) -> str:
    """The address of a new database."""
    name = f"t{secrets.token_hex(8)}"
    with psycopg.connect(server, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name}")
    head, _, query = server.partition("?")
    return f"{head.rpartition('/')[0]}/{name}?{query}"


def _clear(address: str) -> None:
    """As the tables were made: empty, and counters at nothing."""
    counters = {"epochs", "revisions"}
    with psycopg.connect(address, autocommit=True) as db:
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        db.execute(f"{others} AND pid <> pg_backend_pid()")
        for table in reversed(Base.metadata.sorted_tables):
            db.execute(f"UPDATE {table.name} SET last = 0" if table.name in counters else f"DELETE FROM {table.name}")
