"""Journal of workflow runs in a SQLite file, for one process at a time.

A thread writes for all runs: writes that are requested during a commit are part of the next commit, so 100 runs share
one `fsync`. Any process may add messages; only the process with the lock executes runs. The reaper (the parent process
of its servers) has the lock too: if the process is killed, no other process takes its runs while one of its servers may
still execute a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import msgspec

from toolway.types import Json
from toolway.workflows.journal import (
    FINAL_STATES,
    MAX_BODY_BYTES,
    Entry,
    JournalError,
    NewerRun,
    RunChange,
    RunLost,
    RunMessage,
    RunRecord,
    RunsInUse,
)

SCHEMA_VERSION: Final = 1
LOCK_TIMEOUT_S: Final = 30.0  # for the servers of a process that was killed
MAX_GROUP: Final = 1000  # writes in one commit
T = TypeVar("T")
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS definitions (hash TEXT PRIMARY KEY, name TEXT NOT NULL, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, workflow TEXT NOT NULL, definition TEXT NOT NULL, key TEXT, caller TEXT NOT NULL,
    state TEXT NOT NULL, asks BLOB NOT NULL, due REAL, input BLOB, variables BLOB, output BLOB, error BLOB,
    created REAL NOT NULL, ended REAL, life INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS runs_key ON runs (workflow, caller, key) WHERE key IS NOT NULL;
CREATE INDEX IF NOT EXISTS runs_due ON runs (due) WHERE due IS NOT NULL;
CREATE INDEX IF NOT EXISTS runs_created ON runs (created);
CREATE TABLE IF NOT EXISTS entries (
    run TEXT NOT NULL, path TEXT NOT NULL, attempt INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (run, path, attempt)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS inbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS inbox_run ON inbox (run, id);
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
_RUN_COLUMNS: Final = (
    "id, workflow, definition, key, caller, state, asks, due, input, variables, output, error, created, ended, life"
)
_INSERT: Final = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)"
_EntryRow: TypeAlias = tuple[str, str, int, bytes]  # run, path, attempt, body


class SqliteJournal:
    """Journal of workflow runs in a SQLite file, or in memory if `path` is None.

    If `owner` is False, it only reads, and adds messages, while another process executes the runs. Raises `RunsInUse`
    if another process executes the runs of the file, `JournalError` if the file cannot be used.
    """

    def __init__(self, path: Path | None, *, owner: bool = True) -> None:
        self._path = path
        self.life = 0
        self.lease_s = 0.0
        self.on_changed: Callable[[], None] | None = None
        self.lock_fd: int | None = None  # of the lock of the file
        self.keeps_lock = False  # after it is closed, while the reaper has the lock too
        self._queue: queue.SimpleQueue[_Work[Any] | None] = queue.SimpleQueue()
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                if owner:
                    self.lock_fd = _lock(path)
            self._db = _open(path, owner)
            if owner:
                self.life = self._begin_life()
        except (sqlite3.Error, OSError) as exc:
            self._unlock()
            raise JournalError("the journal of runs cannot be opened", detail=f"{path}: {exc}") from exc
        self._seen_version = self._data_version()
        self._thread = threading.Thread(target=self._work, name="toolway-runs", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        self._db.close()
        self._unlock()

    def holds(self, life: int) -> bool:
        return life == self.life  # the lock of the file is held until the process ends

    # -- runs

    async def create(self, run: RunRecord, definition: Json) -> RunRecord:
        return await self._submit(lambda db: _create(db, run, definition))

    async def take(self, now: float, room: int) -> list[RunRecord]:
        return await self._submit(lambda db: _take(db, now, room, self.life))

    async def get(self, run: str) -> RunRecord:
        return await self._submit(lambda db: _get(db, run))

    async def load(self, run: str) -> tuple[RunRecord, Json, list[Entry], list[RunMessage]]:
        return await self._submit(lambda db: _load(db, run))

    async def write(self, run: str, entries: Sequence[Entry], change: RunChange | None = None) -> None:
        rows = [(run, each.path, each.attempt, _encode(each)) for each in entries]
        for _, path, _, body in rows:
            if len(body) > MAX_BODY_BYTES:
                raise JournalError("the result of a step is too large for the journal", detail=f"{path}: {len(body)} B")
        await self._submit(lambda db: _write(db, run, self.life, rows, change), rows if change is None else None)

    async def send(self, run: str, message: RunMessage) -> None:
        await self._submit(lambda db: _send(db, run, message))

    async def messages(self, run: str, after: int) -> list[RunMessage]:
        return await self._submit(lambda db: _messages(db, run, after))

    async def list_runs(self, state: str | None, limit: int) -> list[RunRecord]:
        return await self._submit(lambda db: _list(db, state, limit))

    async def next_due(self) -> float | None:
        return await self._submit(lambda db: _next_due(db))

    async def changed(self) -> bool:
        return await self._submit(lambda db: self._has_changed())

    # -- the thread that owns the connection

    async def _submit(self, action: Callable[[sqlite3.Connection], T], rows: list[_EntryRow] | None = None) -> T:
        work = _Work(action, asyncio.get_running_loop(), rows)
        self._queue.put(work)
        return await work.future

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            group = [first]
            ended = False
            while len(group) < MAX_GROUP:
                try:
                    more = self._queue.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    ended = True
                    break
                group.append(more)
            self._commit(group)
            if ended:
                return

    def _commit(self, group: list[_Work[Any]]) -> None:
        """Run a group of database actions in one transaction. An action that raises has written nothing."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for has_rows, works in itertools.groupby(group, key=_has_rows):
                self._execute(list(works), together=has_rows)
            self._db.execute("COMMIT")
        except sqlite3.Error as exc:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            for work in group:
                work.error = JournalError(
                    "the journal of runs cannot be written",
                    detail=f"{self._path}: {exc}",
                    hint="free disk space or make the file writable; runs wait until then",
                )
        for loop in {work.loop for work in group}:
            with contextlib.suppress(RuntimeError):  # the loop may be closed
                loop.call_soon_threadsafe(_resolve_all, [work for work in group if work.loop is loop])

    def _execute(self, works: list[_Work[Any]], *, together: bool) -> None:
        """Run database actions one after the other.

        If `together` and this process has taken all runs, write the rows of all actions with one statement.
        """
        if together and len(works) > 1:
            rows = [row for work in works for row in work.rows or ()]
            if _are_owned(self._db, list({row[0] for row in rows}), self.life):
                self._db.executemany(_INSERT, rows)
                return
        for work in works:
            try:
                work.value = work.action(self._db)
            except (RunLost, NewerRun, KeyError) as exc:
                work.error = exc

    def _begin_life(self) -> int:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("INSERT INTO meta VALUES ('life', 1) ON CONFLICT DO UPDATE SET value = value + 1")
        # Runs of a process that ended are due again.
        self._db.execute("UPDATE runs SET due = 0 WHERE state IN ('running', 'undoing', 'ready')")
        life: int = self._db.execute("SELECT value FROM meta WHERE name = 'life'").fetchone()[0]
        self._db.execute("COMMIT")
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
                fcntl.flock(self.lock_fd, fcntl.LOCK_UN)  # also for the reaper
            os.close(self.lock_fd)
            self.lock_fd = None


