"""The log in a file of one JSON object a line, for those who collect files.

    {"seq":7,"prev":"…","kind":"call.intent",…,"hash":"…"}

The hash, which every line ends with, is that of the line without it. A file that has become large is set aside under a
name that begins with its first number, and a new one is begun; what is too old is removed by whole files. A last line
that was written in part is moved to a file of its own.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from toolway.telemetry.audit.files import is_same_file, lock, make_private, sync_folder
from toolway.telemetry.audit.records import Head, Row
from toolway.telemetry.audit.sink import SinkBroken, Torn

LARGEST: Final = 64 * 1024 * 1024
LONGEST: Final = 1024 * 1024  # bytes of one line: no record of ours has as many
_TAIL: Final = re.compile(rb',"hash":"([0-9a-f]{64})"\}')
_TAIL_SIZE: Final = len(b',"hash":""}') + 64
_SEQ: Final = re.compile(rb'\{"seq":([0-9]{1,18}),')
_TIME: Final = re.compile(rb'"time":"([0-9TZ:.-]{20,32})"')


class JsonlSink:
    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False, largest: int = LARGEST) -> None:
        self._path = Path(path)
        self._read_only = read_only
        self._largest = largest
        self._lock: int | None = None
        self._file: int | None = None
        self._size = 0
        self._inode = 0
        self._head = Head()

    @property
    def where(self) -> str:
        return os.fspath(self._path)

    def open(self) -> Torn | None:
        self._shut()
        if self._read_only:
            self._path.stat()
            return None
        if self._lock is None:
            self._lock = lock(self._path)
        make_private(self._path)
        torn = self._set_torn_aside()
        self._head = next((Head(row.seq, row.hash) for row in self.backward()), Head())
        self._begin()
        return torn

    def head(self) -> Head:
        return self._head

    def append(self, rows: list[Row]) -> None:
        if self._file is None:
            raise OSError(f"{self._path} is not open")
        if not is_same_file(self._path, self._inode):
            raise OSError(f"{self._path} was moved away or removed")
        if self._size >= self._largest:
            self._begin_next(rows[0].seq)
        data = b"".join(b'%s,"hash":"%s"}\n' % (row.body[:-1], row.hash.encode()) for row in rows)
        try:
            _write(self._file, data)
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)  # all of them or none
            raise
        self._size += len(data)
        self._head = Head(rows[-1].seq, rows[-1].hash)

    def forward(self, after: int = 0) -> Iterator[Row]:
        files = self._files()
        firsts = [_first(file) for file in files[1:]]
        for file, next_first in itertools.zip_longest(files, firsts):
            if next_first is None or next_first > after + 1:
                yield from (row for row in _rows(file) if row.seq > after)

    def backward(self) -> Iterator[Row]:
        for file in reversed(self._files()):
            yield from reversed(list(_rows(file)))

    def removable(self, before: str) -> Head | None:
        found = None
        for file in self._files()[:-1]:
            last = next(iter(deque(_rows(file), maxlen=1)), None)
            time = _TIME.search(last.body) if last is not None else None
            if last is None or time is None or time[1].decode() >= before:
                break
            found = Head(last.seq, last.hash)
        return found

    def remove(self, through: int) -> None:
        files = self._files()
        for file, after in itertools.pairwise(files):
            first = _first(after)
            if first is None or first > through + 1:
                break
            file.unlink()

    def close(self) -> None:
        self._shut()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _files(self) -> list[Path]:
        """From the oldest to the one that is written to."""
        pattern = re.compile(rf"{re.escape(self._path.stem)}-[0-9]{{12}}{re.escape(self._path.suffix)}")
        old = [each for each in self._path.parent.iterdir() if pattern.fullmatch(each.name)]
        return [*sorted(old), *([self._path] if self._path.exists() else [])]

    def _begin(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        state = os.fstat(self._file)
        self._size, self._inode = state.st_size, state.st_ino
        sync_folder(self._path)

    def _begin_next(self, seq: int) -> None:
        first = _first(self._path)
        self._shut()
        self._path.rename(self._path.with_stem(f"{self._path.stem}-{first or seq:012}"))
        make_private(self._path)
        self._begin()

    def _set_torn_aside(self) -> Torn | None:
        """Move what follows the last whole line, and whole lines at the end that are no records, out of the way."""
        data = _end_of(self._path)
        good = len(data)
        while good and not (data[:good].endswith(b"\n") and _is_whole(_last_line(data[:good]))):
            good = data.rfind(b"\n", 0, good - 1) + 1
        size = self._path.stat().st_size
        if good == len(data):
            return None
        if good == 0 and len(data) < size:
            raise SinkBroken(f"the last {len(data)} bytes of {self._path} hold no record")
        start = size - len(data) + good
        kept = self._path.with_suffix(f".torn-{start}")
        make_private(kept)
        kept.write_bytes(data[good:])
        os.truncate(self._path, start)
        return Torn(len(data) - good, os.fspath(kept))

    def _shut(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 2 * LONGEST))
        data = file.read()
    return data if size <= 2 * LONGEST else data[data.find(b"\n") + 1 :]


def _last_line(data: bytes) -> bytes:
    return data[data.rfind(b"\n", 0, len(data) - 1) + 1 :]


def _is_whole(line: bytes) -> bool:
    return _SEQ.match(line) is not None and _TAIL.fullmatch(line[:-1][-_TAIL_SIZE:]) is not None


def _rows(file: Path) -> Iterator[Row]:
    with file.open("rb") as lines:
        while line := lines.readline(LONGEST + 1):
            yield _row(line, file)


def _row(line: bytes, file: Path) -> Row:
    seq = _SEQ.match(line)
    text = line.removesuffix(b"\n")
    tail = _TAIL.fullmatch(text[-_TAIL_SIZE:])
    if seq is None or tail is None:
        raise SinkBroken(f"{file.name} has a line that is no record: {line[:40]!r}")
    return Row(int(seq[1]), tail[1].decode(), text[:-_TAIL_SIZE] + b"}")


def _first(file: Path) -> int | None:
    return next((row.seq for row in _rows(file)), None)
