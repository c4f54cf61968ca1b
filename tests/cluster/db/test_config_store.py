"""The configuration of a tenant in the record."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.db.encryption_keys import a_sealer, an_integrity
from toolway.cluster.db.changes import ChangeReader
from toolway.cluster.db.config_store import ConfigChanges, ConfigEntry, ConfigStore
from toolway.cluster.db.engine import db_now
from toolway.cluster.db.integrity import StateRefused
from toolway.cluster.db.tables import ImportedConfigRow, InstanceRow, RemovedServerRow, ServerRow

pytestmark = pytest.mark.anyio

SECRET = "hunter2-hunter2"
FILE: dict[str, Any] = {
    "mcpServers": {
        "files": {"command": "files", "env": {"TOKEN": SECRET}, "instances": 2},
        "My Search": {"url": "https://search.example/mcp"},
    },
    "toolway": {"audit": {"dsn": f"postgresql://x:{SECRET}@db/x"}},
}


@pytest.fixture
def registry(engine: AsyncEngine) -> ConfigStore:
    return ConfigStore(engine, a_sealer(), an_integrity())


async def _document(registry: ConfigStore, tenant: str) -> tuple[int, dict[str, Any]] | None:
    found = await registry.load(tenant)
    return (found[0], found[1].to_document()) if found is not None else None


async def _changes(registry: ConfigStore, after: ConfigChanges | None = None) -> ConfigChanges:
    found = await registry.load_changes("acme", after.revision if after else 0, after.marks if after else {})
    assert found is not None
    return found


async def _places(engine: AsyncEngine) -> set[tuple[str, int]]:
    async with engine.connect() as db:
        return {
            (row.server, row.instance) for row in await db.execute(select(InstanceRow.server, InstanceRow.instance))
        }


async def test_imported_file_is_read_back_unchanged(registry: ConfigStore, engine: AsyncEngine) -> None:
    assert await _document(registry, "acme") is None
    assert await registry.import_document("acme", FILE, "d1")
    found = await _document(registry, "acme")
    assert found is not None
    revision, document = found
    assert document == FILE
    assert await ChangeReader(engine).fetch_since(0) == (revision, frozenset({("registry", "acme")}))
    assert await _places(engine) == {("files", 0), ("files", 1), ("my-search", 0)}
    assert await _document(registry, "other") is None


async def test_file_imported_before_is_not_imported_again(registry: ConfigStore) -> None:
    new = {"mcpServers": {"files": {"command": "files2"}}}
    assert await registry.import_document("acme", FILE, "old")
    assert await registry.import_document("acme", new, "new")
    assert not await registry.import_document("acme", FILE, "old")  # a node that was away brings it back
    assert await _document(registry, "acme") == ((await _document(registry, "acme") or (0, {}))[0], new)
    assert await registry.import_document("acme", FILE, "old", force=True)
    found = await _document(registry, "acme")
    assert found is not None and found[1] == FILE
    assert await registry.import_document("other", FILE, "old")


async def test_concurrent_imports_of_a_file_change_it_once(registry: ConfigStore) -> None:
    taken = await asyncio.gather(*(registry.import_document("acme", FILE, "d1") for _ in range(4)))
    assert sorted(taken) == [False, False, False, True]


async def test_import_with_equal_content_changes_nothing(registry: ConfigStore, engine: AsyncEngine) -> None:
    await registry.import_document("acme", FILE, "d1")
    before = await ChangeReader(engine).fetch_since(0)
    assert await registry.import_document("acme", FILE, "d2")
    assert await ChangeReader(engine).fetch_since(0) == before
    assert not await registry.import_document("acme", FILE, "d2")


async def test_reload_returns_only_changes(registry: ConfigStore, engine: AsyncEngine) -> None:
    await registry.import_document("acme", FILE, "d1")
    first = await _changes(registry)
    everything = first.diff
    assert set(everything.entries) == {"files", "my-search"}
    assert everything.entries["my-search"].written_name == "My Search"
    assert everything.settings == FILE["toolway"]
    servers = {"files": FILE["mcpServers"]["files"], "new": {"command": "new"}}
    await registry.import_document("acme", {"mcpServers": servers}, "d2")
    second = await _changes(registry, first)
    change = second.diff
    assert (set(change.entries), change.removed, change.settings) == ({"new"}, frozenset({"my-search"}), {})
    assert await _places(engine) == {("files", 0), ("files", 1), ("new", 0)}
    await registry.import_document("acme", FILE, "d3")  # what was removed comes again
    change = (await _changes(registry, second)).diff
    assert (set(change.entries), change.removed) == ({"my-search"}, frozenset({"new"}))


async def test_server_can_be_added_and_removed(registry: ConfigStore, engine: AsyncEngine) -> None:
    await registry.import_document("acme", FILE, "d1")
    before = await _changes(registry)
    assert await registry.put_server("acme", "new", {"command": "new", "instances": 3}) > before.revision
    assert ("new", 2) in await _places(engine)
    after = await _changes(registry, before)
    assert after.diff.entries == {"new": ConfigEntry("new", {"command": "new", "instances": 3})}
    assert await registry.remove_server("acme", "new")
    assert not await registry.remove_server("acme", "new")
    assert not await registry.remove_server("other", "files")
    change = (await _changes(registry, after)).diff
    assert (change.entries, change.removed) == ({}, frozenset({"new"}))
    assert await _places(engine) == {("files", 0), ("files", 1), ("my-search", 0)}


async def test_tenant_can_start_with_one_server(registry: ConfigStore) -> None:
    await registry.put_server("acme", "new", {"command": "new"})
    found = await _document(registry, "acme")
    assert found is not None and found[1] == {"mcpServers": {"new": {"command": "new"}}}


async def test_concurrent_server_additions_are_all_kept(registry: ConfigStore) -> None:
    await asyncio.gather(*(registry.put_server("acme", f"s{number}", {"command": "x"}) for number in range(5)))
    found = await _document(registry, "acme")
    assert found is not None and set(found[1]["mcpServers"]) == {f"s{number}" for number in range(5)}


async def test_unusable_entries_are_kept_and_need_no_owner(registry: ConfigStore, engine: AsyncEngine) -> None:
    servers = {
        "a-b": {"command": "x"},
        "A B": {"command": "y"},  # its name is taken
        "off": {"command": "x", "disabled": True},
        "many": {"command": "x", "instances": "lots"},
        "nothing": 5,
        "line": "npx -y it",
    }
    await registry.import_document("acme", {"mcpServers": servers}, "d1")
    assert await _places(engine) == {("a-b", 0), ("line", 0)}
    found = await _document(registry, "acme")
    assert found is not None and found[1]["mcpServers"] == servers


async def test_secrets_are_not_stored_in_plain_text(registry: ConfigStore, engine: AsyncEngine) -> None:
    await registry.import_document("acme", FILE, "d1")
    async with engine.connect() as db:
        for table in ("servers", "tenants", "imported_configs", "changes", "removed_servers", "instances"):
            assert SECRET not in str((await db.execute(text(f"SELECT * FROM {table}"))).all())


async def test_moved_entry_or_wrong_key_is_rejected(engine: AsyncEngine, caplog: pytest.LogCaptureFixture) -> None:
    await ConfigStore(engine, a_sealer(), an_integrity()).import_document("acme", FILE, "d1")
    with pytest.raises(StateRefused) as caught:
        await ConfigStore(engine, a_sealer(b"x"), an_integrity(b"x")).load("acme")
    assert caught.value.code == "E-CLUSTER-KEY"
    async with engine.begin() as db:
        asked = select(ServerRow.definition).where(ServerRow.name == "files")
        there = (await db.execute(asked)).scalar_one()
        await db.execute(update(ServerRow).where(ServerRow.name == "my-search").values(definition=there))
    caplog.clear()
    with pytest.raises(StateRefused) as caught:
        await ConfigStore(engine, a_sealer(), an_integrity()).load("acme")
    assert caught.value.code == "E-RECORD-CHANGED"
    assert "servers 'my-search' is refused" in caplog.text


async def test_entry_can_be_as_large_as_an_openapi_document(registry: ConfigStore) -> None:
    servers = {"api": {"openapi": {"document": {"paths": ["x" * 100] * 20_000}}}}
    await registry.import_document("acme", {"mcpServers": servers}, "d1")
    found = await _document(registry, "acme")
    assert found is not None and found[1]["mcpServers"] == servers


async def test_thousand_servers_are_imported_and_read_in_pages(
    registry: ConfigStore, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolway.cluster.db.config_store.SERVERS_PER_PAGE", 500)
    servers = {f"s{number}": {"command": "x"} for number in range(1200)}
    await registry.import_document("acme", {"mcpServers": servers}, "d1")
    assert len(await _places(engine)) == 1200
    found = await _document(registry, "acme")
    assert found is not None and found[1]["mcpServers"] == servers
    await registry.import_document("acme", {"mcpServers": {"s7": {"command": "x"}}}, "d2")
    assert await _places(engine) == {("s7", 0)}


async def test_old_imports_and_removals_are_forgotten(
    registry: ConfigStore, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolway.cluster.db.config_store.MAX_IMPORTED_FILES", 2)
    for number in range(5):
        await registry.import_document("acme", {"mcpServers": {f"s{number}": {"command": "x"}}}, f"d{number}")
        async with engine.begin() as db:
            await db.execute(update(RemovedServerRow).values(removed_at=db_now() - 8 * 86_400))
    async with engine.connect() as db:
        assert set((await db.execute(select(ImportedConfigRow.digest))).scalars()) == {"d3", "d4"}
        assert set((await db.execute(select(RemovedServerRow.name))).scalars()) == {"s3"}


async def test_concurrent_reader_sees_whole_changes_only(
    registry: ConfigStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolway.cluster.db.config_store.SERVERS_PER_PAGE", 3)
    files = [{"mcpServers": {f"s{n}": {"command": f"v{turn}"} for n in range(10)}} for turn in range(6)]
    await registry.import_document("acme", files[0], "d0")
    done = asyncio.Event()
    seen = 0

    async def read() -> None:
        nonlocal seen
        while not done.is_set():
            found = await _document(registry, "acme")
            assert found is not None and found[1] in files
            seen += 1

    async def write() -> None:
        for turn, file in enumerate(files):
            await registry.import_document("acme", file, f"d{turn}")
        done.set()

    await asyncio.gather(write(), read())
    assert seen
