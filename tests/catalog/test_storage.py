"""Lists on disk: a file that cannot be trusted is a file that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolway.catalog.storage import FileCatalogStorage


def test_what_was_saved_comes_back_for_the_same_server_only(tmp_path: Path) -> None:
    store = FileCatalogStorage(tmp_path / "new" / "folder")
    store.save("s", "identity", "modern", {"tools": [{"name": "a", "x": None}]})
    stored = store.load("s", "identity")
    assert stored is not None
    assert (stored.era, stored.lists) == ("modern", {"tools": [{"name": "a", "x": None}]})
    assert store.load("s", "other") is None


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"format":99,"era":"modern","lists":{}}', b'{"format":1,"era":"odd","lists":{}}', b"\xff"],
)
def test_a_spoiled_file_is_no_file(tmp_path: Path, content: bytes) -> None:
    store = FileCatalogStorage(tmp_path)
    store.save("s", "i", "modern", {})
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    assert store.load("s", "i") is None


def test_a_disk_that_refuses_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    FileCatalogStorage(tmp_path / "file" / "below").save("s", "i", "modern", {})
