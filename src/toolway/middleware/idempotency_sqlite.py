"""Idempotency keys in a SQLite file: keys survive a crash.

A lock lets only one process at a time use the file. A key whose call was running when the last process ended is
interrupted, which means that its outcome is unknown. Every claim is on disk before the call is sent
(`synchronous=FULL`).

A key expires after `retention_s` seconds on the file's own clock (`RecordAge`), so a jump of the wall clock does not
make keys expire. Between two processes, at most a 24th of that time counts. A key may thus be kept longer, but never
shorter.

Keys and bytes are limited per caller, as in `StoreUsage`. If a result is dropped, its key stays, so the store still
knows that the call ran.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from toolway._os import O_UNSHARED, try_lock_handle
from toolway._sqlite import open_database
from toolway._worker_thread import WorkerThread
from toolway.middleware.idempotency import IdempotencyKey, IdempotencyRecord, StoreUsage
from toolway.types import Json

DAY_S: Final = 86_400.0
T = TypeVar("T")

_KEYS_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS keys (
    caller TEXT, server TEXT, name TEXT, key TEXT,
    fingerprint TEXT NOT NULL, state TEXT NOT NULL, outcome BLOB, until REAL NOT NULL,
    PRIMARY KEY (caller, server, name, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS keys_until ON keys (until);
"""
_SELECT_USAGE: Final = "SELECT caller, count(*), coalesce(sum(length(outcome)), 0) FROM keys"
_WHERE_EXPIRED: Final = "WHERE until < ? AND state != 'running'"
_WHERE_OUTCOME: Final = "WHERE caller = ? AND outcome IS NOT NULL"
_WHERE_KEY: Final = "WHERE caller = ? AND server = ? AND name = ? AND key = ?"


class StoreInUse(Exception):
    """Raised when another process uses the SQLite file of the idempotency keys.

    Example:
        try:
            store = SqliteIdempotencyStore("keys.db")
        except StoreInUse:
            ...  # another process has it open
    """


