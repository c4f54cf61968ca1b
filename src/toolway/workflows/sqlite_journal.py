"""Journal of workflow runs in a SQLite file, for one process at a time.

A thread writes for all runs: writes that are requested during a commit are part of the next commit, so 100 runs share
one `fsync`. Any process may add messages; only the process with the lock executes runs. The reaper (the parent process
of its servers) has the lock too: if the process is killed, no other process takes its runs while one of its servers may
still execute a call.

The intent of an unsafe step is written twice: to the database, and to its own file (`intent_record.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, cast

from toolway._os import O_UNSHARED, process_exists, try_lock_handle, unlock_handle
from toolway._sqlite import open_database
from toolway._worker_thread import WORKER_CODE, Job, WorkerDied, WorkerThread
from toolway.types import Effect, Json
from toolway.workflows.journal import (
    MAX_BODY_BYTES,
    Entry,
    JournalError,
    NewerRun,
    RunChange,
    RunDamaged,
    RunLost,
    RunMessage,
    RunRecord,
    RunsInUse,
)
from toolway.workflows.run_file import run_rows
from toolway.workflows.run_file.intent_record import IntentRecord
from toolway.workflows.run_file.run_rows import EntryRow

SCHEMA_VERSION: Final = 1
LOCK_TIMEOUT_S: Final = 30.0  # for the servers of a process that was killed
MAX_GROUP: Final = 1000  # writes in one commit
CLOSE_TIMEOUT_S: Final = 10.0
T = TypeVar("T")


class SqliteJournal:
    """A journal of workflow runs in a SQLite file, or in memory if `path` is None.

    If `owner` is False, this only reads and adds messages, while another process executes the runs. Raises `RunsInUse`
    if another process executes the file's runs, and `JournalError` if the file cannot be used.
    """

    def __init__(self, path: Path | None, *, owner: bool = True) -> None:
        self._path = path
        self.life = 0
        self.lease_s = 0.0
        self.on_changed: Callable[[], None] | None = None
        self.lock_fd: int | None = None  # of the file's lock
        self.keeps_lock = False  # after it is closed, while the reaper has the lock too
        self._intents: IntentRecord | None = None
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                if owner:
                    self.lock_fd = _lock(path)
            self._db = _open(path, owner)
            if owner:
                self._intents = IntentRecord(path) if path is not None else None
                self.life = self._begin_life()
        except JournalError:
            self._unlock()
            raise
        except (sqlite3.Error, OSError) as exc:
            self._unlock()
            raise JournalError("cannot open the run journal", detail=f"{path}: {exc}") from exc
        self._seen_version = self._data_version()
        self._thread = WorkerThread("toolway-runs")

    async def close(self) -> None:
        self._thread.stop()
        if await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S):  # else the disk does not respond
            await asyncio.to_thread(self._close_file)
        self._unlock()

    def _close_file(self) -> None:
        if self._intents is not None:
            # If that fails, the record is read on the next start.
            with contextlib.suppress(JournalError, OSError, sqlite3.Error):
                self._intents.end(self._db)
            self._intents.close()
        self._db.close()

    def holds(self, life: int) -> bool:
        return life == self.life  # the lock of the file is held until the process ends

    # -- runs

    async def create(self, run: RunRecord, definition: Json) -> RunRecord:
        return await self._submit(lambda db: run_rows.create(db, run, definition))

    async def take(self, now: float, room: int) -> list[RunRecord]:
        return await self._submit(lambda db: run_rows.take(db, now, room, self.life))

    async def get(self, run: str) -> RunRecord:
        return await self._submit(lambda db: run_rows.get(db, run))

    async def load(self, run: str) -> tuple[RunRecord, Json, list[Entry], list[RunMessage]]:
        return await self._submit(lambda db: run_rows.load(db, run))

    async def write(self, run: str, entries: Sequence[Entry], change: RunChange | None = None) -> None:
        rows = [(run, each.path, each.attempt, run_rows.encode(each)) for each in entries]
        intents = [row for row, each in zip(rows, entries, strict=True) if _is_intent(each)]
        for _, path, _, body in rows:
            if len(body) > MAX_BODY_BYTES:
                raise JournalError("the result of a step is too large for the journal", detail=f"{path}: {len(body)} B")
        together = rows if change is None else None
        await self._submit(lambda db: run_rows.write(db, run, self.life, rows, change), together, intents)

    async def send(self, run: str, message: RunMessage) -> None:
        await self._submit(lambda db: run_rows.send(db, run, message))

    async def messages(self, run: str, after: int) -> list[RunMessage]:
        return await self._submit(lambda db: run_rows.messages(db, run, after))

    async def list_runs(self, state: str | None, limit: int) -> list[RunRecord]:
        return await self._submit(lambda db: run_rows.list_runs(db, state, limit))

    async def next_due(self) -> float | None:
        return await self._submit(lambda db: run_rows.next_due(db))

    async def changed(self) -> bool:
        return await self._submit(lambda db: self._has_changed())

    # -- the thread that owns the connection

    async def _submit(
        self,
        action: Callable[[sqlite3.Connection], T],
        rows: list[EntryRow] | None = None,
        intents: Sequence[EntryRow] = (),
    ) -> T:
        work = _Work(action, asyncio.get_running_loop(), self._commit_queued, rows, intents)
        self._thread.put(work)
        return await work.future

    def _commit_queued(self, first: _Work[Any]) -> None:
        """Commit the first of a group of database actions, together with everything queued since."""
        group = [first, *cast(list[_Work[Any]], self._thread.take_queued(MAX_GROUP - 1))]
        try:
            self._commit(group)
        except BaseException as exc:
            for work in group:  # the thread ends
                work.error = JournalError("cannot use the run journal", detail=repr(exc)[:500], code=WORKER_CODE)
            raise
        finally:
            for loop in {work.loop for work in group}:
                with contextlib.suppress(RuntimeError):  # the loop may be closed
                    loop.call_soon_threadsafe(_resolve_all, [work for work in group if work.loop is loop])

    def _commit(self, group: list[_Work[Any]]) -> None:
        """Run a group of database actions in one transaction.

        If an action raises, nothing that it wrote is kept.
        """
        is_begun = False
        try:
            self._db.execute("BEGIN IMMEDIATE")
            is_begun = True
            for has_rows, works in itertools.groupby(group, key=_has_rows):
                self._execute(list(works), together=has_rows)
            intents = [row for work in group if work.error is None for row in work.intents]
            if intents and self._intents is not None:
                self._intents.announce(self._db)
            is_begun = False
            self._db.execute("COMMIT")
        except Exception as exc:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            if is_begun and len(group) > 1:  # an action failed: it concerns no other one
                for work in group:
                    work.error = None
                    self._commit([work])
                return
            for work in group:
                work.error = self._error(exc)
            return
        if intents and self._intents is not None:
            try:
                self._intents.append(self._db, intents)
            except Exception as exc:  # their calls are not sent
                for work in group:
                    if work.intents:
                        work.error = self._error(exc)

    def _error(self, exc: Exception) -> JournalError:
        if isinstance(exc, JournalError):
            return exc
        return JournalError(
            "cannot write the run journal",
            detail=f"{self._path}: {exc if isinstance(exc, sqlite3.Error | OSError) else repr(exc)}",
            hint="free disk space or make the file writable; runs wait until then",
        )

    def _execute(self, works: list[_Work[Any]], *, together: bool) -> None:
        """Execute database actions one at a time.

        If `together` is True and this process has taken all the runs, one statement writes the rows of all actions.
        """
        if together and len(works) > 1:
            rows = [row for work in works for row in work.rows or ()]
            if run_rows.are_owned(self._db, list({row[0] for row in rows}), self.life):
                self._db.executemany(run_rows.INSERT, rows)
                return
        for work in works:
            try:
                work.value = work.action(self._db)
            except (RunLost, NewerRun, RunDamaged, KeyError) as exc:
                work.error = exc

    def _begin_life(self) -> int:
        """Restore what the journal has lost, then return this process's number in it."""
        self._db.execute("BEGIN IMMEDIATE")
        if self._intents is not None:
            self._intents.recover(self._db)
        last_life = self._intents.last_life if self._intents is not None else 0
        life = max(run_rows.read_meta(self._db, "life"), last_life) + 1
        run_rows.write_meta(self._db, "life", life)
        # Runs of a process that ended are due again.
        self._db.execute("UPDATE runs SET due = 0 WHERE state IN ('running', 'undoing', 'ready')")
        self._db.execute("COMMIT")
        if self._intents is not None:
            self._intents.begin(self._db)
        return life

    def _has_changed(self) -> bool:
        version = self._data_version()
        changed, self._seen_version = version != self._seen_version, version
        return changed

    def _data_version(self) -> int:
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def _unlock(self) -> None:
        if self.lock_fd is not None:
            if not self.keeps_lock:
                unlock_handle(self.lock_fd)  # also for the reaper
            os.close(self.lock_fd)
            self.lock_fd = None


