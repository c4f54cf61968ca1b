"""What the search learned is in a file: it survives a restart, is bounded, and is gone if learning is off."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import pytest

from tests.search.tools import WORK, catalog_of, names, replace
from toolway.catalog.catalog import Catalog
from toolway.gateway.part_set import PartSet
from toolway.hub.core import HubCore
from toolway.part_api.part import GatewayPlace
from toolway.parts.search import history_file
from toolway.parts.search.history_file import HistoryKeeper, read_history, write_history
from toolway.parts.search.runtime import HISTORY_FILE
from toolway.parts.search.settings import SearchSettings
from toolway.search.learning import CallHistory
from toolway.search.tool_search import ToolSearch

pytestmark = pytest.mark.anyio
QUERY = "zorblax the frobnicator"  # no word of any tool


async def never(seconds: float) -> None:
    await asyncio.Event().wait()


async def open_search(catalog: Catalog, path: Path) -> tuple[ToolSearch, HistoryKeeper]:
    """Return a search that has loaded its history."""
    loaded = asyncio.Event()

    async def sleep(seconds: float) -> None:
        loaded.set()
        await never(seconds)

    search = ToolSearch(catalog)
    manager = HistoryKeeper(search, path, sleep)
    await loaded.wait()
    return search, manager


async def test_learned_calls_survive_restart_until_tool_changes(tmp_path: Path) -> None:
    path, catalog = tmp_path / "history.json", catalog_of(WORK)
    search, manager = await open_search(catalog, path)
    assert names(search.search(QUERY))[0] != "github.create_issue" or not search.search(QUERY).fits
    search.record_call(QUERY, "anna", "github", "create_issue")
    await manager.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "zorblax the" not in path.read_text()  # stems of single words only

    search, manager = await open_search(catalog, path)
    assert names(search.search(QUERY))[0] == "github.create_issue"
    await manager.close()

    replace(catalog, "github", {"create_issue": "Another definition"})
    search, manager = await open_search(catalog, path)
    found = search.search(QUERY).matches
    assert all(reason.kind != "history" for match in found for reason in match.reasons)  # forgotten
    await manager.close()


async def test_calls_learned_before_file_is_read_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    stored = CallHistory()
    stored.record("an old query", "anna", ("github", "create_issue"), "hash")
    write_history(path, list(stored.to_json()))
    search = ToolSearch(catalog_of(WORK))
    search.record_call("a new query", "anna", "github", "create_issue", "hash")
    search.restore_history(read_history(path))
    (entry,) = search._history.to_json()
    assert [words for _, words in entry[3]] == ["old queri", "new queri"]


async def test_disabled_learning_removes_the_file(tmp_path: Path) -> None:
    path = tmp_path / HISTORY_FILE
    search, manager = await open_search(catalog_of(WORK), path)
    search.record_call(QUERY, "anna", "github", "create_issue")
    await manager.close()
    assert path.exists()
    search, manager = await open_search(catalog_of(WORK), path)
    search.set_learning(False)
    await manager.close()
    assert not path.exists()

    path.write_text("{}")
    async with HubCore({}, catalog_storage=None) as hub:
        PartSet(hub, None, place=GatewayPlace(tmp_path)).start({"search": SearchSettings(learn=False)})
    assert not path.exists()


async def test_gateway_stores_history_on_close(tmp_path: Path) -> None:
    path = tmp_path / HISTORY_FILE
    async with HubCore({}, catalog_storage=None) as hub:
        parts = PartSet(hub, None, place=GatewayPlace(tmp_path))
        parts.start({})
        hub.tool_search.record_call(QUERY, "anna", "github", "create_issue", "hash")
        await parts.close()
    assert len(read_history(path)) == 1


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b'{"form":2,"tools":[]}', b'{"form":1,"tools":{"a":1}}', b"[" * 100_000]
)
async def test_damaged_file_counts_as_missing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "history.json"
    assert len(read_history(path)) == 0
    path.write_bytes(content)
    assert len(read_history(path)) == 0


async def test_invalid_entries_are_skipped_and_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.json"
    good = ["s", "t", "hash", [["anna", "word"]]]
    path.write_text(json.dumps({"form": 1, "tools": [good, 7, ["s"], ["s", "t", 3, []], ["s", "u", "h", [["a"]]]]}))
    assert read_history(path).to_json() == [good]
    monkeypatch.setattr(history_file, "MAX_STORED_TOOLS", 3)
    write_history(path, [["s", f"t{number}", "hash", [["anna", "word"]]] for number in range(10)])
    assert [tool for _, tool, *_ in read_history(path).to_json()] == ["t7", "t8", "t9"]
    monkeypatch.setattr(history_file, "MAX_FILE_BYTES", 10)
    assert len(read_history(path)) == 0
