"""A second record of unsafe steps' intents, next to the run journal.

SQLite drops the end of a write-ahead log that was truncated, changed or removed, without a word. The intents in it
would be gone, and their calls would be made again. So each intent is also appended to its own file (`Journal` of
the audit log: groups with checksums, one write and one sync each) after its commit and before its call. When the
journal is opened, both are compared:

- An intent that only the record has was lost. It is restored as `begun`, so its outcome is unknown: the step is
  verified, or a user is asked. If its run is lost too, a run that is started again with the same key continues it.
- If the record itself is missing or damaged after a crash, it is not known what was lost. Then all runs that have not
  ended ask a user before each unsafe step that has no entry (`DOUBT_VARIABLE`), and so do runs that are started with
  a key within a day.

A record begins when the journal is opened, and again when it has `MAX_BYTES`. Before that, everything in the
write-ahead log is copied to the database itself (a checkpoint), so nothing of the earlier record is needed. The
database stores the number of the record that belongs to it; 0 means that the journal was closed and needs none.
"""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from toolway.audit.journal import Journal, JournalBroken, JournalContent
from toolway.audit.sink import sync_folder
from toolway.workflows.journal import DOUBT_VARIABLE, FINAL_STATES, Entry, JournalError
from toolway.workflows.run_file.run_rows import INSERT, EntryRow, read_meta, write_meta

MAX_BYTES: Final = 4 * 1024 * 1024  # of one record, before the next begins
_RECORD: Final = "intents"  # number of the record that belongs to the database; 0 = none
_GROUP: Final = "intent_group"  # number of the last group whose intents are committed
_DOUBT: Final = "doubt"  # time at which a record was found missing or damaged
_log = logging.getLogger("toolway.workflows")


class _Intent(NamedTuple):
    """Intent of one unsafe call, and the key under which its run was started."""

    run: str
    workflow: str
    caller: str
    key: str | None
    path: str
    attempt: int
    entry: msgspec.Raw


class IntentRecord:
    """Record of intents next to one journal file. The process that executes the runs uses it, in one thread at a time.

    Methods raise `OSError` and `sqlite3.Error`.
    """

    def __init__(self, journal: Path, max_bytes: int = MAX_BYTES) -> None:
        self._journal = journal
        self._files = Journal(f"{os.fspath(journal)}.intents", max_segment_bytes=4 * max_bytes)
        self._max_bytes = max_bytes
        self._size = self._group = 0
        self._is_broken = False  # a write failed: a new record begins before the next one
        self.last_life = 0  # highest number of a process in the record that was read

    # -- when the journal is opened

    def recover(self, db: sqlite3.Connection) -> None:
        """Restore intents that the journal has lost. Call it in a transaction."""
        record, group = read_meta(db, _RECORD), read_meta(db, _GROUP)
        content, problem = self._read()
        lost: list[_Intent] = []
        if content is not None:
            intents = [each for _, line in content.entries for each in msgspec.json.decode(line, type=list[_Intent])]
            lost = self._restore(db, intents)
            problem = problem or _find_gap(content, record, group)
        elif not problem and record:
            problem = "it is missing"
        if lost:
            runs = sorted({each.run for each in lost})
            _log.error(
                "E-WORKFLOW-JOURNAL: the run journal has lost %d unsafe steps of %d runs (%s); their outcome is "
                "unknown, and none is repeated",
                len(lost),
                len(runs),
                ", ".join(runs[:5]),
            )
        if problem:
            count = _doubt_runs(db)
            _log.error(
                "E-WORKFLOW-JOURNAL: cannot use the record of intents: %s; %d runs ask before each unsafe step",
                problem,
                count,
            )

    def _read(self) -> tuple[JournalContent | None, str]:
        try:
            return self._files.read(), ""
        except JournalBroken as exc:
            return None, str(exc)

    def _restore(self, db: sqlite3.Connection, intents: Iterable[_Intent]) -> list[_Intent]:
        """Store the last intent of each attempt that the journal does not have; return those."""
        lost = []
        for intent in {(each.run, each.path, each.attempt): each for each in intents}.values():
            entry = msgspec.json.decode(intent.entry, type=Entry)
            self.last_life = max(self.last_life, entry.life)
            key = (intent.run, intent.path, intent.attempt)
            found = db.execute("SELECT body FROM entries WHERE run = ? AND path = ? AND attempt = ?", key).fetchone()
            if found is not None and _is_later(found[0], entry):
                continue
            lost.append(intent)
            db.execute(INSERT, (*key, bytes(intent.entry)))
            row = db.execute("SELECT state FROM runs WHERE id = ?", (intent.run,)).fetchone()
            if row is None and intent.key is not None:
                identity = (intent.workflow, intent.caller, intent.key, intent.run)
                db.execute("INSERT OR REPLACE INTO lost_runs VALUES (?, ?, ?, ?)", identity)
            elif row is not None and row[0] not in FINAL_STATES:
                db.execute("UPDATE runs SET due = 0 WHERE id = ?", (intent.run,))
        return lost

    # -- writing

    def begin(self, db: sqlite3.Connection) -> None:
        """Start a new record, once everything in the journal is in the database itself."""
        self._forget(db)
        record = secrets.randbits(62) + 1
        self._files.start(f"{record:032x}")
        self._files.append(1, [b"[]"])  # to create the file
        self._size, self._group, self._is_broken = 0, 1, False
        _store(db, record, 1)
        _checkpoint(db)

    def end(self, db: sqlite3.Connection) -> None:
        """Remove the record: the journal is closed, and the database has everything."""
        self._forget(db)

    def _forget(self, db: sqlite3.Connection) -> None:
        """Remove the present record. In between, the database says that it needs none, whatever happens."""
        if not _checkpoint(db):
            raise JournalError("another process is reading the run journal", hint="retrying")
        _store(db, 0, 0)
        if not _checkpoint(db):
            raise JournalError("another process is reading the run journal", hint="retrying")
        self._files.remove_all()
        sync_folder(self._journal)

    def announce(self, db: sqlite3.Connection) -> None:
        """Note, in the transaction, that a group of intents will follow in the record."""
        write_meta(db, _GROUP, self._group + 1)

    def append(self, db: sqlite3.Connection, rows: Sequence[EntryRow]) -> None:
        """Append the intents of a committed group to the record. When this returns, their calls may be sent."""
        if self._is_broken:
            self.begin(db)
        line = msgspec.json.encode([_describe(db, row) for row in rows])
        try:
            self._files.append(self._group + 1, [line])
        except OSError:
            self._is_broken = True
            raise
        self._group += 1
        self._size += len(line)
        if self._size >= self._max_bytes:
            try:
                self.begin(db)
            except (JournalError, OSError, sqlite3.Error):
                self._size = 0  # the intents are stored: retrying later

    def close(self) -> None:
        self._files.close()


