"""Idempotency keys in a SQLite file: a key that was used before a crash is still used after it.

One process at a time has the file, by a lock. What was running when the last one ended has no known outcome. Every
claim is on disk before the call is made (`synchronous=FULL`).

A key is forgotten after `keep` seconds of the file's own clock (`age.py`): a jump of the wall clock forgets nothing. Of
the time between two processes a 24th of `keep` counts at most, so a key may be known for longer than `keep`, and never
for less.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from toolway.model import Json
from toolway.resilience.keys import KeyId, Record
from toolway.stores.age import Age

DAY: Final = 86_400.0
T = TypeVar("T")

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS keys (
    caller TEXT, server TEXT, name TEXT, key TEXT,
    fingerprint TEXT NOT NULL, state TEXT NOT NULL, outcome BLOB, until REAL NOT NULL,
    PRIMARY KEY (caller, server, name, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS keys_until ON keys (until);
"""
_WHERE: Final = "WHERE caller = ? AND server = ? AND name = ? AND key = ?"


class StoreInUse(Exception):
    """Another process has the file."""


class SqliteKeys:
    """Raises `StoreInUse` or `OSError` when it is made, and whatever SQLite raises when it is used."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep: float = DAY,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._keep = keep
        self._running: dict[KeyId, str] = {}  # under which call; what ran in another process has no known outcome
        self._lock = _lock(Path(path))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="toolway-keys")
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=5.0)
        self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;" + _SCHEMA)
        self._db.execute("UPDATE keys SET state = 'unknown' WHERE state = 'running'")
        self._age = Age(self._db, keep / 24, now, wall)

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        with contextlib.suppress(sqlite3.Error):
            self._age.keep(now=True)
        self._db.close()
        os.close(self._lock)

    async def claim(self, id: KeyId, fingerprint: str, call: str) -> Record | None:
        known = await self._do(lambda: self._claim(id, fingerprint))
        if known is None:
            self._running[id] = call
        elif call and known.state == "running" and self._running.get(id) == call:
            return None
        return known

    async def finish(self, id: KeyId, outcome: Json) -> None:
        await self._set(id, "finished", msgspec.json.encode(outcome))

    async def mark_unknown(self, id: KeyId) -> None:
        await self._set(id, "unknown", None)

    async def release(self, id: KeyId) -> None:
        self._running.pop(id, None)
        await self._do(lambda: self._db.execute(f"DELETE FROM keys {_WHERE}", _values(id)))

    def _claim(self, id: KeyId, fingerprint: str) -> Record | None:
        now = self._age.seen()
        self._age.keep()
        self._db.execute("DELETE FROM keys WHERE until < ? AND state != 'running'", (now,))
        added = self._db.execute(
            "INSERT INTO keys VALUES (?, ?, ?, ?, ?, 'running', NULL, ?) ON CONFLICT DO NOTHING",
            (*_values(id), fingerprint, now + self._keep),
        )
        if added.rowcount:
            return None
        known, state, outcome = self._db.execute(
            f"SELECT fingerprint, state, outcome FROM keys {_WHERE}", _values(id)
        ).fetchone()
        return Record(state, known, msgspec.json.decode(outcome) if outcome is not None else None)

    async def _set(self, id: KeyId, state: str, outcome: bytes | None) -> None:
        self._running.pop(id, None)
        until = self._age.seen() + self._keep
        values = (state, outcome, until, *_values(id))
        await self._do(lambda: self._db.execute(f"UPDATE keys SET state = ?, outcome = ?, until = ? {_WHERE}", values))

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _values(id: KeyId) -> tuple[str, str, str, str]:
    return (id.caller, id.server, id.name, id.key)


def _lock(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise StoreInUse(f"{path} is used by another process") from None
    return lock
