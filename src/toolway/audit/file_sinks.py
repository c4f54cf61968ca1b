"""Audit logs in files: a SQLite file, or JSON lines for log collectors.

Each record contains the hash of the record before it as `prev`, so the records form a hash chain.

SQLite: a group of records is one statement, and so one transaction and one fsync (`synchronous=FULL`), without holding
the GIL. The only columns are a record's number, hash and bytes, so no other column can contradict them.

JSON lines: every line ends with its hash, computed over the line without it.

    {"seq":7,"prev":"…","kind":"call.intent",…,"hash":"…"}

A JSON lines file that exceeds the size limit is renamed with its first record number, and a new file is started.
Expired records are removed by whole files; in SQLite, by rows. A partially written last line is moved to a separate
file.
"""

from __future__ import annotations

import itertools
import os
import re
import sqlite3
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from toolway._os import O_UNSHARED, sync_data
from toolway.audit.sink import (
    ChainHead,
    SinkBroken,
    StoredRecord,
    TruncatedRecord,
    create_private_file,
    is_same_file,
    lock_file,
    sync_folder,
)
from toolway.config.settings import AuditSettings

SQLITE_ROWS_PER_PAGE: Final = 1000
SQLITE_MAX_ROWS_PER_PRUNE: Final = 5000  # writes wait during a removal

_SQLITE_START: Final = b"SQLite format 3\0"
_SQLITE_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS records (seq INTEGER PRIMARY KEY, hash TEXT NOT NULL, body TEXT NOT NULL)"
)
_SQLITE_OLDEST: Final = "SELECT seq, hash, json_extract(body, '$.time') FROM records ORDER BY seq LIMIT ?"
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
_MAX_READ_BYTES: Final = 4 * MAX_FILE_BYTES  # one group of records may exceed the limit of a file
MAX_LINE_BYTES: Final = 1024 * 1024  # of one line; our records are shorter
_HASH_SUFFIX: Final = re.compile(rb',"hash":"([0-9a-f]{64})"\}')
_HASH_SUFFIX_BYTES: Final = len(b',"hash":""}') + 64
_SEQ_PATTERN: Final = re.compile(rb'\{"seq":([0-9]{1,18}),')
_TIME_PATTERN: Final = re.compile(rb'"time":"([0-9TZ:.-]{20,32})"')


def detect_kind(path: str | os.PathLike[str]) -> str:
    """Detect an audit log's kind from the first bytes of its file: "sqlite", "jsonl", or "" for neither."""
    try:
        if not os.path.isfile(path):  # reading a pipe could wait forever
            return ""
        with open(path, "rb") as file:
            start = file.read(len(_SQLITE_START))
    except OSError:
        return ""
    return "sqlite" if start == _SQLITE_START else "jsonl" if start.startswith(b'{"seq":') else ""


# -- SQLite ------------------------------------------------------------------------------------------------------------


def create_sqlite_sink(settings: AuditSettings, read_only: bool) -> SqliteSink:
    return SqliteSink(settings.file, read_only=read_only)