def _describe(db: sqlite3.Connection, row: EntryRow) -> _Intent:
    run, path, attempt, body = row
    found = db.execute("SELECT workflow, caller, key FROM runs WHERE id = ?", (run,)).fetchone()
    workflow, caller, key = found if found is not None else ("", "", None)
    return _Intent(run, workflow, caller, key, path, attempt, msgspec.Raw(body))


def _is_later(stored: bytes, intent: Entry) -> bool:
    """Return True if a stored entry is this intent, or what became of it.

    The outcome of an attempt has the times of its intent. An attempt that is made again has new ones.
    """
    try:
        entry = msgspec.json.decode(stored, type=Entry)
    except (msgspec.DecodeError, TypeError, ValueError):
        return True  # its run is damaged, and calls nothing
    return (entry.life, entry.began, entry.settles) == (intent.life, intent.began, intent.settles)


def _find_gap(content: JournalContent, record: int, group: int) -> str:
    """Return why a record may be incomplete, or ""."""
    numbers = [number for number, _ in content.entries]
    if not numbers or numbers != list(range(1, len(numbers) + 1)):
        return "groups of it are missing"
    if not record:
        return ""  # the journal was closed after this record, or lost all that it wrote since
    if int(content.run, 16) != record:
        return "it belongs to another state of the journal"
    if group > numbers[-1] + 1 or (content.torn_bytes and group != numbers[-1] + 1):
        return "its end is missing"
    return ""


def _doubt_runs(db: sqlite3.Connection) -> int:
    """Make all unfinished runs ask before each unsafe step; return how many there are."""
    write_meta(db, _DOUBT, int(time.time()))
    places = ", ".join("?" * len(FINAL_STATES))
    rows = db.execute(
        f"SELECT id, variables FROM runs WHERE state NOT IN ({places}) AND created <= ?",
        (*sorted(FINAL_STATES), time.time()),
    ).fetchall()
    for id_, variables in rows:
        try:
            values = msgspec.json.decode(variables) if variables is not None else {}
            changed = msgspec.json.encode({**(values or {}), DOUBT_VARIABLE: True})
        except (msgspec.DecodeError, TypeError, ValueError):
            continue  # the run is damaged, and calls nothing
        db.execute("UPDATE runs SET variables = ? WHERE id = ?", (changed, id_))
    return len(rows)


def _store(db: sqlite3.Connection, record: int, group: int) -> None:
    db.execute("BEGIN IMMEDIATE")
    write_meta(db, _RECORD, record)
    write_meta(db, _GROUP, group)
    db.execute("COMMIT")


def _checkpoint(db: sqlite3.Connection) -> bool:
    """Copy the write-ahead log to the database and sync it. Return False if another process kept a part of it."""
    return int(db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]) == 0
