"""Asynchronous writer of the audit log: group commit, and a buffer for times of failure.

Theory of operation
===================

There are two kinds of records. An *intent* has a waiter, a callback: the call that it announces is sent only after the
record is on disk (`start_commit`; `commit` is the same with a future). All other records have none (`enqueue`). Each
kind has its own queue.

A write takes everything that is queued, up to `GROUP_SIZE` of each kind, and stores it with one fsync. Only one write
is in progress at a time. Records that arrive during it form the next group, so the group size adapts to the load: one
call pays one fsync, a thousand concurrent calls share it. Three things start a write: an intent at the end of the
current loop iteration, so calls of the same iteration share it; a record without waiter after `FLUSH_DELAY_S`; and
the end of the previous write. In a group the intents precede the other records, so no outcome precedes its intent.

With a journal (`journal.py`), a write goes there, and the records are then stored in the log in large batches, each one
transaction. So a call waits only for the journal. Records that are not in the log yet are kept in memory, up to
`MAX_UNSTORED`; beyond that no write starts until the log has caught up. Without a journal a write goes to the log.

Writes may block for as long as the disk does. Journal and log each have a `WorkerThread`, which reports the end of each
write to the loop. All state is changed in the event loop only, so it works without locks.

The log has two states, distinguished by `failure`:

    writable    failure is None    `start_commit` queues                    `enqueue` queues
    unwritable  failure is set     `start_commit` raises AuditUnavailable   `enqueue` buffers, then drops and counts

A failed write of journal or log, a write that exceeds its timeout, or a full buffer makes the log unwritable
(`_set_failure`). All
waiters are rejected: their calls are not sent, so their intents are dropped, not retried. Records of a failed write
return to the head of their queue. Attempts continue with a growing delay, each with a `log.resumed` record that names
the reason, the duration and the number of lost records. The first write that succeeds makes the log writable again. A
write after its timeout is still in progress; no other one starts until it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from toolway._async import settle_future
from toolway._worker_thread import WorkerThread
from toolway.audit.chain import MAX_RECORDS_PER_WRITE, AuditChain, OpenedLog
from toolway.audit.mac import RecordMacs
from toolway.audit.sink import LOG_RESUMED, AuditSink, ChainHead, RecordFields, encode_record, encode_stamped
from toolway.secrets.detection import mask_secrets

if TYPE_CHECKING:
    from toolway.audit.checkpoint_notes import CheckpointNotes
    from toolway.audit.journal import Journal

#: Receives the end of a commit in the event loop: None if the record is on disk, else the reason. Must not raise.
CommitCallback = Callable[["AuditUnavailable | None"], None]

MAX_BUFFERED_RECORDS: Final = 10_000  # of each kind
MAX_BUFFERED_BYTES: Final = 32 * 1024 * 1024
GROUP_SIZE: Final = 2_000  # records with a waiter per write, and the same number without
FLUSH_DELAY_S: Final = 0.05  # for records without a waiter
STORE_DELAY_S: Final = 0.1  # between a write to the journal and the next batch for the log
MAX_UNSTORED: Final = 20_000  # records in the journal that are not in the log yet
WRITE_TIMEOUT_S: Final = 10.0  # then the disk counts as dead
RETRY_DELAYS_S: Final = (0.1, 2.0)  # between two attempts to write: initial and maximum
OPEN_TIMEOUT_S: Final = 60.0
CLOSE_TIMEOUT_S: Final = 5.0
PRUNE_INTERVAL_S: Final = 3600.0  # between two removals of expired records
BUFFER_FULL_REASON: Final = "too many records are queued"
_log = logging.getLogger("toolway.audit")


class AuditUnavailable(Exception):
    """Raised when the audit log cannot be written now, so a record is not stored."""


class _Group(NamedTuple):
    """Records that one write stores together: intents with the callbacks that wait for them, and other records."""

    intents: list[bytes]
    waiters: list[CommitCallback]
    records: list[bytes]

    def __len__(self) -> int:
        return len(self.intents) + len(self.records)


class WriteFailure(NamedTuple):
    """Reason why the audit log cannot be written, and start of the failure on the loop clock."""

    reason: str
    since: float


class AuditWriter:
    """Asynchronous writer of the audit log: queues records and writes them in groups."""

    def __init__(
        self,
        sink: AuditSink,
        macs: RecordMacs,
        *,
        journal: Journal | None = None,
        notes: CheckpointNotes | None = None,
        keep_s: float = 0.0,
        write_timeout: float = WRITE_TIMEOUT_S,
        wall_clock: Callable[[], float] = time.time,
        on_state_change: Callable[[str, int], None] = lambda reason, lost: None,
    ) -> None:
        """Create the writer of an audit log. `macs` adds a MAC to each record. `journal` gets records before the log.
        `notes`: a log whose noted end is missing is not opened. `keep_s`: seconds for which records are stored;
        0 = no limit.

        `on_state_change` gets the reason when the log becomes unwritable. When it is writable again, it gets an
        empty reason and the number of lost records.
        """
        self._chain = AuditChain(sink, macs, journal=journal, notes=notes, wall_clock=wall_clock)
        self._journal = journal
        self._next_entry = 1  # number of the next record in the journal
        self._unstored: list[bytes] = []  # records in the journal that are not in the log yet
        self._store_timer: asyncio.TimerHandle | None = None  # starts the next batch for the log
        self._store_timeout_timer: asyncio.TimerHandle | None = None
        self._is_storing = False  # a batch for the log is in progress
        self._write_failed = False  # why the log is unwritable: the last write failed
        self._store_failed = False  # or the last batch for the log did
        self._keep_s = keep_s
        self._write_timeout = write_timeout
        self._wall_clock = wall_clock
        self._on_state_change = on_state_change
        self._intents: list[bytes] = []  # queued records with a waiter
        self._waiters: list[CommitCallback] = []
        self._records: list[bytes] = []  # queued records without a waiter
        self._buffered_bytes = 0  # of both queues
        self._group: _Group | None = None  # the write in progress
        self._timer: asyncio.Handle | None = None  # starts the next write
        self._is_write_scheduled = False  # the timer fires at the end of this loop iteration
        self._timeout_timer: asyncio.TimerHandle | None = None  # timeout of the write in progress
        self._prune_timer: asyncio.TimerHandle | None = None
        self._flush_waiters: list[asyncio.Future[None]] = []  # waiters for the end of the write in progress
        self._failure_recorded = False  # the write in progress contains the record about the failure
        self._retry_delay = RETRY_DELAYS_S[0]
        self._closed = True
        self._sink = sink
        self.failure: WriteFailure | None = None
        self.lost = 0  # records dropped since the log became unwritable
        self.lost_total = 0
        self.written = 0
        self.groups = 0

    async def open(self) -> OpenedLog:
        """Open the log in the writer thread and start the removal of expired records.

        Raises the errors of `AuditChain.open`, and `TimeoutError` after 60 s.
        """
        self._loop = asyncio.get_running_loop()
        self._thread = self._store_thread = WorkerThread("toolway-audit")
        try:
            opened = await self._thread.run(self._chain.open, OPEN_TIMEOUT_S)
        except BaseException:
            with contextlib.suppress(Exception):  # the lock is free when the caller learns the error
                await self._thread.run(self._chain.sink.close, CLOSE_TIMEOUT_S)
            self._thread.stop()
            raise
        if self._journal is not None:
            self._store_thread = WorkerThread("toolway-audit-store")
        self._closed = False
        self._start_prune()
        return opened

    async def close(self) -> None:
        """Write the queued records and close the log. After 5 s, unwritten records are dropped.

        Records that are in the journal and not in the log are stored on the next start.
        """
        if self._closed:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.flush()
                await self._store_thread.run(self._chain.close, CLOSE_TIMEOUT_S)
                if self._journal is not None:
                    await self._thread.run(self._journal.remove_all, CLOSE_TIMEOUT_S)
        except Exception as exc:
            _log.error("%d audit records were not written: %s", self.pending, exc)
            self._store_thread.submit(self._chain.close, lambda result, error: None)
        finally:
            self._closed = True
            for handle in (
                self._timer,
                self._timeout_timer,
                self._store_timer,
                self._store_timeout_timer,
                self._prune_timer,
            ):
                if handle is not None:
                    handle.cancel()
            self._thread.stop()
            self._store_thread.stop()
            for waiters in (self._group.waiters if self._group is not None else [], self._waiters):
                _call_waiters(waiters, "the audit log is closed")

    @property
    def location(self) -> str:
        """Return the name of the audit log for messages. In PostgreSQL it is known only after the log was opened."""
        return self._sink.location

    @property
    def head(self) -> ChainHead:
        """Return number and hash of the last record that is in the audit log on stable storage."""
        return self._chain.head

    @property
    def pending(self) -> int:
        """Return the number of queued audit records that are not on disk yet."""
        return len(self._intents) + len(self._records) + (len(self._group) if self._group is not None else 0)

    # -- queueing -----------------------------------------------------------------------------------------------------

    def enqueue(self, kind: bytes, fields: bytes) -> None:
        """Queue a record, to be written within a moment. Does not wait and does not raise.

        If the buffer is full or the writer is closed, the record is dropped and counted.
        """
        if len(self._records) >= MAX_BUFFERED_RECORDS or self._buffered_bytes > MAX_BUFFERED_BYTES or self._closed:
            self.lost += 1
            self.lost_total += 1
            self._write_failed = True
            self._set_failure(BUFFER_FULL_REASON)
            return
        data = encode_stamped(kind, self._wall_clock(), self._loop.time(), fields)
        self._buffered_bytes += len(data)
        self._records.append(data)
        if self._timer is None and self._group is None:
            self._timer = self._loop.call_later(FLUSH_DELAY_S, self._start_write)

    def start_commit(self, kind: bytes, fields: bytes, on_done: CommitCallback) -> None:
        """Queue an audit record. `on_done` is called once in the event loop, when it is on disk or cannot be written.

        Raises `AuditUnavailable`, and does not call `on_done`, if the log cannot be written now.
        """
        if self.failure is not None:
            raise AuditUnavailable(self.failure.reason)
        if len(self._intents) >= MAX_BUFFERED_RECORDS or self._buffered_bytes > MAX_BUFFERED_BYTES or self._closed:
            self._write_failed = True
            self._set_failure(BUFFER_FULL_REASON)
            raise AuditUnavailable(BUFFER_FULL_REASON)
        data = encode_stamped(kind, self._wall_clock(), self._loop.time(), fields)
        self._buffered_bytes += len(data)
        self._intents.append(data)
        self._waiters.append(on_done)
        if self._group is None and not self._is_write_scheduled:
            self._schedule_write()

    def commit(self, kind: bytes, fields: bytes) -> asyncio.Future[None]:
        """Queue a record and return a future that is done when the record is on disk.

        The function and the future raise `AuditUnavailable` if the log cannot be written.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        self.start_commit(kind, fields, partial(settle_future, waiter))
        return waiter

    async def flush(self) -> None:
        """Wait until all queued records are in the audit log, and not only in its journal.

        Raises `AuditUnavailable` if the log cannot be written.
        """
        while self.pending or self._unstored:
            if self.failure is not None:
                raise AuditUnavailable(self.failure.reason)
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._flush_waiters.append(waiter)
            if self._group is None and self.pending:
                self._schedule_write()
            if self._unstored and not self._is_storing:
                self._start_store()
            await waiter

    # -- writing ------------------------------------------------------------------------------------------------------

    def _schedule_write(self) -> None:
        """Schedule the next write of queued records for the end of this event loop iteration.

        Replaces a timer that would start the write later.
        """
        if self._is_write_scheduled:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._is_write_scheduled = True
        self._timer = self._loop.call_soon(self._start_write)

    def _start_write(self) -> None:
        self._timer, self._is_write_scheduled = None, False
        if self._group is not None or not (self._intents or self._records or self._write_failed):
            return
        if len(self._unstored) >= MAX_UNSTORED:
            return  # `_on_stored` starts the write
        group = self._group = _Group(self._intents[:GROUP_SIZE], self._waiters[:GROUP_SIZE], self._records[:GROUP_SIZE])
        self._intents, self._waiters = self._intents[GROUP_SIZE:], self._waiters[GROUP_SIZE:]
        self._records = self._records[GROUP_SIZE:]
        self._count_bytes()
        self._failure_recorded = self.failure is not None and not self._store_failed
        entries = [*group.intents, *group.records]  # no outcome before its intent
        if self.failure is not None and not self._store_failed:
            entries.insert(0, self._resumed_record(self.failure))
        self._timeout_timer = self._loop.call_later(self._write_timeout, self._on_write_timeout)
        if self._journal is None:
            self._thread.submit(lambda: self._chain.write(entries), self._on_written)
        elif entries:
            first, journal = self._next_entry, self._journal
            self._thread.submit(lambda: _write_journal(journal, first, entries), self._on_written)
        else:
            self._on_written([], None)

    def _on_written(self, result: list[bytes] | None, error: Exception | None) -> None:
        """Call the waiters of a finished write, with its error if it failed, and schedule the next."""
        group, self._group = self._group, None
        assert group is not None
        if self._timeout_timer is not None:
            self._timeout_timer.cancel()
        if error is not None:
            self._records[:0] = group.records  # written again later; the waiters are rejected
            self._count_bytes()
            self._write_failed = True
            self._set_failure(str(error) or type(error).__name__)
            self._timer = self._loop.call_later(self._retry_delay, self._start_write)
            self._retry_delay = min(2 * self._retry_delay, RETRY_DELAYS_S[1])
        else:
            self.groups += 1
            self.written += len(group)
            self._write_failed = False
            if result:
                self._next_entry += len(result)
                self._unstored += result
                self._schedule_store()
            if self.failure is not None and not self._store_failed:
                self._clear_failure(self.failure)
            self._schedule_next()
        self._wake_flush_waiters()
        _call_waiters(group.waiters, "" if error is None else "audit log write failed")

    def _wake_flush_waiters(self) -> None:
        flush_waiters, self._flush_waiters = self._flush_waiters, []
        for flush_waiter in flush_waiters:
            if not flush_waiter.done():
                flush_waiter.set_result(None)

    def _schedule_next(self) -> None:
        """Schedule the next write: at once if a caller waits or a full group is queued.

        Else after `FLUSH_DELAY_S`, if any record is queued.
        """
        if self._intents or self._flush_waiters or len(self._records) >= GROUP_SIZE:
            self._schedule_write()
        elif self._records and self._timer is None:
            self._timer = self._loop.call_later(FLUSH_DELAY_S, self._start_write)

    def _count_bytes(self) -> None:
        self._buffered_bytes = sum(map(len, self._intents)) + sum(map(len, self._records))

    # -- from the journal to the log ----------------------------------------------------------------------------------

    def _schedule_store(self) -> None:
        if self._is_storing:
            return
        if len(self._unstored) >= MAX_RECORDS_PER_WRITE:
            self._start_store()
        elif self._store_timer is None:
            self._store_timer = self._loop.call_later(STORE_DELAY_S, self._start_store)

    def _start_store(self) -> None:
        """Start copying the oldest journal-only records to the log, in one batch. Does not wait."""
        if self._store_timer is not None:
            self._store_timer.cancel()
            self._store_timer = None
        if self._is_storing or not self._unstored:
            return
        self._is_storing = True
        records = self._unstored[:MAX_RECORDS_PER_WRITE]
        self._store_timeout_timer = self._loop.call_later(self._write_timeout, self._on_store_timeout)
        self._store_thread.submit(
            lambda: self._chain.write(records), lambda _, error: self._on_stored(len(records), error)
        )

    def _on_stored(self, count: int, error: Exception | None) -> None:
        self._is_storing = False
        if self._store_timeout_timer is not None:
            self._store_timeout_timer.cancel()
        if error is not None:
            self._store_failed = True
            self._set_failure(str(error) or type(error).__name__)
            self._store_timer = self._loop.call_later(self._retry_delay, self._start_store)
            self._retry_delay = min(2 * self._retry_delay, RETRY_DELAYS_S[1])
        else:
            del self._unstored[:count]
            through, journal = self._next_entry - len(self._unstored) - 1, self._journal
            if journal is not None:
                self._thread.submit(lambda: journal.remove_through(through), _ignore_result)
            if self._store_failed:
                self._store_failed = False
                if self.failure is not None and not self._write_failed:
                    self._clear_failure(self.failure)
            if self._unstored:
                self._schedule_store()
            if self._group is None:
                self._schedule_next()
        self._wake_flush_waiters()

    def _on_store_timeout(self) -> None:
        self._store_failed = True
        self._set_failure(f"{self.location} has not responded for {self._write_timeout:g} s")

    # -- failure ------------------------------------------------------------------------------------------------------

    def _on_write_timeout(self) -> None:
        self._write_failed = True
        self._set_failure(f"{self.location} has not responded for {self._write_timeout:g} s")
        if self._group is not None:
            _call_waiters(self._group.waiters, "audit log write timed out")

    def _set_failure(self, reason: str) -> None:
        """Mark the audit log as unwritable, and reject all queued intents (records of calls that are not sent yet).

        Their calls are not sent, so these intents are dropped.
        """
        waiters = self._waiters
        self._intents, self._waiters = [], []
        self._count_bytes()
        if self.failure is None and not self._closed:
            self.failure = WriteFailure(reason, self._loop.time())
            _log.error("audit log cannot be written, so calls that change something are rejected: %s", reason)
            self._on_state_change(reason, 0)
        _call_waiters(waiters, reason)

    def _clear_failure(self, failure: WriteFailure) -> None:
        self.failure = None
        self._retry_delay = RETRY_DELAYS_S[0]
        lost = self.lost
        if not self._failure_recorded:
            self._records.append(self._resumed_record(failure))
        self.lost = 0
        _log.warning("audit log is writable again; %d records were lost", lost)
        self._on_state_change("", lost)

    def _resumed_record(self, failure: WriteFailure) -> bytes:
        seconds = round(self._loop.time() - failure.since, 3)
        fields: RecordFields = {"why": mask_secrets(failure.reason)[:500], "seconds": seconds, "lost": self.lost}
        return encode_record(LOG_RESUMED, self._wall_clock(), self._loop.time(), fields)

    # -- retention ----------------------------------------------------------------------------------------------------

    def _start_prune(self) -> None:
        if self._keep_s:
            self._store_thread.submit(lambda: self._chain.prune(self._keep_s), self._on_pruned)

    def _on_pruned(self, more: bool | None, error: Exception | None) -> None:
        if error is not None:
            _log.error("expired audit records could not be removed: %s", error)
        if not self._closed:
            self._prune_timer = self._loop.call_later(1.0 if more else PRUNE_INTERVAL_S, self._start_prune)


def _write_journal(journal: Journal, first: int, entries: list[bytes]) -> list[bytes]:
    """Number the records, append them to the journal, and return them as the log stores them."""
    records = [b'{"entry":%d,%b' % (number, entry[1:]) for number, entry in enumerate(entries, first)]
    journal.append(first, records)
    return records


def _ignore_result(result: None, error: Exception | None) -> None:
    if error is not None:
        _log.warning("a segment of the journal could not be deleted: %s", error)


def _call_waiters(waiters: list[CommitCallback], failure: str) -> None:
    """Call these callbacks after a write: with None, or with an error if `failure` is set.

    The list is emptied first, so no callback is called twice.
    """
    ended = waiters[:]
    waiters.clear()
    for on_done in ended:
        try:
            on_done(AuditUnavailable(failure) if failure else None)
        except Exception:  # it must not keep the rest from being called
            _log.exception("a call could not continue after its intent was written")
