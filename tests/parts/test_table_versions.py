"""Tables of a newer version of a part: upgraded once, in a file and in a cluster; an older version refuses them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import text

from toolway.cluster.db.engine import open_engine, upgrade_schema
from toolway.cluster.db.tables import Base
from toolway.errors import ConfigError
from toolway.part_api import Part, registry
from toolway.part_api.database import SqliteDatabase, Table, TablesTooNew, Transaction

pytestmark = pytest.mark.anyio

ONE = Table("meal_plan", {"dish": "TEXT"})
TWO = Table("meal_plan", {"dish": "TEXT", "price": "BIGINT"})
LATER = Table("meal_guests", {"name": "TEXT"})


class MealsOne(Part):
    name = "meals"
    table_file = "meals.sqlite"

    def tables(self) -> Sequence[Table]:
        return [ONE]


class MealsThree(MealsOne):
    table_version = 3

    def tables(self) -> Sequence[Table]:
        return [TWO, LATER]

    def upgrade_tables(self, version: int) -> Sequence[str]:
        steps = {
            1: ["ALTER TABLE meal_plan ADD COLUMN price BIGINT NOT NULL DEFAULT 7"],
            2: ["UPDATE meal_plan SET price = price + 1"],
        }
        return steps[version]


def put_soup(db: Transaction) -> None:
    db.put_rows(ONE, {"monday": ("soup",)})


def read_plan(db: Transaction) -> object:
    return db.select(TWO, "price > :least", least=0)


async def test_file_is_upgraded_step_by_step_and_once(tmp_path: Path) -> None:
    old = SqliteDatabase(tmp_path / "meals.sqlite", MealsOne())
    await old.run(put_soup)
    await old.close()
    for _ in range(2):
        new = SqliteDatabase(tmp_path / "meals.sqlite", MealsThree())
        assert await new.read(read_plan) == {"monday": ("soup", 8)}
        assert await new.read(lambda db: db.count(LATER, "name > ''")) == 0
        await new.close()


async def test_file_of_a_newer_version_is_not_read(tmp_path: Path) -> None:
    new = SqliteDatabase(tmp_path / "meals.sqlite", MealsThree())
    await new.read(read_plan)
    await new.close()
    old = SqliteDatabase(tmp_path / "meals.sqlite", MealsOne())
    with pytest.raises(TablesTooNew, match="meals have version 3; this version knows 1"):
        await old.run(put_soup)
    await old.close()


async def test_failed_upgrade_changes_nothing(tmp_path: Path) -> None:
    class Broken(MealsThree):
        def upgrade_tables(self, version: int) -> Sequence[str]:
            return super().upgrade_tables(version) if version == 1 else ["UPDATE no_such_table SET price = 1"]

    old = SqliteDatabase(tmp_path / "meals.sqlite", MealsOne())
    await old.run(put_soup)
    await old.close()
    broken = SqliteDatabase(tmp_path / "meals.sqlite", Broken())
    with pytest.raises(Exception, match="no_such_table"):
        await broken.read(read_plan)
    await broken.close()
    new = SqliteDatabase(tmp_path / "meals.sqlite", MealsThree())
    assert await new.read(read_plan) == {"monday": ("soup", 8)}
    await new.close()


async def test_cluster_tables_upgrade_once_and_reject_older_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = Base.metadata

    async def start_node(part: Part) -> None:
        if ONE.name in metadata.tables:
            metadata.remove(metadata.tables[ONE.name])  # another process would not know it
        monkeypatch.setattr(registry, "in_use", lambda: [part])
        await upgrade_schema(engine)

    engine = open_engine(f"sqlite:///{tmp_path / 'record'}")
    try:
        await start_node(MealsOne())
        async with engine.begin() as db:
            await db.execute(text("INSERT INTO meal_plan (tenant, key, dish) VALUES ('acme', 'monday', 'soup')"))
        for _ in range(2):
            await start_node(MealsThree())
            async with engine.connect() as db:
                assert (await db.execute(text("SELECT dish, price FROM meal_plan"))).all() == [("soup", 8)]
        with pytest.raises(ConfigError, match="meals have version 3") as refused:
            await start_node(MealsOne())
        assert refused.value.code == "E-RECORD-NEWER"
    finally:
        await engine.dispose()
        for table in (ONE, LATER):
            if table.name in metadata.tables:
                metadata.remove(metadata.tables[table.name])