class SqliteSink:
    """Audit sink that stores records in a SQLite file. One process at a time may write to it."""

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self._path = Path(path)
        self._read_only = read_only
        self._lock: int | None = None
        self._db: sqlite3.Connection | None = None
        self._inode = 0

    @property
    def location(self) -> str:
        return os.fspath(self._path)

    def open(self) -> TruncatedRecord | None:
        self._disconnect()
        try:
            with _sqlite_errors_as_broken():
                self._open()
        except BaseException:
            self._disconnect()
            raise
        return None  # SQLite itself rolls back a partially written transaction

    def _open(self) -> None:
        if self._read_only:
            self._db = _connect_sqlite(self._path, "ro")
            return
        if self._lock is None:
            self._lock = lock_file(self._path)
        create_private_file(self._path)
        db = self._db = _connect_sqlite(self._path, "rw")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute(_SQLITE_SCHEMA)
        self._inode = self._path.stat().st_ino
        sync_folder(self._path)

    def head(self) -> ChainHead:
        with _sqlite_errors_as_broken():
            found = self._execute("SELECT seq, hash FROM records ORDER BY seq DESC LIMIT 1").fetchone()
        return ChainHead(*found) if found is not None else ChainHead()

    def append(self, rows: list[StoredRecord]) -> None:
        if not is_same_file(self._path, self._inode):
            raise OSError(f"{self._path} was moved or removed")
        values = [value for row in rows for value in (row.seq, row.hash, row.body.decode())]
        self._execute("INSERT INTO records VALUES (?, ?, ?)" + ", (?, ?, ?)" * (len(rows) - 1), *values)

    def read_forward(self, after: int = 0) -> Iterator[StoredRecord]:
        query = "SELECT seq, hash, body FROM records WHERE seq > ? ORDER BY seq LIMIT ?"
        while page := self._fetch_page(query, after):
            yield from page
            after = page[-1].seq

    def read_backward(self) -> Iterator[StoredRecord]:
        query = "SELECT seq, hash, body FROM records WHERE seq < ? ORDER BY seq DESC LIMIT ?"
        before = 2**62
        while page := self._fetch_page(query, before):
            yield from page
            before = page[-1].seq

    def prunable(self, before: str) -> ChainHead | None:
        with _sqlite_errors_as_broken():
            oldest = self._execute(_SQLITE_OLDEST, SQLITE_MAX_ROWS_PER_PRUNE + 1).fetchall()
        # The last record is always kept: the next record needs its hash.
        old = list(takewhile(lambda row: isinstance(row[2], str) and row[2] < before, oldest[:-1]))
        return ChainHead(*old[-1][:2]) if old else None

    def remove(self, through: int) -> None:
        self._execute("DELETE FROM records WHERE seq <= ?", through)

    def close(self) -> None:
        self._disconnect()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _fetch_page(self, query: str, edge: int) -> list[StoredRecord]:
        with _sqlite_errors_as_broken():
            return [_row_to_record(*values) for values in self._execute(query, edge, SQLITE_ROWS_PER_PAGE)]

    def _execute(self, query: str, *values: Any) -> sqlite3.Cursor:
        if self._db is None:
            raise OSError(f"{self._path} is not open")
        return self._db.execute(query, values)

    def _disconnect(self) -> None:
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
            self._db = None


def _connect_sqlite(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, check_same_thread=False, isolation_level=None, timeout=5.0
    )


def _row_to_record(seq: Any, hash: Any, body: Any) -> StoredRecord:
    if not (isinstance(seq, int) and isinstance(hash, str) and isinstance(body, str)):
        raise SinkBroken(f"record {seq} has invalid column types")
    return StoredRecord(seq, hash, body.encode())


@contextmanager
def _sqlite_errors_as_broken() -> Iterator[None]:
    """Convert SQLite errors about a damaged or foreign file into `SinkBroken`.

    Temporary errors, such as a locked database, pass unchanged.
    """
    try:
        yield
    except sqlite3.OperationalError as exc:
        if "no such table" in str(exc) or "Could not decode" in str(exc):
            raise SinkBroken(str(exc)) from None
        raise
    except sqlite3.DatabaseError as exc:
        raise SinkBroken(str(exc)) from None


# -- JSON lines --------------------------------------------------------------------------------------------------------


def create_jsonl_sink(settings: AuditSettings, read_only: bool) -> JsonlSink:
    return JsonlSink(settings.file, read_only=read_only)


