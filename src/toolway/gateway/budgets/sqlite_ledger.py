"""Ledger of budgets in a SQLite file of the state folder, which all workers of a gateway share.

A lease is on disk before its units are spent. So what was used survives a restart, and a kill.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from toolway.gateway.budgets.ledger import (
    KEEP_USE_S,
    MAX_USED,
    BudgetLease,
    LeaseRequest,
    LedgerError,
    StoredUse,
    decide_lease,
)
from toolway.gateway.sqlite_file import SqliteFile, transaction

BUDGETS_FILE_NAME: Final = "budgets.sqlite"
_log = logging.getLogger("toolway.gateway")
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS used (account TEXT PRIMARY KEY, period INTEGER NOT NULL, used INTEGER NOT NULL) WITHOUT ROWID
"""


class SqliteLedger:
    """Ledger of budgets in one SQLite file, which is created at the first use."""

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self._file = SqliteFile(path, "toolway-budgets", self._prepare)
        self._now = now

    async def lease(self, requests: Sequence[LeaseRequest]) -> Mapping[str, BudgetLease]:
        try:
            return await self._file.run(lambda db: self._lease(db, requests))
        except (sqlite3.Error, OSError) as exc:
            raise LedgerError(f"{self._file.path}: {exc}") from exc

    async def close(self) -> None:
        """Wait for changes that are being written, then close the file of the ledger."""
        await self._file.close()

    # -- in the thread of the ledger ----------------------------------------------------------------------------------

    def _lease(self, db: sqlite3.Connection, requests: Sequence[LeaseRequest]) -> Mapping[str, BudgetLease]:
        leases = {}
        with transaction(db):  # no other worker reads the use before it is written
            now = self._now()
            for request in requests:
                id_ = request.account.id
                row = db.execute("SELECT period, used FROM used WHERE account = ?", (id_,)).fetchone()
                stored = _stored_use(row, request, now) if row is not None else None
                leases[id_], changed = decide_lease(stored, request, now)
                if changed != stored:
                    db.execute("INSERT OR REPLACE INTO used VALUES (?, ?, ?)", (id_, *changed))
        return leases

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute(_SCHEMA)
        db.execute("DELETE FROM used WHERE period < ?", (int(self._now()) - KEEP_USE_S,))


def _stored_use(row: tuple[Any, ...], request: LeaseRequest, now: float) -> StoredUse:
    """Return the use of an account. If its row cannot be read, the account is used up until the end of the period.

    The other accounts of the same transaction are not affected.
    """
    period, used = row
    if isinstance(period, int) and isinstance(used, int):
        return StoredUse(period, used)
    _log.error("E-BUDGET-STORE: the use of %s cannot be read, so it counts as used up", request.account.id)
    return StoredUse(request.account.budget.period_at(now)[0], MAX_USED)
