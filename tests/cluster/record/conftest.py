"""The same tests on SQLite and on a real PostgreSQL, which is started once."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.telemetry.postgres_server import binaries, postgres_server
from toolway.cluster.record.engine import open_engine, upgrade


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The address of a server, without a database."""
    programs = binaries()
    if programs is None:
        pytest.skip("there is no PostgreSQL here")
    with postgres_server(programs) as address:
        yield address


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'record'}"
    server: str = request.getfixturevalue("postgresql")
    name = f"t{secrets.token_hex(8)}"
    with psycopg.connect(server, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name}")
    head, _, query = server.partition("?")
    return f"{head.rpartition('/')[0]}/{name}?{query}"


@pytest.fixture
async def engine(url: str) -> AsyncIterator[AsyncEngine]:
    engine = open_engine(url)
    await upgrade(engine)
    yield engine
    await engine.dispose()
