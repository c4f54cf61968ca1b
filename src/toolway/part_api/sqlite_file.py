"""SQLite files in the state folder, one per part with data, shared by all workers of a gateway.

Each file has its own thread, so the event loop never waits for the disk or for another worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from toolway._os import O_UNSHARED
from toolway._sqlite import open_database
from toolway._worker_thread import WorkerDied, WorkerThread

LOCK_TIMEOUT_S: Final = 5.0  # seconds to wait for another worker
CLOSE_TIMEOUT_S: Final = 10.0
T = TypeVar("T")


class SqliteFile:
    """A SQLite file and the thread that uses it. Both are created on first use.

    Args:
        path: The file. Only its owner can read it.
        thread_name: Name of the thread, for thread dumps.
        prepare: Called with each new connection, to create tables.
    """

    def __init__(self, path: Path, thread_name: str, prepare: Callable[[sqlite3.Connection], object]) -> None:
        self.path = path
        self._thread_name = thread_name
        self._prepare = prepare
        self._thread: WorkerThread | None = None
        self._db: sqlite3.Connection | None = None

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in the file's thread and return its result.

        Raises `sqlite3.Error` or `OSError` if the file fails.
        """
        if self._thread is None:
            self._thread = WorkerThread(self._thread_name)
        try:
            return await self._thread.run(lambda: work(self._open()))
        except WorkerDied as exc:
            raise OSError(str(exc)) from exc  # the file cannot be used

    async def close(self) -> None:
        """Wait for pending writes, then close the file. Give up on a disk that never responds."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()
            if not await asyncio.to_thread(thread.join, CLOSE_TIMEOUT_S):
                return
        if self._db is not None:
            self._db.close()
            self._db = None

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | O_UNSHARED, 0o600))
            db = open_database(self.path, LOCK_TIMEOUT_S)
            try:
                self._prepare(db)
            except BaseException:
                db.close()
                raise
            self._db = db
        return self._db


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run a transaction that holds the write lock from the start, and roll it back if the block raises an error."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
