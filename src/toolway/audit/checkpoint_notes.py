"""Notes of checkpoints: each audit log's newest signatures, kept away from the log.

A log that lacks the record of its newest note was cut off, is an older copy, or was removed. If it is in a file, it is
then not opened. If an administrator begins it again (`restart.py`), its first record names that note, and the notes
are put aside:

    audit-signing.checkpoints-1f0c9a2b      of the log that is written now
    audit-signing.checkpoints-1f0c9a2b.1    of the log before it; these files are kept
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from toolway._os import O_PRIVATE
from toolway.audit.checkpoints import Checkpoint, missing_end, read_checkpoints
from toolway.audit.mac import RecordMacs
from toolway.audit.sink import LOG_RESTARTED, AuditSink, ChainHead, RecordFields, StoredRecord
from toolway.audit.verify import verify_record

MAX_NOTES: Final = 1_000  # newest checkpoints in the file: six weeks
MAX_NOTES_BYTES: Final = 1024 * 1024


class CheckpointNotes:
    """Files with each audit log's newest checkpoints, next to the private key, not the log."""

    def __init__(self, key_file: Path | None, *, in_files: bool = True) -> None:
        """Create the notes of checkpoints, in files next to `key_file`. If `key_file` is None, nothing is stored.

        `in_files` means that the logs are files, so a log that lacks a noted record is not opened. A log in a database
        is opened anyway, because another node may have continued or replaced it.
        """
        self._key_file = key_file
        self._in_files = in_files

    def _paths(self, location: str) -> list[Path]:
        """Return the note files for the log at `location`: for its path, and for a link's target.

        Both are needed. With the first alone, a log that is read by another path has no notes. With the second alone, a
        user who can write to the folder of the log would replace the log and its notes by a link.
        """
        assert self._key_file is not None
        names = {os.path.abspath(location), os.path.realpath(location)} if self._in_files else {location}
        hashes = (hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:8] for name in sorted(names))
        return [self._key_file.with_name(f"{self._key_file.stem}.checkpoints-{each}") for each in hashes]

    def read(self, location: str) -> list[Checkpoint]:
        """Return the checkpoints that the notes contain for the log at `location`, oldest first.

        Invalid lines are skipped.
        """
        if self._key_file is None:
            return []
        found = {each for path in self._paths(location) for each in _read_file(path)}
        return sorted(found, key=lambda each: each.through)[-MAX_NOTES:]

    def read_for(self, sink: AuditSink, macs: RecordMacs | None) -> list[Checkpoint]:
        """Return the checkpoints that the open log `sink` must match.

        The list is empty if an administrator has restarted this log, and the earlier log's notes were not set aside
        yet.
        """
        found = self.read(sink.location)
        return [] if found and is_confirmed(next(sink.read_forward(), None), found[-1], macs) else found

    def add(self, location: str, new: Checkpoint) -> None:
        """Store a checkpoint in the notes of the log at `location`. Raises `OSError` if the file cannot be written."""
        if self._key_file is None:
            return
        found = self.read(location)
        if found and new.through < found[-1].through:
            self._put_aside(location)  # another log took its place in the database
            found = []
        for path in self._paths(location):
            _write_file(path, [*found, new][-MAX_NOTES:])

    def begin_again(self, location: str, first: Checkpoint) -> None:
        """Set an earlier log's notes aside, and store the first checkpoint of its replacement."""
        if self._key_file is not None:
            self._put_aside(location)
            self.add(location, first)

    def check_log(self, sink: AuditSink, head: ChainHead, macs: RecordMacs | None = None) -> RecordFields | None:
        """Check before writing that a log still has the record that its newest noted checkpoint names.

        `head` is the log's last record. If an empty log in a database is accepted, return the end of the earlier log,
        for the field `after` of the first record, or else None. Raises `MissingLog` if the log was removed, and
        `TamperedLog` if its end is missing.
        """
        found = self.read(sink.location)
        if not found:
            return None
        if head == ChainHead() and not self._in_files:
            self._put_aside(sink.location)
            return {"seq": found[-1].through, "hash": found[-1].hash}
        if is_confirmed(next(sink.read_forward(), None), found[-1], macs):
            self._put_aside(sink.location)  # a crash kept `begin_again` from it
        elif self._in_files:
            self.compare(sink, head, macs)
        return None

    def compare(self, sink: AuditSink, head: ChainHead, macs: RecordMacs | None) -> None:
        """Raise `TamperedLog` if an open log that ends with `head` lacks the record of its newest noted checkpoint."""
        newest = max(self.read_for(sink, macs), key=lambda each: each.through, default=None)
        if newest is None:
            return
        row = next(sink.read_forward(newest.through - 1), None) if newest.through <= head.seq else None
        if row is None or (row.seq == newest.through and row.hash != newest.hash):  # a later one: it was pruned
            raise missing_end(newest, head)

    def _put_aside(self, location: str) -> None:
        """Rename a log's notes. Earlier notes that were renamed are kept."""
        for path in self._paths(location):
            if path.exists():
                names = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
                os.rename(path, next(name for name in names if not name.exists()))


def is_confirmed(first: StoredRecord | None, noted: Checkpoint, macs: RecordMacs | None) -> bool:
    """Return True if an administrator restarted this log after the log that `noted` belongs to.

    `first` is the first record of the log. It counts only with a valid MAC.
    """
    if first is None or first.seq != 1 or b'"log.restart"' not in first.body:
        return False
    verify_record(first)
    if macs is not None and not macs.check(first.body):
        return False
    fields = first.fields()
    return fields.get("kind") == LOG_RESTARTED and fields.get("after") == {"seq": noted.through, "hash": noted.hash}


def _read_file(path: Path) -> list[Checkpoint]:
    try:
        with path.open("rb") as file:
            lines = file.read(MAX_NOTES_BYTES).splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found += read_checkpoints(line)
        except ValueError:
            continue
    return found


def _write_file(path: Path, found: Iterable[Checkpoint]) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | O_PRIVATE, 0o600)
    with os.fdopen(handle, "wb") as out:
        out.write(b"".join(msgspec.json.encode(each) + b"\n" for each in found))
        out.flush()
        os.fsync(out.fileno())
    os.replace(draft, path)