class _Work(Generic[T]):
    """Database action that waits for the writer thread, and the future that gets the value it returns.

    If the action only writes entries, `rows` are these entries: they can be written together with those of other runs.
    """

    def __init__(
        self,
        action: Callable[[sqlite3.Connection], T],
        loop: asyncio.AbstractEventLoop,
        rows: list[_EntryRow] | None,
    ) -> None:
        self.action = action
        self.rows = rows
        self.future: asyncio.Future[T] = loop.create_future()
        self.value: T | None = None
        self.error: Exception | None = None
        self.loop = loop

    def resolve(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(cast(T, self.value))


def _has_rows(work: _Work[Any]) -> bool:
    return bool(work.rows)


def _resolve_all(group: list[_Work[Any]]) -> None:
    for work in group:
        work.resolve()


def _lock(path: Path) -> int:
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    limit = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as exc:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            has_ended = holder.isdigit() and not _is_running(int(holder))
            if has_ended and time.monotonic() < limit:
                time.sleep(0.02)
                continue
            os.close(descriptor)
            user = (
                f"the servers of process {holder}, which has ended" if has_ended else f"process {holder or 'unknown'}"
            )
            raise RunsInUse(
                "another process executes the runs of this journal",
                detail=f"{path} is used by {user}",
                hint="wait for it, or use another journal: --journal FILE",
            ) from exc
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _open(path: Path | None, owner: bool) -> sqlite3.Connection:
    database = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None, timeout=10.0)
    if path is not None:
        with contextlib.suppress(OSError):
            path.chmod(0o600)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise JournalError("the journal of runs is of a newer version", detail=str(path), hint="update toolway")
    if version < SCHEMA_VERSION or owner:
        database.executescript(_SCHEMA + f"PRAGMA user_version = {SCHEMA_VERSION};")
    return database


_RUN_NAMES: Final = _RUN_COLUMNS.split(", ")
_encode = msgspec.json.Encoder().encode


def _decode(data: bytes | None) -> Any:
    return None if data is None else msgspec.json.decode(data)


def _decode_as(run: str, data: bytes, type: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=type)
    except msgspec.ValidationError as exc:
        raise NewerRun("the run was continued by a newer version", detail=run, hint="update toolway") from exc


def _run(row: tuple[Any, ...]) -> RunRecord:
    values = dict(zip(_RUN_NAMES, row, strict=True))
    for name in ("asks", "input", "variables", "output", "error"):
        values[name] = _decode(values[name])
    return RunRecord(**values)


