"""The way to the database, and tables of another version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster import record
from toolway.cluster.record.engine import for_reading, open_engine, upgrade
from toolway.cluster.record.nodes import Card, Nodes
from toolway.errors import ConfigError

pytestmark = pytest.mark.anyio


@pytest.fixture
async def engine(empty_url: str) -> AsyncIterator[AsyncEngine]:
    """Of a database of its own, whose tables are changed."""
    engine = open_engine(empty_url)
    await upgrade(engine)
    yield engine
    await engine.dispose()


async def _form(engine: AsyncEngine, revision: str | None = None) -> str:
    async with engine.begin() as db:
        if revision is not None:
            await db.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
        return str((await db.execute(text("SELECT version_num FROM alembic_version"))).scalar_one())


async def test_an_older_gateway_uses_tables_that_a_newer_one_has_added_to(engine: AsyncEngine) -> None:
    async with engine.begin() as db:
        await db.execute(text("ALTER TABLE nodes ADD COLUMN mood TEXT NOT NULL DEFAULT 'good'"))
        await db.execute(text("CREATE TABLE dreams (id INTEGER PRIMARY KEY)"))
    await _form(engine, "0099")
    await upgrade(engine)
    assert await _form(engine) == "0099"
    await Nodes(engine).join(Card("a", "", "1"))
    assert [seen.card.id for seen in await Nodes(engine).alive()] == ["a"]


@pytest.mark.parametrize("form", ["0100", "of somebody else"])
async def test_tables_that_this_version_cannot_use_are_left_alone(engine: AsyncEngine, form: str) -> None:
    await _form(engine, form)
    with pytest.raises(ConfigError) as caught:
        await upgrade(engine)
    assert caught.value.code == "E-RECORD-NEWER" and form in caught.value.evidence
    assert await _form(engine) == form


@pytest.mark.parametrize(("usual", "wanted"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")])
async def test_what_was_acknowledged_is_on_disk_whatever_the_server_usually_does(
    empty_url: str, usual: str, wanted: str
) -> None:
    if empty_url.startswith("sqlite"):
        pytest.skip("a file is always written so")
    engine = open_engine(empty_url)
    async with engine.begin() as db:
        name = (await db.execute(text("SELECT current_database()"))).scalar_one()
        await db.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = '{usual}'"))
    await engine.dispose()
    again = open_engine(empty_url)
    async with for_reading(again).connect() as db:
        assert (await db.execute(text("SHOW synchronous_commit"))).scalar_one() == wanted
    await again.dispose()


async def test_all_tables_are_there(engine: AsyncEngine) -> None:
    async with engine.connect() as db:
        names = set(await db.run_sync(lambda sync: inspect(sync).get_table_names()))
    assert names >= {"nodes", "places", "servers", "changes", "claims", "credentials", "lists", "api_keys", "tenants"}


async def test_what_the_first_version_kept_is_there_after_the_upgrade(empty_url: str) -> None:
    engine = open_engine(empty_url)

    def first_version(db: Connection) -> None:
        config = Config()
        config.set_main_option("script_location", str(Path(record.__file__).parent / "migrations"))
        config.attributes["connection"] = db
        command.upgrade(config, "0001")

    async with engine.begin() as db:
        await db.run_sync(first_version)
        node = "VALUES ('a', 7, 'http://a', '1', 100, '{\"all\": [\"gpu\"]}', false, 0.0, 1e12)"
        await db.execute(text(f"INSERT INTO nodes {node}"))
        await db.execute(text("INSERT INTO servers VALUES ('acme', 'files', '{}', 3)"))
        await db.execute(text("INSERT INTO places VALUES ('acme', 'files', 0, 5, 'a', 7, 41, 0.0)"))
        await db.execute(text("UPDATE epochs SET last = 7"))
    await upgrade(engine)
    async with engine.connect() as db:
        place = (await db.execute(text("SELECT tenant, server, instance, node, epoch, fence FROM places"))).one()
        servers = (await db.execute(text("SELECT tenant, name, revision FROM servers"))).all()
        nodes = (await db.execute(text("SELECT id, epoch, capacity FROM nodes"))).all()
    assert tuple(place) == ("acme", "files", 0, "a", 7, 41)
    assert [tuple(row) for row in (*servers, *nodes)] == [("acme", "files", 3), ("a", 7, 100)]
    assert await Nodes(engine).join(Card("b", "", "1")) == 8
    await engine.dispose()
