"""Lists in the record: what the last owner wrote."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from sqlalchemy import delete, insert
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.encryption_keys import an_integrity
from toolway.cluster.db.catalog import ListStore, StoredList
from toolway.cluster.db.changes import ChangeReader, record_change
from toolway.cluster.db.tables import ServerRow

pytestmark = pytest.mark.anyio

LISTED = StoredList("id", "modern", {"instructions": "none \u0000"}, {"tools": [{"name": "a\u0000b"}]}, fence=3)


@pytest.fixture(autouse=True)
async def servers(engine: AsyncEngine) -> None:
    async with engine.begin() as db:
        for name in ("files", "github"):
            await db.execute(insert(ServerRow).values(tenant="acme", name=name, definition={}, revision=1))


def _at(fence: int, *names: str) -> StoredList:
    return msgspec.structs.replace(LISTED, fence=fence, lists={"tools": [{"name": name} for name in names]})


async def test_stored_list_is_read_back_unchanged(engine: AsyncEngine) -> None:
    lists = ListStore(engine, an_integrity())
    assert await lists.load("acme", "files") is None
    revision = await lists.put("acme", "files", LISTED)
    assert revision is not None
    assert await lists.load("acme", "files") == msgspec.structs.replace(LISTED, revision=revision)
    assert await ChangeReader(engine).fetch_since(0) == (revision, frozenset({("lists", "acme")}))
    assert await lists.load_changed("other") == {}


async def test_former_owner_cannot_overwrite_a_list(engine: AsyncEngine) -> None:
    lists = ListStore(engine, an_integrity())
    assert await lists.put("acme", "files", _at(5, "new")) is not None
    seen, _ = await ChangeReader(engine).fetch_since(0)
    assert await lists.put("acme", "files", _at(4, "old")) is None
    assert await ChangeReader(engine).fetch_since(seen) == (seen, frozenset())
    assert await lists.put("acme", "files", _at(5, "newer")) is not None
    found = await lists.load("acme", "files")
    assert found is not None and found.lists == {"tools": [{"name": "newer"}]}


async def test_unchanged_list_from_a_new_owner_records_no_change(engine: AsyncEngine) -> None:
    lists = ListStore(engine, an_integrity())
    assert await lists.put("acme", "files", _at(5, "a")) is not None
    seen, _ = await ChangeReader(engine).fetch_since(0)
    assert await lists.put("acme", "files", _at(7, "a")) is None
    assert await ChangeReader(engine).fetch_since(seen) == (seen, frozenset())
    assert await lists.put("acme", "files", _at(6, "b")) is None  # it is the later owner's all the same
    found = await lists.load("acme", "files")
    assert found is not None and (found.fence, found.lists) == (7, {"tools": [{"name": "a"}]})


async def test_concurrent_list_writes_keep_the_last_owners(engine: AsyncEngine) -> None:
    lists = ListStore(engine, an_integrity())
    fences = [7, 2, 9, 4, 1, 8]
    await asyncio.gather(*(lists.put("acme", "files", _at(fence, str(fence))) for fence in fences))
    found = await lists.load("acme", "files")
    assert found is not None and (found.fence, found.lists) == (9, {"tools": [{"name": "9"}]})


async def test_only_changed_lists_are_read(engine: AsyncEngine) -> None:
    lists = ListStore(engine, an_integrity())
    first = await lists.put("acme", "files", _at(1, "a"))
    second = await lists.put("acme", "github", _at(1, "b"))
    assert first is not None and second is not None
    assert set(await lists.load_changed("acme")) == {"files", "github"}
    assert set(await lists.load_changed("acme", first)) == {"github"}
    assert await lists.load_changed("acme", second) == {}


async def test_lists_are_deleted_with_their_server(engine: AsyncEngine) -> None:
    lists = ListStore(engine, an_integrity())
    await lists.put("acme", "files", LISTED)
    async with engine.begin() as db:
        await db.execute(delete(ServerRow).where(ServerRow.name == "files"))
    assert await lists.load("acme", "files") is None
    assert await lists.put("acme", "files", LISTED) is None
    assert await lists.put("acme", "nobody", LISTED) is None


async def test_list_written_during_server_removal_does_not_remain(
    engine: AsyncEngine,
) -> None:
    lists = ListStore(engine, an_integrity())

    async def remove(name: str) -> None:
        async with engine.begin() as db:
            await db.execute(delete(ServerRow).where(ServerRow.name == name))
            await record_change(db, "registry", "acme")

    for turn in range(10):
        name = f"s{turn}"
        async with engine.begin() as db:
            await db.execute(insert(ServerRow).values(tenant="acme", name=name, definition={}, revision=1))
        owners = (lists.put("acme", name, _at(fence, str(fence))) for fence in (1, 2))
        await asyncio.gather(*owners, remove(name))
        assert await lists.load("acme", name) is None


async def test_lists_are_read_in_pages(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolway.cluster.db.catalog.LISTS_PER_PAGE", 2)
    lists = ListStore(engine, an_integrity())
    async with engine.begin() as db:
        for number in range(5):
            await db.execute(insert(ServerRow).values(tenant="acme", name=f"s{number}", definition={}, revision=1))
    for number in range(5):
        await lists.put("acme", f"s{number}", _at(1, str(number)))
    assert set(await lists.load_changed("acme")) == {f"s{number}" for number in range(5)}
