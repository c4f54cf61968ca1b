"""Windows of callers in a SQLite file of the state folder, which all workers of a gateway share."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

from toolway.config.call_rules.flow_labels import WINDOW_S, LabelledCall, Window

FLOWS_FILE_NAME: Final = "flows.sqlite"
LOCK_TIMEOUT_S: Final = 5.0  # seconds to wait for another worker
T = TypeVar("T")
Change = Callable[[Window], Window | None]  # returns the new window; None: it stays
_WINDOW: Final = msgspec.json.Decoder(dict[str, LabelledCall])


class FlowStoreError(Exception):
    """Raised if the windows cannot be read or written."""


class FlowStore(Protocol):
    """Store of the windows of callers. Methods raise `FlowStoreError`."""

    async def change(self, caller: str, change: Change, now: float) -> None:
        """Change the window of a caller. No other process reads or writes it meanwhile."""
        ...

    async def load(self, now: float) -> Mapping[str, Window]:
        """Return the windows of all callers with a call in the last half hour."""
        ...

    async def remove(self, caller: str) -> bool:
        """Forget the window of a caller. Return False if there is none."""
        ...

    async def close(self) -> None: ...


def encode_window(window: Window) -> str:
    return msgspec.json.encode(dict(window)).decode()


def decode_window(text: str) -> dict[str, LabelledCall]:
    """Return a stored window. Raises `FlowStoreError` if it is invalid: it may hide a label."""
    try:
        return _WINDOW.decode(text)
    except msgspec.MsgspecError as exc:
        raise FlowStoreError("a stored window is invalid") from exc


class SqliteFlowStore:
    """Store in one file, which is created at the first use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._executor: ThreadPoolExecutor | None = None
        self._db: sqlite3.Connection | None = None

    async def change(self, caller: str, change: Change, now: float) -> None:
        await self._run(lambda db: self._change(db, caller, change, now))

    async def load(self, now: float) -> Mapping[str, Window]:
        query = "SELECT caller, entries FROM windows WHERE at > ?"
        rows = await self._run(lambda db: db.execute(query, (now - WINDOW_S,)).fetchall())
        return {caller: decode_window(entries) for caller, entries in rows}

    async def remove(self, caller: str) -> bool:
        deleted = await self._run(lambda db: db.execute("DELETE FROM windows WHERE caller = ?", (caller,)).rowcount)
        return deleted > 0

    async def close(self) -> None:
        """Close the file, after the changes under way."""
        if self._executor is not None:
            executor, self._executor = self._executor, None
            await asyncio.to_thread(executor.shutdown)
        if self._db is not None:
            self._db.close()
            self._db = None

    def _change(self, db: sqlite3.Connection, caller: str, change: Change, now: float) -> None:
        db.execute("BEGIN IMMEDIATE")
        try:
            row = db.execute("SELECT entries FROM windows WHERE caller = ?", (caller,)).fetchone()
            changed = change(decode_window(row[0]) if row is not None else {})
            if changed is not None:
                db.execute("DELETE FROM windows WHERE at < ?", (now - WINDOW_S,))
                db.execute("INSERT OR REPLACE INTO windows VALUES (?, ?, ?)", (caller, encode_window(changed), now))
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="toolway-flows")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: work(self._open_file()))
        except (sqlite3.Error, OSError) as exc:
            raise FlowStoreError(f"{self._path}: {exc}") from exc

    def _open_file(self) -> sqlite3.Connection:
        if self._db is None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            db = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None, timeout=LOCK_TIMEOUT_S)
            try:
                db.execute("PRAGMA journal_mode=WAL")
                db.execute(
                    "CREATE TABLE IF NOT EXISTS windows "
                    "(caller TEXT PRIMARY KEY, entries TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID"
                )
            except sqlite3.Error:
                db.close()
                raise
            self._db = db
        return self._db