def _create(db: sqlite3.Connection, run: RunRecord, definition: Json) -> RunRecord:
    if run.key is not None:
        known = db.execute(
            f"SELECT {_RUN_COLUMNS} FROM runs WHERE workflow = ? AND caller = ? AND key = ?",
            (run.workflow, run.caller, run.key),
        ).fetchone()
        if known is not None:
            return _run(known)
    db.execute(
        "INSERT OR IGNORE INTO definitions VALUES (?, ?, ?)", (run.definition, run.workflow, _encode(definition))
    )
    values = (
        run.id,
        run.workflow,
        run.definition,
        run.key,
        run.caller,
        run.state,
        _encode(run.asks),
        run.due,
        _encode(run.input),
        _encode(run.variables),
        None,
        None,
        run.created,
        None,
        run.life,
    )
    db.execute(f"INSERT INTO runs ({_RUN_COLUMNS}) VALUES ({', '.join('?' * 15)})", values)
    return run


def _take(db: sqlite3.Connection, now: float, room: int, life: int) -> list[RunRecord]:
    rows = db.execute(
        f"UPDATE runs SET state = CASE state WHEN 'undoing' THEN 'undoing' ELSE 'running' END, due = NULL, life = ? "
        f"WHERE id IN (SELECT id FROM runs WHERE due <= ? ORDER BY due LIMIT ?) RETURNING {_RUN_COLUMNS}",
        (life, now, room),
    ).fetchall()
    return [_run(row) for row in rows]


def _get(db: sqlite3.Connection, id_: str) -> RunRecord:
    row = db.execute(f"SELECT {_RUN_COLUMNS} FROM runs WHERE id = ?", (id_,)).fetchone()
    if row is None:
        raise KeyError(id_)
    return _run(row)


def _load(db: sqlite3.Connection, id_: str) -> tuple[RunRecord, Json, list[Entry], list[RunMessage]]:
    run = _get(db, id_)
    body = db.execute("SELECT body FROM definitions WHERE hash = ?", (run.definition,)).fetchone()[0]
    rows = db.execute("SELECT body FROM entries WHERE run = ? ORDER BY path, attempt", (id_,))
    entries = [_decode_as(id_, each, Entry) for (each,) in rows]
    return run, _decode(body), entries, _messages(db, id_, 0)


def _write(
    db: sqlite3.Connection,
    id_: str,
    life: int,
    rows: Sequence[_EntryRow],
    change: RunChange | None,
) -> None:
    owner = db.execute("SELECT life FROM runs WHERE id = ?", (id_,)).fetchone()
    if owner is None or owner[0] != life:
        raise RunLost("the run belongs to another process now", detail=id_)
    db.executemany(_INSERT, rows)
    if change is None:
        return
    due = change.due
    if change.state not in FINAL_STATES:
        # A message that arrived in between makes the run due at once.
        pending = db.execute("SELECT 1 FROM runs WHERE id = ? AND due IS NOT NULL", (id_,)).fetchone()
        due = 0.0 if pending else due
    output = None if change.output is None else _encode(change.output)
    error = None if change.error is None else _encode(change.error)
    db.execute(
        "UPDATE runs SET state = ?, due = ?, asks = ?, output = ?, error = ?, ended = ? WHERE id = ?",
        (change.state, due, _encode(change.asks), output, error, change.ended, id_),
    )


def _are_owned(db: sqlite3.Connection, ids: list[str], life: int) -> bool:
    """Return True if the process with the number `life` has taken all these runs.

    The caller has a transaction, so no other process takes one of them meanwhile.
    """
    places = 1 << (len(ids) - 1).bit_length()  # few different statements: the connection keeps them compiled
    given = ids + ids[-1:] * (places - len(ids))
    query = f"SELECT count(*) FROM runs WHERE life = ? AND id IN ({', '.join('?' * places)})"
    found: int = db.execute(query, (life, *given)).fetchone()[0]
    return found == len(ids)


def _send(db: sqlite3.Connection, id_: str, message: RunMessage) -> None:
    row = db.execute("SELECT state FROM runs WHERE id = ?", (id_,)).fetchone()
    if row is None:
        raise KeyError(id_)
    db.execute("INSERT INTO inbox (run, body) VALUES (?, ?)", (id_, _encode(message)))
    if message.kind == "resume" and row[0] == "stuck":
        db.execute("UPDATE runs SET state = 'ready', due = 0, ended = NULL, error = NULL WHERE id = ?", (id_,))
    elif row[0] not in FINAL_STATES:
        db.execute("UPDATE runs SET due = 0 WHERE id = ?", (id_,))


def _messages(db: sqlite3.Connection, id_: str, after: int) -> list[RunMessage]:
    rows = db.execute("SELECT id, body FROM inbox WHERE run = ? AND id > ? ORDER BY id", (id_, after))
    return [msgspec.structs.replace(_decode_as(id_, body, RunMessage), id=number) for number, body in rows]


def _list(db: sqlite3.Connection, state: str | None, limit: int) -> list[RunRecord]:
    where, values = ("WHERE state = ?", (state,)) if state is not None else ("", ())
    rows = db.execute(f"SELECT {_RUN_COLUMNS} FROM runs {where} ORDER BY created DESC LIMIT ?", (*values, limit))
    return [_run(row) for row in rows]


def _next_due(db: sqlite3.Connection) -> float | None:
    found: float | None = db.execute("SELECT min(due) FROM runs WHERE due IS NOT NULL").fetchone()[0]
    return found
