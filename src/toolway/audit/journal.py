"""Journal in front of the audit log: one small write puts records on disk; the log follows later.

A group of records is appended to a segment file and synced (`fdatasync`). So a call waits for one short write, and not
for a transaction of the log. The records of a group share one MAC, which covers the MAC of the group before. The log
itself gets the records in large batches (`writer.py`). A segment is deleted when all its records are in the log.

Each record gets a number, its field `entry`, that counts the records of this run of the program. A killed process
leaves segments behind. The next start stores those records that the log does not have: the ones with a number above the
last `entry` in the log. The log names the run (`run` in `log.open`), so the journal of another log is never stored.

    segment   magic, run, number of the first record, MAC of the group before
    group     number of the first record, count, bytes of the records, the records as lines, MAC
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from toolway._os import O_PRIVATE, sync_data
from toolway.audit.sink import SinkBroken, create_private_file, is_same_file, sync_folder

MAX_SEGMENT_BYTES: Final = 8 * 1024 * 1024
RUN_BYTES: Final = 16  # length of a run's name
_MAGIC: Final = b"TWAUDIT1"
_MAC_BYTES: Final = 32
_HEADER: Final = struct.Struct(f">8s{RUN_BYTES}sQ{_MAC_BYTES}s")
_GROUP_HEAD: Final = struct.Struct(">QII")
_NO_MAC: Final = bytes(_MAC_BYTES)  # MAC before the first group of a run


class JournalBroken(SinkBroken):
    """Raised when the journal lacks records, or has some that were not written with this log's key."""


class JournalContent(NamedTuple):
    """The records that an earlier process left in the journal because it ended before all were in the audit log."""

    run: str  # hex; names the run in its `log.open` record
    entries: list[tuple[int, bytes]]  # number and record, in order
    torn_bytes: int = 0  # bytes of a last group that was only partly written, so no call was sent because of it


class _Segment(NamedTuple):
    path: Path
    first: int  # number of its first record


class _Group(NamedTuple):
    first: int  # number of its first record
    records: list[bytes]
    mac: bytes
    end: int  # position after it in its segment


