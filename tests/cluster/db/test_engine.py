"""The way to the database, and tables of another version."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.encryption_keys import an_integrity
from toolway.cluster.db.engine import open_engine, upgrade_schema, with_autocommit
from toolway.cluster.db.nodes import NodeInfo, NodeStore
from toolway.errors import ConfigError

pytestmark = pytest.mark.anyio


@pytest.fixture
async def engine(empty_url: str) -> AsyncIterator[AsyncEngine]:
    """An engine with its own database, whose tables are changed."""
    engine = open_engine(empty_url)
    await upgrade_schema(engine)
    yield engine
    await engine.dispose()


async def _form(engine: AsyncEngine, revision: str | None = None) -> str:
    async with engine.begin() as db:
        if revision is not None:
            await db.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
        return str((await db.execute(text("SELECT version_num FROM alembic_version"))).scalar_one())


async def test_older_gateway_works_with_tables_extended_by_a_newer_one(engine: AsyncEngine) -> None:
    async with engine.begin() as db:
        await db.execute(text("ALTER TABLE nodes ADD COLUMN mood TEXT NOT NULL DEFAULT 'good'"))
        await db.execute(text("CREATE TABLE dreams (id INTEGER PRIMARY KEY)"))
    await _form(engine, "0199")
    await upgrade_schema(engine)
    assert await _form(engine) == "0199"
    await NodeStore(engine, an_integrity()).join(NodeInfo("a", "", "1"))
    assert [seen.info.id for seen in await NodeStore(engine, an_integrity()).list_alive("default")] == ["a"]


@pytest.mark.parametrize(
    ("form", "code"),
    [("0200", "E-RECORD-NEWER"), ("of another program", "E-RECORD-NEWER"), ("0006", "E-RECORD-OLD")],
)
async def test_unsupported_schema_version_is_rejected_and_kept(engine: AsyncEngine, form: str, code: str) -> None:
    await _form(engine, form)
    with pytest.raises(ConfigError) as caught:
        await upgrade_schema(engine)
    assert caught.value.code == code and form in caught.value.detail
    assert await _form(engine) == form


@pytest.mark.parametrize(("usual", "wanted"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")])
async def test_synchronous_commit_is_always_on(empty_url: str, usual: str, wanted: str) -> None:
    if empty_url.startswith("sqlite"):
        pytest.skip("a file is always written so")
    engine = open_engine(empty_url)
    async with engine.begin() as db:
        name = (await db.execute(text("SELECT current_database()"))).scalar_one()
        await db.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = '{usual}'"))
    await engine.dispose()
    again = open_engine(empty_url)
    async with with_autocommit(again).connect() as db:
        assert (await db.execute(text("SHOW synchronous_commit"))).scalar_one() == wanted
    await again.dispose()


async def test_all_tables_exist(engine: AsyncEngine) -> None:
    async with engine.connect() as db:
        names = set(await db.run_sync(lambda sync: inspect(sync).get_table_names()))
    assert names >= {
        "nodes",
        "instances",
        "servers",
        "changes",
        "claims",
        "credentials",
        "lists",
        "api_keys",
        "tenants",
    }


async def test_upgrade_of_the_newest_schema_changes_nothing(engine: AsyncEngine) -> None:
    async with engine.begin() as db:
        assert (await db.execute(text("SELECT version_num FROM alembic_version"))).scalar_one() == "0106"
        await db.execute(text("INSERT INTO servers VALUES ('acme', 'files', '{}', 3)"))
        await db.execute(text("UPDATE epochs SET last = 7"))
    await upgrade_schema(engine)
    async with engine.connect() as db:
        servers = (await db.execute(text("SELECT tenant, name, revision FROM servers"))).all()
    assert [tuple(row) for row in servers] == [("acme", "files", 3)]
    assert await NodeStore(engine, an_integrity()).join(NodeInfo("b", "", "1")) == 8
