"""Open the SQLite files that Toolway writes."""

from __future__ import annotations

import os
import sqlite3


def open_database(path: str | os.PathLike[str], timeout: float) -> sqlite3.Connection:
    """Open a SQLite file with durable commits. Threads may share the connection, one at a time.

    `timeout` is how many seconds to wait for another process's write. Raises `sqlite3.Error`.
    """
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=timeout)
    db.text_factory = _decode_text
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
    except sqlite3.Error:
        db.close()
        raise
    return db


def _decode_text(data: bytes) -> str:
    """Decode stored text. Never fails, unlike SQLite's decoder, so one bad row does not end a query."""
    return data.decode("utf-8", "surrogateescape")
