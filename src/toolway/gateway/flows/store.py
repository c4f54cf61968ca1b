"""Windows of callers, the last labelled calls of each, in a SQLite file which all workers of a gateway share."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

from toolway.config.call_rules.flow_labels import WINDOW_S, LabelledCall, Window
from toolway.gateway.sqlite_file import SqliteFile, transaction

FLOWS_FILE_NAME: Final = "flows.sqlite"
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS windows (caller TEXT PRIMARY KEY, entries TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID
"""
T = TypeVar("T")
Change = Callable[[Window], Window | None]  # returns the new window; None: it stays
_log = logging.getLogger("toolway.gateway")
_WINDOW: Final = msgspec.json.Decoder(dict[str, LabelledCall])


class FlowStoreError(Exception):
    """Raised if the stored windows of callers (their last labelled calls) cannot be read or written."""


class FlowStore(Protocol):
    """Store of the windows of callers: their last call with each label. Methods raise `FlowStoreError` if it fails."""

    async def change(self, caller: str, change: Change, now: float) -> None:
        """Replace the window of a caller (its last labelled calls) by the result of `change`, in one transaction.

        No other process reads or writes the window meanwhile.
        """
        ...

    async def load(self, now: float) -> Mapping[str, Window]:
        """Return the last labelled calls (window) of each caller that made one in the last half hour."""
        ...

    async def remove(self, caller: str) -> bool:
        """Delete the stored window of a caller (its last labelled calls). Return False if there is none."""
        ...

    async def close(self) -> None: ...


def encode_window(window: Window) -> str:
    return msgspec.json.encode(dict(window)).decode()


def decode_window(text: str) -> dict[str, LabelledCall]:
    """Decode the stored window of a caller: its last call with each label. Raises `FlowStoreError` if it is invalid.

    An invalid window is not read as empty, because a label would then be missing.
    """
    try:
        return _WINDOW.decode(text)
    except (msgspec.MsgspecError, TypeError, ValueError) as exc:
        raise FlowStoreError("a stored window is invalid") from exc


def decode_windows(rows: Iterable[tuple[str, str]]) -> dict[str, Window]:
    """Decode the stored windows of callers for a list. A window that is invalid is reported, and left out.

    Calls of its caller that need the window are rejected meanwhile (`decode_window`).
    """
    found: dict[str, Window] = {}
    for caller, entries in rows:
        try:
            found[caller] = decode_window(entries)
        except FlowStoreError as exc:
            shown = caller.encode("utf-8", "backslashreplace").decode()
            _log.error("E-FLOW-STORE: %s: toolway policy flows reset %s", exc, shown)
    return found


class SqliteFlowStore:
    """Store of the windows of callers in one SQLite file, which is created at the first use."""

    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path, "toolway-flows", lambda db: db.execute(_SCHEMA))

    async def change(self, caller: str, change: Change, now: float) -> None:
        await self._run(lambda db: self._change(db, caller, change, now))

    async def load(self, now: float) -> Mapping[str, Window]:
        query = "SELECT caller, entries FROM windows WHERE at > ?"
        rows = await self._run(lambda db: db.execute(query, (now - WINDOW_S,)).fetchall())
        return decode_windows(rows)

    async def remove(self, caller: str) -> bool:
        deleted = await self._run(lambda db: db.execute("DELETE FROM windows WHERE caller = ?", (caller,)).rowcount)
        return deleted > 0

    async def close(self) -> None:
        """Wait for changes that are being written, then close the file of the callers' last labelled calls."""
        await self._file.close()

    def _change(self, db: sqlite3.Connection, caller: str, change: Change, now: float) -> None:
        with transaction(db):
            row = db.execute("SELECT entries FROM windows WHERE caller = ?", (caller,)).fetchone()
            changed = change(decode_window(row[0]) if row is not None else {})
            if changed is not None:
                db.execute("DELETE FROM windows WHERE at < ?", (now - WINDOW_S,))
                db.execute("INSERT OR REPLACE INTO windows VALUES (?, ?, ?)", (caller, encode_window(changed), now))

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._file.run(work)
        except (sqlite3.Error, OSError) as exc:
            raise FlowStoreError(f"{self._file.path}: {exc}") from exc
