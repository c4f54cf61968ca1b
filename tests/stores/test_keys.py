"""Keys on disk: what was used before a crash is used after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolway.resilience.keys import KeyId
from toolway.stores.keys import SqliteKeys, StoreInUse

pytestmark = pytest.mark.anyio
ID = KeyId("", "bank", "pay", "k1")


async def test_an_outcome_is_known_to_the_next_process(tmp_path: Path) -> None:
    store = SqliteKeys(tmp_path / "keys.db")
    assert await store.claim(ID, "f") is None
    await store.finish(ID, {"content": [], "big": 2**60})
    store.close()
    after = SqliteKeys(tmp_path / "keys.db")
    known = await after.claim(ID, "f")
    assert known is not None
    assert (known.state, known.outcome) == ("finished", {"content": [], "big": 2**60})
    after.close()


async def test_what_was_running_in_a_crash_has_no_known_outcome(tmp_path: Path) -> None:
    store = SqliteKeys(tmp_path / "keys.db")
    await store.claim(ID, "f")
    store.close()
    after = SqliteKeys(tmp_path / "keys.db")
    known = await after.claim(ID, "f")
    assert known is not None
    assert known.state == "unknown"
    after.close()


async def test_a_released_key_is_free_and_an_old_one_is_forgotten(tmp_path: Path) -> None:
    now = 0.0
    store = SqliteKeys(tmp_path / "keys.db", keep=10, now=lambda: now)
    await store.claim(ID, "f")
    await store.release(ID)
    assert await store.claim(ID, "f") is None
    await store.mark_unknown(ID)
    now = 11.0
    assert await store.claim(ID, "f") is None
    store.close()


async def test_one_process_at_a_time_has_the_file(tmp_path: Path) -> None:
    store = SqliteKeys(tmp_path / "keys.db")
    with pytest.raises(StoreInUse):
        SqliteKeys(tmp_path / "keys.db")
    store.close()
    SqliteKeys(tmp_path / "keys.db").close()