class Journal:
    """Append-only files with the records that may not be in the audit log yet.

    Use it in one thread at a time. The log's lock protects the journal too, because the journal is only used after the
    log was opened.
    """

    def __init__(
        self, log: str | os.PathLike[str], key: bytes = b"", max_segment_bytes: int = MAX_SEGMENT_BYTES
    ) -> None:
        """Create the journal of the audit log `log`. Its segment files are next to the log, with MACs under `key`."""
        self._log = Path(log)
        self._key = hmac.digest(key, b"toolway audit journal", "sha256")
        self._max_segment_bytes = max_segment_bytes
        self._run = b""
        self._segments: list[_Segment] = []
        self._file: int | None = None
        self._size = self._inode = 0
        self._last_mac = _NO_MAC

    # -- writing ------------------------------------------------------------------------------------------------------

    def start(self, run: str) -> None:
        """Begin a new run, which is one process's records.

        The segments of an earlier run must have been read and removed.
        """
        self.close()
        self._run, self._segments, self._last_mac = bytes.fromhex(run), [], _NO_MAC

    def append(self, first: int, records: list[bytes]) -> None:
        """Append records to the journal, numbered from `first`. They are on disk when this method returns.

        If it raises `OSError`, none of them counts as written, and the next call begins a new segment.
        """
        lines = b"\n".join(records)
        head = _GROUP_HEAD.pack(first, len(records), len(lines))
        mac = self._compute_mac(self._run, self._last_mac, head, lines)
        try:
            if self._file is None or self._size >= self._max_segment_bytes:
                self._open_segment(first)
            assert self._file is not None
            if not is_same_file(self._segments[-1].path, self._inode):
                raise OSError(f"{self._segments[-1].path} was moved or removed")
            data = b"%b%b%b" % (head, lines, mac)
            _write(self._file, data)
            sync_data(self._file)
        except OSError:
            self._leave_segment(first)
            raise
        self._size += len(data)
        self._last_mac = mac

    def remove_through(self, number: int) -> None:
        """Delete the journal files (segments) that only have records with numbers up to `number`.

        Call this once the log has those records.
        """
        while len(self._segments) > 1 and self._segments[1].first <= number + 1:
            self._segments.pop(0).path.unlink(missing_ok=True)

    def remove_all(self) -> None:
        """Delete all segment files of the journal, because the audit log has all their records."""
        self.close()
        for path in self._paths():
            path.unlink(missing_ok=True)
        self._segments = []

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open_segment(self, first: int) -> None:
        self.close()
        paths = self._paths()
        path = self._path(_segment_number(paths[-1]) + 1 if paths else 1)
        create_private_file(path)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | O_PRIVATE)
        self._segments.append(_Segment(path, first))
        self._inode = os.fstat(self._file).st_ino
        _write(self._file, _HEADER.pack(_MAGIC, self._run, first, self._last_mac))
        self._size = _HEADER.size
        sync_folder(path)

    def _leave_segment(self, first: int) -> None:
        """Close the current segment file, after the write of the record `first` failed.

        Delete the file if it contains no earlier record.
        """
        self.close()
        if self._segments and self._segments[-1].first == first:
            self._segments.pop().path.unlink(missing_ok=True)

    # -- reading ------------------------------------------------------------------------------------------------------

    def left_run(self) -> str:
        """Return the id of the earlier writer process whose segment files still exist, or "".

        That process's `log.open` record has the same id in its field `run`.
        """
        for path in self._paths():
            header = path.read_bytes()[: _HEADER.size]
            if len(header) == _HEADER.size:
                return header[len(_MAGIC) : len(_MAGIC) + RUN_BYTES].hex()
        return ""

    def read(self) -> JournalContent | None:
        """Return the records in segment files, or None without files. Some of the records may not be in the log.

        An incomplete last group is left out, because no call was sent after it. Raises `JournalBroken` if a group was
        changed or is missing.
        """
        run, torn, last_mac = b"", 0, _NO_MAC
        entries: dict[int, bytes] = {}
        macs: dict[bytes, int] = {}  # MAC of each group → number after its last record
        for path in self._paths():
            data = path.read_bytes()
            if len(data) < _HEADER.size:
                torn += len(data)
                continue
            magic, its_run, first, follows = _HEADER.unpack_from(data)
            if magic != _MAGIC or (run and its_run != run):
                raise JournalBroken(f"{path.name} does not belong to the journal")
            if not macs:
                run, last_mac, macs[follows] = its_run, follows, first
            elif follows != last_mac:
                # A write to the segment before failed after this group. What follows it was never confirmed.
                if follows not in macs:
                    raise JournalBroken(f"{path.name} does not follow the segment before it")
                for number in [number for number in entries if number >= macs[follows]]:
                    del entries[number]
                last_mac = follows
            end = _HEADER.size
            for group in self._read_groups(data, run, last_mac):
                entries |= dict(enumerate(group.records, group.first))
                last_mac, end = group.mac, group.end
                macs[last_mac] = group.first + len(group.records)
            if end < len(data):
                torn += len(data) - end
                if _group_end(data, end) < len(data):  # only the last group of a segment can be incomplete
                    raise JournalBroken(f"{path.name} was changed after it was written")
        if not macs:
            return None
        return JournalContent(run.hex(), sorted(entries.items()), torn)

    def _read_groups(self, data: bytes, run: bytes, mac: bytes) -> Iterator[_Group]:
        """Yield the groups of records in a segment file, up to the first that is incomplete or has a wrong MAC."""
        at = _HEADER.size
        while len(data) >= at + _GROUP_HEAD.size:
            first, count, size = _GROUP_HEAD.unpack_from(data, at)
            start, end = at + _GROUP_HEAD.size, at + _GROUP_HEAD.size + size + _MAC_BYTES
            if end > len(data):
                return
            lines, found = data[start : start + size], data[end - _MAC_BYTES : end]
            expected = self._compute_mac(run, mac, data[at:start], lines)
            records = lines.split(b"\n")
            if not hmac.compare_digest(found, expected) or len(records) != count:
                return
            mac, at = found, end
            yield _Group(first, records, mac, end)

    def set_aside(self) -> str:
        """Rename journal files (segments) that belong to another audit log, so they are kept but not read again.

        Return the new path of the first one.
        """
        run, moved_to = self.left_run()[:8], ""
        for path in self._paths():
            target = path.with_name(path.name.replace(".journal-", f".journal-of-{run or 'unknown'}-"))
            path.rename(target)
            moved_to = moved_to or os.fspath(target)
        return moved_to

    def _paths(self) -> list[Path]:
        pattern = re.compile(rf"{re.escape(self._log.name)}\.journal-[0-9]{{8}}")
        if not self._log.parent.exists():
            return []
        return sorted(each for each in self._log.parent.iterdir() if pattern.fullmatch(each.name))

    def _path(self, number: int) -> Path:
        return self._log.with_name(f"{self._log.name}.journal-{number:08}")

    def _compute_mac(self, run: bytes, before: bytes, head: bytes, lines: bytes) -> bytes:
        found = hashlib.blake2b(key=self._key, digest_size=_MAC_BYTES)
        for part in (run, before, head, lines):
            found.update(part)
        return found.digest()


def _segment_number(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _group_end(data: bytes, at: int) -> int:
    """Return the position after the group of records at `at`, by the length in the group's head.

    If the head is incomplete, return the end of the data.
    """
    return (
        at + _GROUP_HEAD.size + _GROUP_HEAD.unpack_from(data, at)[2] + _MAC_BYTES
        if len(data) >= at + _GROUP_HEAD.size
        else len(data)
    )


def _write(file: int, data: bytes) -> None:
    """Write all data at once. Raises `OSError` if only part of it was written, for example on a full disk."""
    written = os.write(file, data)
    if written < len(data):
        raise OSError(f"only {written} of {len(data)} bytes were written")