class _Work(Job, Generic[T]):
    """A database action that waits for the writer thread, and the future that receives its return value.

    If the action only writes entries, they are in `rows`, and can be written together with other runs' entries.
    """

    def __init__(
        self,
        action: Callable[[sqlite3.Connection], T],
        loop: asyncio.AbstractEventLoop,
        commit: Callable[[_Work[Any]], None],
        rows: list[EntryRow] | None,
        intents: Sequence[EntryRow],
    ) -> None:
        self.action = action
        self.rows = rows
        self.intents = intents  # intents of the rows after which an unsafe call is sent
        self._commit = commit
        self.future: asyncio.Future[T] = loop.create_future()
        self.value: T | None = None
        self.error: Exception | None = None
        self.loop = loop

    def run(self) -> None:
        self._commit(self)

    def fail(self, error: WorkerDied) -> None:
        cause = JournalError(error.message, detail=error.detail, hint=error.hint, code=error.code)
        self.error = self.error or cause
        with contextlib.suppress(RuntimeError):  # the loop may be closed
            self.loop.call_soon_threadsafe(self.resolve)

    def resolve(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(cast(T, self.value))


def _is_intent(entry: Entry) -> bool:
    return entry.state == "begun" and entry.effect == Effect.UNSAFE


def _has_rows(work: _Work[Any]) -> bool:
    return bool(work.rows)


def _resolve_all(group: list[_Work[Any]]) -> None:
    for work in group:
        work.resolve()


def _lock(path: Path) -> int:
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | O_UNSHARED, 0o600)
    try:
        _wait_for_lock(path, descriptor, time.monotonic() + LOCK_TIMEOUT_S)
        os.truncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, str(os.getpid()).encode())
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _wait_for_lock(path: Path, descriptor: int, end: float) -> None:
    """Lock the file. If the process that the file names has ended, wait for the lock until `end`.

    Raises `RunsInUse`.
    """
    while not try_lock_handle(descriptor):
        os.lseek(descriptor, 0, os.SEEK_SET)
        holder = os.read(descriptor, 20).decode("ascii", "replace").strip()
        has_ended = holder.isdigit() and not process_exists(int(holder))
        if has_ended and time.monotonic() < end:
            time.sleep(0.02)
            continue
        user = f"the servers of process {holder}, which has ended" if has_ended else f"process {holder or 'unknown'}"
        raise RunsInUse(
            "another process is running this journal's runs",
            detail=f"{path} is used by {user}",
            hint="wait for it, or use another journal: --journal FILE",
        )


def _open(path: Path | None, owner: bool) -> sqlite3.Connection:
    database = open_database(path or ":memory:", timeout=10.0)
    if path is not None:
        with contextlib.suppress(OSError):
            path.chmod(0o600)
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise JournalError("the run journal is from a newer version", detail=str(path), hint="update toolway")
    if version < SCHEMA_VERSION or owner:
        database.executescript(run_rows.SCHEMA + f"PRAGMA user_version = {SCHEMA_VERSION};")
    return database
