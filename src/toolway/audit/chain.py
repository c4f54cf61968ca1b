"""The audit log's hash chain in the writer thread: opens, recovers, writes, and prunes it.

When the log is opened, its newest records are verified. A changed record is an error, because the records after it
cannot be trusted either. Calls from the last run that have an intent but no outcome get the outcome "unknown".
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from toolway._version import __version__
from toolway.audit.mac import RecordMacs
from toolway.audit.sink import (
    CALL_INTENT,
    CALL_OUTCOME,
    LOG_CLOSED,
    LOG_OPENED,
    LOG_PRUNED,
    LOG_TRUNCATED,
    AuditSink,
    ChainHead,
    RecordFields,
    SinkBroken,
    StoredRecord,
    SwitchableSink,
    encode_record,
    format_time,
    link_records,
)
from toolway.audit.verify import TamperedLog, verify_mac, verify_record
from toolway.config.settings import SECONDS_PER_DAY
from toolway.errors import Certainty

if TYPE_CHECKING:
    from toolway.audit.checkpoint_notes import CheckpointNotes
    from toolway.audit.journal import Journal

MAX_VERIFIED_ON_OPEN: Final = 100_000  # records verified on opening; always at least the last run's records
MAX_RECORDS_PER_WRITE: Final = 4_000
_log = logging.getLogger("toolway.audit")
_COPIED_FIELDS: Final = ("call", "caller", "server", "tool", "method", "effect", "key", "arguments")


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """The result of opening an audit log: the last record, recovered calls, and a note about a partial record."""

    head: ChainHead
    recovered: tuple[RecordFields, ...] = ()  # outcomes that were added for calls interrupted by a crash
    truncated: str = ""


@dataclass(frozen=True, slots=True)
class LastRun:
    """What a log says about its last writer process, from its `log.open` record on."""

    name: str  # as its `log.open` record names it; empty if it had no journal
    last_entry: int  # highest number of a record from a journal; 0 if there is none
    interrupted: tuple[RecordFields, ...]  # intents without an outcome, oldest first


class AuditChain:
    """Writes records to an audit sink and links each to the one before it by its hash.

    Used only in the writer thread.
    """

    def __init__(
        self,
        sink: AuditSink,
        macs: RecordMacs,
        *,
        journal: Journal | None = None,
        notes: CheckpointNotes | None = None,
        wall_clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sink = sink
        self._notes = notes
        self._journal = journal
        self._run = secrets.token_hex(16) if journal is not None else ""
        self._macs = macs
        self._wall_clock = wall_clock
        self._monotonic = monotonic
        self._head = ChainHead()
        self._uncertain_rows: list[StoredRecord] = []  # rows of a failed write, which may be stored or not
        self._needs_reopen = False

    def open(self) -> OpenedLog:
        """Open the audit log, verify its newest records, and add outcomes for interrupted calls.

        Raises `TamperedLog` if a record was changed or is missing, `SinkInUse` if another process is writing to the
        log, `SinkBroken` if it cannot be read, and any storage error.
        """
        truncated = self.sink.open()
        self._head = head = self.sink.head()
        after = self._notes.check_log(self.sink, head, self._macs) if self._notes is not None else None
        last_run = self._read_last_run()
        set_aside = self._store_journal(self._journal, last_run) if self._journal is not None else ""
        if self._head != head:
            last_run = self._read_last_run()
        recovered = [_unknown_outcome(intent) for intent in last_run.interrupted]
        opened = {**self._opened_fields(), "after": after} if after is not None else self._opened_fields()
        entries = [self._encode_entry(LOG_OPENED, opened)]
        if truncated is not None:
            entries.append(self._encode_entry(LOG_TRUNCATED, {"bytes": truncated.size, "moved_to": truncated.moved_to}))
        if set_aside:
            entries.append(self._encode_entry(LOG_TRUNCATED, {"moved_to": set_aside}))
        entries += [self._encode_entry(CALL_OUTCOME, fields) for fields in recovered]
        self.write(entries)
        if self._journal is not None:
            self._journal.start(self._run)
        return OpenedLog(self._head, tuple(recovered), str(truncated) if truncated is not None else "")

    def _store_journal(self, journal: Journal, last_run: LastRun) -> str:
        """Store the last run's records that are only in the journal, and remove the journal.

        If the journal belongs to another log, rename it and return its new path. Otherwise return "".
        """
        left = journal.left_run()
        if left and left != last_run.name:
            moved_to = journal.set_aside()
            _log.warning("the journal of another audit log was found, and is now in %s", moved_to)
            return moved_to
        found = journal.read() if left else None
        records = [record for number, record in found.entries if number > last_run.last_entry] if found else []
        for start in range(0, len(records), MAX_RECORDS_PER_WRITE):
            self.write(records[start : start + MAX_RECORDS_PER_WRITE])
        journal.remove_all()
        return ""

    def _opened_fields(self) -> RecordFields:
        fields: RecordFields = {"version": __version__, "pid": os.getpid()}
        return {**fields, "run": self._run} if self._run else fields

    def write(self, entries: list[bytes]) -> None:
        """Append encoded records to the log. They are on stable storage when this returns.

        Raises the sink's errors. After an error, the records may or may not be stored: the next write reopens the log
        and finds out.
        """
        if self._needs_reopen:
            self._reopen()
        rows = self._link(self._head, entries)
        try:
            self.sink.append(rows)
        except Exception:
            self._uncertain_rows = rows
            self._needs_reopen = True
            raise
        self._head = ChainHead(rows[-1].seq, rows[-1].hash)

    @property
    def head(self) -> ChainHead:
        """Return the number and hash of the last audit record that is on stable storage."""
        return self._head

    def prune(self, keep_s: float) -> bool:
        """Remove one batch of audit records older than `keep_s` seconds.

        Return True if records were removed, so there may be more.
        """
        if self._needs_reopen:
            return False
        before = format_time(self._wall_clock() - keep_s)
        last = self.sink.prunable(before)
        if last is None:
            return False
        rule = {"before": before, "keep_days": keep_s / SECONDS_PER_DAY}
        self.write([self._encode_entry(LOG_PRUNED, {"through": last.seq, "hash": last.hash, **rule})])
        self.sink.remove(last.seq)
        return True

    def close(self) -> None:
        try:
            if not self._needs_reopen:
                self.write([self._encode_entry(LOG_CLOSED, {})])
        finally:
            self.sink.close()

    def _link(self, head: ChainHead, entries: list[bytes]) -> list[StoredRecord]:
        return link_records(head, entries, self._macs.add)

    def _encode_entry(self, kind: str, fields: RecordFields) -> bytes:
        return encode_record(kind, self._wall_clock(), self._monotonic(), fields)

    def _reopen(self) -> None:
        """Reopen the sink after a failed write, and find out whether that write's records are stored.

        Starts a new log if another writer continued the old one, or if the old one was removed before its first
        checkpoint. Raises `MissingLog` if it was removed later, and `SinkBroken` if it ends with an unexpected record.
        """
        self.sink.open()
        found = self.sink.head()
        uncertain = {ChainHead(row.seq, row.hash) for row in self._uncertain_rows[-1:]}
        lost = found != self._head and found not in uncertain
        if lost and found != ChainHead() and isinstance(self.sink, SwitchableSink) and self.sink.switch_to_empty():
            found = ChainHead()  # another writer continued our log
        if found == ChainHead() and self._head != ChainHead():
            if self._notes is not None:
                self._notes.check_log(self.sink, found)
            # The log was removed, and no log was ever signed here. Start a new log, and record which one it continues.
            after = {"seq": self._head.seq, "hash": self._head.hash}
            rows = self._link(found, [self._encode_entry(LOG_OPENED, {**self._opened_fields(), "after": after})])
            self.sink.append(rows)
            found = ChainHead(rows[-1].seq, rows[-1].hash)
        elif lost:
            raise SinkBroken(f"{self.sink.location} does not end with what was last written to it")
        self._head, self._uncertain_rows, self._needs_reopen = found, [], False

    def _read_last_run(self) -> LastRun:
        """Verify the log's newest records, and return what they say about the last writer.

        Raises `TamperedLog` if a record was changed or is missing.
        """
        return read_last_run(read_verified(self.sink.read_backward(), self._macs))


def read_last_run(rows: Iterable[tuple[StoredRecord, bool]]) -> LastRun:
    """Return what the log says about the last writer: its name, last journal entry, and unfinished calls.

    `rows` are records, newest first, each with True if that process may have written it. Reading stops at that
    process's first record, `log.open`.
    """
    ended: set[str] = set()
    interrupted: list[RecordFields] = []
    name, last_entry, is_complete = "", 0, False
    for row, in_last_run in rows:
        if is_complete or not in_last_run:
            continue
        fields = _decode_fields(row)
        kind, call = fields.get("kind"), str(fields.get("call", ""))
        if kind == LOG_OPENED:
            name, is_complete = str(fields.get("run", "")), True
        elif kind == CALL_OUTCOME:
            ended.add(call)
        elif kind == CALL_INTENT and call not in ended:
            interrupted.append(fields)
        if isinstance(entry := fields.get("entry"), int):
            last_entry = max(last_entry, entry)
    return LastRun(name, last_entry, tuple(interrupted[::-1]))


def read_verified(rows: Iterator[StoredRecord], macs: RecordMacs | None) -> Iterator[tuple[StoredRecord, bool]]:
    """Verify audit records, newest first. Yield each record, and True if the last writer process wrote it.

    Stops after `MAX_VERIFIED_ON_OPEN` records, but not within the last run. Raises `TamperedLog` if a record was
    changed or is missing.
    """
    expected_hash = ""
    seq = 0
    in_last_run = True
    for count, row in enumerate(rows, 1):
        prev = verify_record(row)
        verify_mac(row, macs)
        if expected_hash and row.seq != seq - 1:
            raise TamperedLog(seq, f"it follows record {row.seq}: the records between them are missing")
        if expected_hash and row.hash != expected_hash:
            raise TamperedLog(seq, f"its `prev` is not the hash of record {row.seq} before it")
        yield row, in_last_run
        if in_last_run and _decode_fields(row).get("kind") == LOG_OPENED:
            in_last_run = False
        if not in_last_run and count >= MAX_VERIFIED_ON_OPEN:
            return
        expected_hash, seq = prev, row.seq


def _decode_fields(row: StoredRecord) -> RecordFields:
    try:
        return row.fields()
    except ValueError as exc:
        raise TamperedLog(row.seq, f"it cannot be read: {exc}") from None


def _unknown_outcome(intent: RecordFields) -> RecordFields:
    fields: RecordFields = {name: intent[name] for name in _COPIED_FIELDS if name in intent}
    outcome = {"certainty": Certainty.UNKNOWN.code, "outcome": "unknown"}
    return {**fields, **outcome, "recovered": True, "intent": intent.get("seq")}