class SqliteIdempotencyStore:
    """Idempotency store in a SQLite file, used by one process at a time.

    The constructor raises `StoreInUse` if another process uses the file, and `OSError` if its lock file cannot be
    created. The methods raise the exceptions of SQLite.

    Example:
        hub = Hub("mcp.json", idempotency_store=SqliteIdempotencyStore("keys.db"))
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        retention_s: float = DAY_S,
        max_keys: int = 1_000_000,
        max_bytes: int = 1024 * 1024 * 1024,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._retention_s = retention_s
        # The claiming call's id by key; keys of an earlier process are not in it.
        self._running: dict[IdempotencyKey, str] = {}
        self._reclaimed: set[IdempotencyKey] = set()  # running again after a crash
        self._lock_fd = _lock_file(Path(path))
        self._thread = WorkerThread("toolway-keys")
        self._db = open_database(path, timeout=5.0)
        self._db.executescript(_KEYS_SCHEMA)
        self._age = RecordAge(self._db, retention_s / 24, now, wall)
        # The call may have run until now, however long ago its key was claimed: the key is kept as long as a new one.
        self._db.execute(
            "UPDATE keys SET state = 'interrupted', until = ? WHERE state = 'running'",
            (self._age.elapsed() + retention_s,),
        )
        self._usage = StoreUsage(max_keys, max_bytes)
        for caller, keys, size in self._db.execute(f"{_SELECT_USAGE} GROUP BY caller"):
            self._usage.add_keys(caller, keys)
            self._usage.add_bytes(caller, size)

    def close(self) -> None:
        self._thread.stop()
        self._thread.join()
        with contextlib.suppress(sqlite3.Error):
            self._age.persist(force=True)
        self._db.close()
        os.close(self._lock_fd)

    async def claim(self, id: IdempotencyKey, fingerprint: str, call: str) -> IdempotencyRecord | None:
        known = await self._run_in_thread(lambda: self._claim(id, fingerprint))
        if known is None:
            self._running[id] = call
        elif call and known.state == "running" and self._running.get(id) == call:
            return None
        return known

    async def reclaim(self, id: IdempotencyKey, call: str) -> bool:
        is_claimed = await self._run_in_thread(lambda: self._reclaim(id))
        if is_claimed:
            self._running[id] = call
            self._reclaimed.add(id)
        return is_claimed

    async def finish(self, id: IdempotencyKey, outcome: Json) -> None:
        await self._set(id, "finished", msgspec.json.encode(outcome))

    async def mark_unknown(self, id: IdempotencyKey) -> None:
        await self._set(id, "unknown", None)

    async def release(self, id: IdempotencyKey) -> None:
        self._running.pop(id, None)
        if id in self._reclaimed:
            self._reclaimed.remove(id)
            await self._run_in_thread(lambda: self._change_state(id, "running", "interrupted"))
        else:
            await self._run_in_thread(lambda: self._release(id))

    def _claim(self, id: IdempotencyKey, fingerprint: str) -> IdempotencyRecord | None:
        now = self._age.elapsed()
        self._age.persist()
        self._delete_expired(now)
        found = self._db.execute(
            f"SELECT fingerprint, state, outcome FROM keys {_WHERE_KEY}", _key_values(id)
        ).fetchone()
        if found is not None:
            known, state, outcome = found
            return IdempotencyRecord(state, known, msgspec.json.decode(outcome) if outcome is not None else None)
        self._usage.check_key(id.caller)
        self._db.execute(
            "INSERT INTO keys VALUES (?, ?, ?, ?, ?, 'running', NULL, ?)",
            (*_key_values(id), fingerprint, now + self._retention_s),
        )
        self._usage.add_keys(id.caller)
        return None

    def _reclaim(self, id: IdempotencyKey) -> bool:
        self._delete_expired(self._age.elapsed())
        return self._change_state(id, "interrupted", "running")

    def _change_state(self, id: IdempotencyKey, old: str, new: str) -> bool:
        changed = self._db.execute(
            f"UPDATE keys SET state = ? {_WHERE_KEY} AND state = ?", (new, *_key_values(id), old)
        )
        return changed.rowcount == 1

    def _release(self, id: IdempotencyKey) -> None:
        deleted = self._db.execute(f"DELETE FROM keys {_WHERE_KEY}", _key_values(id))
        self._usage.add_keys(id.caller, -deleted.rowcount)

    def _delete_expired(self, now: float) -> None:
        expired = self._db.execute(f"{_SELECT_USAGE} {_WHERE_EXPIRED} GROUP BY caller", (now,)).fetchall()
        if not expired:
            return
        self._db.execute(f"DELETE FROM keys {_WHERE_EXPIRED}", (now,))
        for caller, keys, size in expired:
            self._usage.add_keys(caller, -keys)
            self._usage.add_bytes(caller, -size)

    def _finish(self, id: IdempotencyKey, state: str, outcome: bytes | None, until: float) -> None:
        values = (state, outcome, until, *_key_values(id))
        self._db.execute(f"UPDATE keys SET state = ?, outcome = ?, until = ? {_WHERE_KEY}", values)
        self._usage.add_bytes(id.caller, len(outcome or b""))
        while (caller := self._usage.excess_caller()) is not None:
            self._drop_outcomes(caller)

    def _drop_outcomes(self, caller: str) -> None:
        """Delete the oldest sixteenth of this caller's stored results, but at least one. Their keys stay."""
        (count,) = self._db.execute(f"SELECT count(*) FROM keys {_WHERE_OUTCOME}", (caller,)).fetchone()
        oldest = self._db.execute(
            f"SELECT caller, server, name, key, length(outcome) FROM keys {_WHERE_OUTCOME} ORDER BY until LIMIT ?",
            (caller, 1 + count // 16),
        ).fetchall()
        for *values, size in oldest:
            self._db.execute(f"UPDATE keys SET outcome = NULL {_WHERE_KEY}", values)
            self._usage.add_bytes(caller, -size)

    async def _set(self, id: IdempotencyKey, state: str, outcome: bytes | None) -> None:
        self._running.pop(id, None)
        self._reclaimed.discard(id)
        until = self._age.elapsed() + self._retention_s
        await self._run_in_thread(lambda: self._finish(id, state, outcome, until))

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        return await self._thread.run(work)


def _key_values(id: IdempotencyKey) -> tuple[str, str, str, str]:
    return (id.caller, id.server, id.name, id.key)


def _lock_file(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | O_UNSHARED, 0o600)
    try:
        if not try_lock_handle(lock):
            raise StoreInUse(f"{path} is used by another process")
    except BaseException:
        os.close(lock)
        raise
    return lock


# -- age of the records ------------------------------------------------------------------------------------------------

_AGE_SCHEMA = "CREATE TABLE IF NOT EXISTS age (one INTEGER PRIMARY KEY CHECK (one = 1), seen REAL, wall REAL)"


class RecordAge:
    """A clock for one SQLite file that ignores jumps of the wall clock.

    The wall clock may jump by a day, and no record may expire because of it. So the store has its own clock, kept in
    its file. Its methods raise the exceptions of SQLite.

    Rule 1. While a process has the file open, the clock follows the monotonic clock, never the wall clock.
    Rule 2. Between two processes only the wall clock is available. It adds at most `max_gap_s` seconds, and never goes
            back.
    Rule 3. Uncertain time has not passed: records live longer because of it, never shorter. The last reading is
            written periodically; the time that a crash loses has not passed either.
    """

    def __init__(
        self, db: sqlite3.Connection, max_gap_s: float, now: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._db = db
        self._persist_interval_s = max_gap_s / 60  # seconds between two writes of the reading
        self._now = now
        self._wall = wall
        db.execute(_AGE_SCHEMA)
        db.execute("INSERT INTO age VALUES (1, ?, ?) ON CONFLICT DO NOTHING", (wall(), wall()))
        seen, last = db.execute("SELECT seen, wall FROM age").fetchone()
        self._elapsed_at_open: float = seen + min(max(0.0, wall() - last), max_gap_s)
        self._opened_at = now()
        self._persisted = seen

    def elapsed(self) -> float:
        """Return the current time of this SQLite file's own clock, in seconds."""
        return self._elapsed_at_open + self._now() - self._opened_at

    def persist(self, *, force: bool = False) -> None:
        """Write the clock's time to the file, if the interval has passed or `force` is True."""
        seen = self.elapsed()
        if force or seen - self._persisted >= self._persist_interval_s:
            self._db.execute("UPDATE age SET seen = ?, wall = ?", (seen, self._wall()))
            self._persisted = seen
