"""Ledger of budgets in a SQLite file of the state folder, which all workers of a gateway share.

A lease is on disk before its units are spent. So what was used survives a restart, and a kill.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from toolway.gateway.budgets.ledger import (
    KEEP_USE_S,
    BudgetLease,
    LeaseRequest,
    LedgerError,
    StoredUse,
    decide_lease,
)

BUDGETS_FILE_NAME: Final = "budgets.sqlite"
LOCK_TIMEOUT_S: Final = 5.0  # seconds to wait for another worker
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS used (account TEXT PRIMARY KEY, period INTEGER NOT NULL, used INTEGER NOT NULL) WITHOUT ROWID
"""


class SqliteLedger:
    """Ledger in one file, which is created at the first use."""

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._now = now
        self._executor: ThreadPoolExecutor | None = None
        self._db: sqlite3.Connection | None = None

    async def lease(self, requests: Sequence[LeaseRequest]) -> Mapping[str, BudgetLease]:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="toolway-budgets")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, self._lease, requests)
        except (sqlite3.Error, OSError) as exc:
            raise LedgerError(f"{self._path}: {exc}") from exc

    async def close(self) -> None:
        """Close the file, after the changes under way."""
        if self._executor is not None:
            executor, self._executor = self._executor, None
            await asyncio.to_thread(executor.shutdown)
        if self._db is not None:
            self._db.close()
            self._db = None

    # -- in the thread of the ledger ----------------------------------------------------------------------------------

    def _lease(self, requests: Sequence[LeaseRequest]) -> Mapping[str, BudgetLease]:
        db = self._open_file()
        leases = {}
        db.execute("BEGIN IMMEDIATE")  # no other worker reads the use before it is written
        try:
            now = self._now()
            for request in requests:
                id_ = request.account.id
                row = db.execute("SELECT period, used FROM used WHERE account = ?", (id_,)).fetchone()
                stored = StoredUse(*row) if row is not None else None
                leases[id_], changed = decide_lease(stored, request, now)
                if changed != stored:
                    db.execute("INSERT OR REPLACE INTO used VALUES (?, ?, ?)", (id_, *changed))
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return leases

    def _open_file(self) -> sqlite3.Connection:
        if self._db is None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            db = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None, timeout=LOCK_TIMEOUT_S)
            try:
                db.execute("PRAGMA journal_mode=WAL")
                db.execute("PRAGMA synchronous=FULL")
                db.execute(_SCHEMA)
                db.execute("DELETE FROM used WHERE period < ?", (int(self._now()) - KEEP_USE_S,))
            except sqlite3.Error:
                db.close()
                raise
            self._db = db
        return self._db
