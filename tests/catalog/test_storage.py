"""Lists on disk: a file that cannot be trusted is a file that is not there."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from toolway.catalog.storage import LATE_MEMORY_S, FileCatalogStorage, ForgedListsError


def test_saved_lists_load_for_the_same_server_only(tmp_path: Path) -> None:
    store = FileCatalogStorage(tmp_path / "new" / "folder", tmp_path / "state" / "key")
    store.save("s", "identity", "modern", {"tools": [{"name": "a", "x": None}]})
    stored = store.load("s", "identity")
    assert stored is not None
    assert (stored.era, stored.lists) == ("modern", {"tools": [{"name": "a", "x": None}]})
    assert store.load("s", "other") is None


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b'{"format":99,"era":"modern","lists":{}}', b'{"format":1,"era":"odd","lists":{}}', b"\xff"],
)
def test_file_of_another_version_is_ignored(tmp_path: Path, content: bytes) -> None:
    store = FileCatalogStorage(tmp_path / "lists", tmp_path / "key")
    store.save("s", "i", "modern", {})
    (path,) = (tmp_path / "lists").iterdir()
    path.write_bytes(store._mac((tmp_path / "key").read_bytes(), "s", "i", content) + b"\n" + content)
    assert store.load("s", "i") is None


@pytest.mark.parametrize("content", [b"", b"\n", b"{}", b"00" * 32 + b"\n{}", "é\n".encode()])
def test_file_without_valid_mac_is_forged(tmp_path: Path, content: bytes) -> None:
    store = FileCatalogStorage(tmp_path / "lists", tmp_path / "key")
    store.save("s", "i", "modern", {})
    (path,) = (tmp_path / "lists").iterdir()
    path.write_bytes(content)
    with pytest.raises(ForgedListsError):
        store.load("s", "i")


def test_invalid_key_stores_nothing(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    store = FileCatalogStorage(tmp_path / "lists", tmp_path / "key")
    store.save("s", "i", "modern", {})
    assert store.load("s", "i") is None and not (tmp_path / "lists").exists()


def test_disk_error_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    FileCatalogStorage(tmp_path / "file" / "below", tmp_path / "key").save("s", "i", "modern", {})


@pytest.mark.user_trial("1")
def test_late_server_is_remembered_until_it_answers(tmp_path: Path) -> None:
    store = FileCatalogStorage(tmp_path / "lists", tmp_path / "key")
    now = time.time()
    assert store.late_for("s", "i", now) == 0
    store.mark_late("s", "i")
    assert 0 < store.late_for("s", "i", now) <= LATE_MEMORY_S
    assert store.late_for("s", "changed", now) == 0  # another definition gets its own chance
    assert store.late_for("s", "i", now + LATE_MEMORY_S + 5) == 0
    store.save("s", "i", "modern", {})
    assert store.late_for("s", "i", now) == 0