class JsonlSink:
    """Audit sink that stores records as JSON lines in rotated files."""

    def __init__(
        self, path: str | os.PathLike[str], *, read_only: bool = False, max_file_bytes: int = MAX_FILE_BYTES
    ) -> None:
        self._path = Path(path)
        self._read_only = read_only
        self._max_file_bytes = max_file_bytes
        self._lock: int | None = None
        self._file: int | None = None
        self._size = 0
        self._inode = 0
        self._head = ChainHead()

    @property
    def location(self) -> str:
        return os.fspath(self._path)

    def open(self) -> TruncatedRecord | None:
        self._close_file()
        if self._read_only:
            self._path.stat()
            return None
        if self._lock is None:
            self._lock = lock_file(self._path)
        if detect_kind(self._path) == "sqlite":  # else it would be moved away as a partial record
            raise SinkBroken(f"{self._path} is a SQLite file, not JSON lines")
        create_private_file(self._path)
        truncated = self._move_truncated()
        self._head = next((ChainHead(row.seq, row.hash) for row in self.read_backward()), ChainHead())
        self._open_current()
        return truncated

    def head(self) -> ChainHead:
        return self._head

    def append(self, rows: list[StoredRecord]) -> None:
        if self._file is None:
            raise OSError(f"{self._path} is not open")
        if not is_same_file(self._path, self._inode):
            raise OSError(f"{self._path} was moved or removed")
        if os.fstat(self._file).st_size != self._size:
            raise OSError(f"{self._path} was written by another process, or cut off")
        if self._size >= self._max_file_bytes:
            self._rotate(rows[0].seq)
        data = b"".join(b'%s,"hash":"%s"}\n' % (row.body[:-1], row.hash.encode()) for row in rows)
        try:
            _write_all(self._file, data)
            sync_data(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)  # all of them or none
            raise
        self._size += len(data)
        self._head = ChainHead(rows[-1].seq, rows[-1].hash)

    def read_forward(self, after: int = 0) -> Iterator[StoredRecord]:
        files = self._files()
        firsts = [_first_seq(file) for file in files[1:]]
        for file, next_first in itertools.zip_longest(files, firsts):
            if next_first is None or next_first > after + 1:
                yield from (row for row in _read_records(file) if row.seq > after)

    def read_backward(self) -> Iterator[StoredRecord]:
        for file in reversed(self._files()):
            if file.stat().st_size > _MAX_READ_BYTES:  # it is read into memory
                raise SinkBroken(f"{file.name} is larger than a file that was written by Toolway")
            yield from reversed(list(_read_records(file)))

    def prunable(self, before: str) -> ChainHead | None:
        found = None
        for file in self._files()[:-1]:
            last = next(iter(deque(_read_records(file), maxlen=1)), None)
            time = _TIME_PATTERN.search(last.body) if last is not None else None
            if last is None or time is None or time[1].decode() >= before:
                break
            found = ChainHead(last.seq, last.hash)
        return found

    def remove(self, through: int) -> None:
        files = self._files()
        for file, after in itertools.pairwise(files):
            first = _first_seq(after)
            if first is None or first > through + 1:
                break
            file.unlink()

    def close(self) -> None:
        self._close_file()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _files(self) -> list[Path]:
        """Return the paths of all files of the log, from the oldest rotated file to the current one."""
        pattern = re.compile(rf"{re.escape(self._path.stem)}-[0-9]{{12}}{re.escape(self._path.suffix)}")
        old = [each for each in self._path.parent.iterdir() if pattern.fullmatch(each.name)]
        return [*sorted(old), *([self._path] if self._path.exists() else [])]

    def _open_current(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | O_UNSHARED)
        state = os.fstat(self._file)
        self._size, self._inode = state.st_size, state.st_ino
        sync_folder(self._path)

    def _rotate(self, seq: int) -> None:
        first = _first_seq(self._path)
        self._close_file()
        self._path.rename(self._path.with_stem(f"{self._path.stem}-{first or seq:012}"))
        create_private_file(self._path)
        self._open_current()

    def _move_truncated(self) -> TruncatedRecord | None:
        """Move a partial last line, and last lines that are not records, to a separate file.

        Return its size and path; None if the log ends with a record. Raises `SinkBroken` if no record is found
        near the end.
        """
        data = _read_end(self._path)
        valid_bytes = len(data)
        while valid_bytes and not (
            data[:valid_bytes].endswith(b"\n") and _is_record_line(_last_line(data[:valid_bytes]))
        ):
            valid_bytes = data.rfind(b"\n", 0, valid_bytes - 1) + 1
        size = self._path.stat().st_size
        if valid_bytes == len(data):
            return None
        if valid_bytes == 0 and len(data) < size:
            raise SinkBroken(f"the last {len(data)} bytes of {self._path} contain no record")
        start = size - len(data) + valid_bytes
        moved_to = self._path.with_suffix(f".torn-{start}")
        create_private_file(moved_to)
        moved_to.write_bytes(data[valid_bytes:])
        os.truncate(self._path, start)
        return TruncatedRecord(len(data) - valid_bytes, os.fspath(moved_to))

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _read_end(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 2 * MAX_LINE_BYTES))
        data = file.read()
    return data if size <= 2 * MAX_LINE_BYTES else data[data.find(b"\n") + 1 :]


def _last_line(data: bytes) -> bytes:
    return data[data.rfind(b"\n", 0, len(data) - 1) + 1 :]


def _is_record_line(line: bytes) -> bool:
    return _SEQ_PATTERN.match(line) is not None and _HASH_SUFFIX.fullmatch(line[:-1][-_HASH_SUFFIX_BYTES:]) is not None


def _read_records(file: Path) -> Iterator[StoredRecord]:
    with file.open("rb") as lines:
        while line := lines.readline(MAX_LINE_BYTES + 1):
            yield _line_to_record(line, file)


def _line_to_record(line: bytes, file: Path) -> StoredRecord:
    seq = _SEQ_PATTERN.match(line)
    text = line.removesuffix(b"\n")
    tail = _HASH_SUFFIX.fullmatch(text[-_HASH_SUFFIX_BYTES:])
    if seq is None or tail is None:
        raise SinkBroken(f"{file.name} contains a line that is not a record: {line[:40]!r}")
    return StoredRecord(int(seq[1]), tail[1].decode(), text[:-_HASH_SUFFIX_BYTES] + b"}")


def _first_seq(file: Path) -> int | None:
    return next((row.seq for row in _read_records(file)), None)
