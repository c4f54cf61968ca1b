"""The log in a SQLite file.

A group of records is one statement, and thus one transaction and one fsync (`synchronous=FULL`), done without holding
Python's lock. There is no column beside the record's own bytes and their hash, so there is nothing that could say
something else.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from toolway.telemetry.audit.files import is_same_file, lock, make_private, sync_folder
from toolway.telemetry.audit.records import Head, Row
from toolway.telemetry.audit.sink import SinkBroken, Torn

PAGE: Final = 1000  # rows that are read at a time
MOST_REMOVED: Final = 5000  # at a time: calls wait meanwhile

_SCHEMA: Final = "CREATE TABLE IF NOT EXISTS records (seq INTEGER PRIMARY KEY, hash TEXT NOT NULL, body TEXT NOT NULL)"
_OLDEST: Final = "SELECT seq, hash, json_extract(body, '$.time') FROM records ORDER BY seq LIMIT ?"


class SqliteSink:
    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self._path = Path(path)
        self._read_only = read_only
        self._lock: int | None = None
        self._db: sqlite3.Connection | None = None
        self._inode = 0

    @property
    def where(self) -> str:
        return os.fspath(self._path)

    def open(self) -> Torn | None:
        self._disconnect()
        try:
            with _readable():
                self._open()
        except BaseException:
            self._disconnect()
            raise
        return None  # a transaction that was written in part is undone by SQLite itself

    def _open(self) -> None:
        if self._read_only:
            self._db = _connect(self._path, "ro")
            return
        if self._lock is None:
            self._lock = lock(self._path)
        make_private(self._path)
        db = self._db = _connect(self._path, "rw")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute(_SCHEMA)
        self._inode = self._path.stat().st_ino
        sync_folder(self._path)

    def head(self) -> Head:
        with _readable():
            found = self._do("SELECT seq, hash FROM records ORDER BY seq DESC LIMIT 1").fetchone()
        return Head(*found) if found is not None else Head()

    def append(self, rows: list[Row]) -> None:
        if not is_same_file(self._path, self._inode):
            raise OSError(f"{self._path} was moved away or removed")
        values = [value for row in rows for value in (row.seq, row.hash, row.body.decode())]
        self._do("INSERT INTO records VALUES (?, ?, ?)" + ", (?, ?, ?)" * (len(rows) - 1), *values)

    def forward(self, after: int = 0) -> Iterator[Row]:
        query = "SELECT seq, hash, body FROM records WHERE seq > ? ORDER BY seq LIMIT ?"
        while page := self._page(query, after):
            yield from page
            after = page[-1].seq

    def backward(self) -> Iterator[Row]:
        query = "SELECT seq, hash, body FROM records WHERE seq < ? ORDER BY seq DESC LIMIT ?"
        before = 2**62
        while page := self._page(query, before):
            yield from page
            before = page[-1].seq

    def removable(self, before: str) -> Head | None:
        with _readable():
            oldest = self._do(_OLDEST, MOST_REMOVED + 1).fetchall()
        # The last record is always kept: the next one is tied to it.
        old = list(takewhile(lambda row: isinstance(row[2], str) and row[2] < before, oldest[:-1]))
        return Head(*old[-1][:2]) if old else None

    def remove(self, through: int) -> None:
        self._do("DELETE FROM records WHERE seq <= ?", through)

    def close(self) -> None:
        self._disconnect()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _page(self, query: str, edge: int) -> list[Row]:
        with _readable():
            return [_row(*values) for values in self._do(query, edge, PAGE)]

    def _do(self, query: str, *values: Any) -> sqlite3.Cursor:
        if self._db is None:
            raise OSError(f"{self._path} is not open")
        return self._db.execute(query, values)

    def _disconnect(self) -> None:
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
            self._db = None


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, check_same_thread=False, isolation_level=None, timeout=5.0
    )


def _row(seq: Any, hash: Any, body: Any) -> Row:
    if not (isinstance(seq, int) and isinstance(hash, str) and isinstance(body, str)):
        raise SinkBroken(f"record {seq} is not stored as a record is")
    return Row(seq, hash, body.encode())


@contextmanager
def _readable() -> Iterator[None]:
    """What SQLite says of a file that it cannot make sense of, in our word; what may pass is left as it is."""
    try:
        yield
    except sqlite3.OperationalError as exc:
        if "no such table" in str(exc) or "Could not decode" in str(exc):
            raise SinkBroken(str(exc)) from None
        raise
    except sqlite3.DatabaseError as exc:
        raise SinkBroken(str(exc)) from None
