"""Keys on disk: what was used before a crash is used after it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolway.middleware.idempotency import IdempotencyKey, IdempotencyRecord
from toolway.middleware.idempotency_sqlite import SqliteIdempotencyStore, StoreInUse

pytestmark = pytest.mark.anyio
ID = IdempotencyKey("", "bank", "pay", "k1")


async def test_outcome_is_known_to_the_next_process(tmp_path: Path) -> None:
    store = SqliteIdempotencyStore(tmp_path / "keys.db")
    assert await store.claim(ID, "f", "c") is None
    await store.finish(ID, {"content": [], "big": 2**60})
    store.close()
    after = SqliteIdempotencyStore(tmp_path / "keys.db")
    known = await after.claim(ID, "f", "c")
    assert known is not None
    assert (known.state, known.outcome) == ("finished", {"content": [], "big": 2**60})
    after.close()


async def test_call_running_in_a_crash_is_interrupted(tmp_path: Path) -> None:
    store = SqliteIdempotencyStore(tmp_path / "keys.db")
    await store.claim(ID, "f", "c")
    store.close()
    after = SqliteIdempotencyStore(tmp_path / "keys.db")
    known = await after.claim(ID, "f", "c")
    assert known is not None
    assert known.state == "interrupted"
    after.close()


async def test_interrupted_key_is_reclaimed_once_per_attempt(
    tmp_path: Path,
) -> None:
    for _ in range(2):  # a second crash interrupts it again
        store = SqliteIdempotencyStore(tmp_path / "keys.db")
        await store.claim(ID, "f", "c")
        store.close()
        store = SqliteIdempotencyStore(tmp_path / "keys.db")
        assert [await store.reclaim(ID, "d"), await store.reclaim(ID, "e")] == [True, False]
        await store.release(ID)
        assert await store.claim(ID, "f", "e") == IdempotencyRecord("interrupted", "f")
        assert await store.reclaim(ID, "f")
        store.close()
    store = SqliteIdempotencyStore(tmp_path / "keys.db")
    assert await store.reclaim(ID, "g")
    await store.finish(ID, {"n": 1})
    assert await store.claim(ID, "f", "h") == IdempotencyRecord("finished", "f", {"n": 1})
    store.close()


@pytest.mark.attack("A2-S10")
@pytest.mark.parametrize("is_reclaimed", [False, True])
async def test_interrupted_key_is_kept_for_its_full_time(is_reclaimed: bool, tmp_path: Path) -> None:
    """Until then it may have run, however long ago the key was claimed first."""
    now = 0.0

    def opened() -> SqliteIdempotencyStore:
        return SqliteIdempotencyStore(tmp_path / "keys.db", retention_s=10, now=lambda: now, wall=lambda: 0.0)

    store = opened()
    await store.claim(ID, "f", "c")
    if is_reclaimed:
        store.close()
        store = opened()
        now = 9.0
        assert await store.claim(ID, "f", "d") == IdempotencyRecord("interrupted", "f")
        assert await store.reclaim(ID, "d")
    now = 11.0
    store.close()
    store = opened()
    now = 20.0
    assert await store.claim(ID, "f", "e") == IdempotencyRecord("interrupted", "f")
    now = 22.0
    assert await store.claim(ID, "f", "f") is None
    store.close()


async def test_released_key_is_free_and_an_old_one_is_forgotten(tmp_path: Path) -> None:
    now = 0.0
    store = SqliteIdempotencyStore(tmp_path / "keys.db", retention_s=10, now=lambda: now)
    await store.claim(ID, "f", "c")
    await store.release(ID)
    assert await store.claim(ID, "f", "c") is None
    await store.mark_unknown(ID)
    now = 11.0
    assert await store.claim(ID, "f", "c") is None
    store.close()


DAY = 86_400.0


class Clocks:
    """A wall clock that may be set, and one that only time moves."""

    def __init__(self) -> None:
        self.now, self.offset = 50.0, 1.7e9

    def pass_(self, seconds: float) -> None:
        self.now += seconds

    def store(self, folder: Path) -> SqliteIdempotencyStore:
        return SqliteIdempotencyStore(folder / "keys.db", now=lambda: self.now, wall=lambda: self.now + self.offset)


async def finished(store: SqliteIdempotencyStore) -> bool:
    """Whether the key is known; if it was not, it is now."""
    if await store.claim(ID, "f", "c") is None:
        await store.finish(ID, {})
        return False
    return True


@pytest.mark.parametrize("jump", [DAY + 1, -DAY, 400 * DAY])
async def test_wall_clock_jump_forgets_nothing(jump: float, tmp_path: Path) -> None:
    clocks = Clocks()
    store = clocks.store(tmp_path)
    assert not await finished(store)
    clocks.offset += jump
    assert await finished(store)
    clocks.pass_(DAY - 1)
    assert await finished(store)
    clocks.pass_(2)
    assert not await finished(store)
    store.close()


@pytest.mark.parametrize("jump", [DAY + 1, -DAY, 400 * DAY])
async def test_wall_clock_counts_at_most_an_hour_between_processes(jump: float, tmp_path: Path) -> None:
    clocks = Clocks()
    store = clocks.store(tmp_path)
    assert not await finished(store)
    store.close()
    clocks.offset += jump
    after = clocks.store(tmp_path)
    assert await finished(after)
    believed = 3600 if jump > 0 else 0
    clocks.pass_(DAY - believed - 1)
    assert await finished(after)
    clocks.pass_(2)
    assert not await finished(after)
    after.close()


async def test_time_lost_in_a_crash_does_not_count(tmp_path: Path) -> None:
    clocks = Clocks()
    store = clocks.store(tmp_path)
    assert not await finished(store)
    clocks.pass_(DAY / 2)
    await store.claim(ID, "f", "c")  # writes the time down
    clocks.pass_(DAY / 3)
    os.close(store._lock_fd)  # its process is gone
    after = clocks.store(tmp_path)
    clocks.pass_(DAY / 2 - 3601)
    assert await finished(after)
    clocks.pass_(2)
    assert not await finished(after)
    after.close()
    store._thread.stop()
    store._thread.join()
    store._db.close()


async def test_only_one_process_can_open_the_file(tmp_path: Path) -> None:
    store = SqliteIdempotencyStore(tmp_path / "keys.db")
    with pytest.raises(StoreInUse):
        SqliteIdempotencyStore(tmp_path / "keys.db")
    store.close()
    SqliteIdempotencyStore(tmp_path / "keys.db").close()
