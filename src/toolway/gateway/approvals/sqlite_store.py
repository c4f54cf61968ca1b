"""Requests for approval in a SQLite file of the state folder, which all workers of a gateway share.

Every change is one transaction that holds the write lock of the file from its beginning, and is on disk before a call
is sent. So an approval is used once, also if the gateway is killed.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, TypeVar

from msgspec.structs import replace

from toolway.gateway.approvals.records import (
    APPROVAL_LIFETIME_S,
    MAX_SPENT,
    ApprovalRequest,
    ClaimOutcome,
    RequestSealer,
    StoreError,
    decide_claim,
)
from toolway.part_api.sqlite_file import SqliteFile, transaction

APPROVALS_FILE_NAME: Final = "approvals.sqlite"
T = TypeVar("T")
_log = logging.getLogger("toolway.gateway")

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS requests (
    id TEXT PRIMARY KEY, key TEXT NOT NULL, state TEXT NOT NULL, caller TEXT NOT NULL,
    until REAL NOT NULL, sealed TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS requests_key ON requests (key);
CREATE INDEX IF NOT EXISTS requests_until ON requests (until);
CREATE TABLE IF NOT EXISTS spent (nonce TEXT PRIMARY KEY, until REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS spent_until ON spent (until);
"""
_COUNT_PENDING: Final = "SELECT count(*), coalesce(sum(caller = ?), 0) FROM requests WHERE state = 'pending'"


class SqliteApprovalStore:
    """Store of requests for approval in one SQLite file. The file is created at the first use."""

    def __init__(self, path: Path, sealer: RequestSealer, now: Callable[[], float] = time.time) -> None:
        self._file = SqliteFile(path, "toolway-approvals", lambda db: db.executescript(_SCHEMA))
        self._sealer = sealer
        self._now = now

    async def close(self) -> None:
        """Wait for changes that are being written, then close the file of the approvals."""
        await self._file.close()

    async def claim(self, request: ApprovalRequest) -> ClaimOutcome:
        return await self._run(lambda db: self._claim(db, request))

    async def spend(self, nonce: str) -> bool:
        return await self._run(lambda db: self._spend(db, nonce))

    async def decide(
        self, id: str, state: Literal["approved", "denied"], who: str, reason: str
    ) -> ApprovalRequest | None:
        return await self._run(lambda db: self._decide(db, id, state, who, reason))

    async def load(self) -> list[ApprovalRequest]:
        return await self._run(self._load)

    async def count_pending(self) -> int:
        query = "SELECT count(*) FROM requests WHERE state = 'pending' AND until > ?"
        return await self._run(lambda db: int(db.execute(query, (self._now(),)).fetchone()[0]))

    # -- in the thread of the store -----------------------------------------------------------------------------------

    def _claim(self, db: sqlite3.Connection, request: ApprovalRequest) -> ClaimOutcome:
        with transaction(db):
            expired = self._remove_expired(db)
            rows = db.execute("SELECT id, state, sealed FROM requests WHERE key = ?", (request.key,)).fetchall()
            known = [found for row in rows if (found := self._open(row)) is not None and found.key == request.key]
            pending, own = db.execute(_COUNT_PENDING, (request.caller,)).fetchone()
            outcome = decide_claim(known, request, pending, own)
            if outcome.outcome in ("used", "asked"):
                self._write(db, outcome.request)
        return outcome._replace(expired=expired)

    def _spend(self, db: sqlite3.Connection, nonce: str) -> bool:
        with transaction(db):
            db.execute("DELETE FROM spent WHERE until < ?", (self._now(),))
            (count,) = db.execute("SELECT count(*) FROM spent").fetchone()
            if count >= MAX_SPENT:
                return False
            # Twice the lifetime: no clock that differs a little makes an answer usable again.
            until = self._now() + 2 * APPROVAL_LIFETIME_S
            added = db.execute("INSERT INTO spent VALUES (?, ?) ON CONFLICT DO NOTHING", (nonce, until))
        return added.rowcount == 1

    def _decide(
        self, db: sqlite3.Connection, id: str, state: Literal["approved", "denied"], who: str, reason: str
    ) -> ApprovalRequest | None:
        with transaction(db):
            row = db.execute("SELECT id, state, sealed FROM requests WHERE id = ?", (id,)).fetchone()
            found = self._open(row) if row is not None else None
            now = self._now()
            if found is None or found.state != "pending" or found.until <= now:
                return None
            decided = replace(found, state=state, who=who, reason=reason, until=now + APPROVAL_LIFETIME_S)
            self._write(db, decided)
        return decided

    def _load(self, db: sqlite3.Connection) -> list[ApprovalRequest]:
        rows = db.execute("SELECT id, state, sealed FROM requests WHERE until > ?", (self._now(),)).fetchall()
        found = [request for row in rows if (request := self._open(row)) is not None]
        return sorted(found, key=lambda each: each.asked_at)

    def _remove_expired(self, db: sqlite3.Connection) -> list[ApprovalRequest]:
        """Delete expired requests. Return those of them that were never answered."""
        now = self._now()
        rows = db.execute("SELECT id, state, sealed FROM requests WHERE until <= ?", (now,)).fetchall()
        if rows:
            db.execute("DELETE FROM requests WHERE until <= ?", (now,))
        found = [request for row in rows if (request := self._open(row)) is not None]
        return [replace(each, state="expired") for each in found if each.state == "pending"]

    def _write(self, db: sqlite3.Connection, request: ApprovalRequest) -> None:
        row = (request.id, request.key, request.state, request.caller, request.until, self._sealer.seal(request))
        db.execute("INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, ?, ?)", row)

    def _open(self, row: tuple[str, str, str]) -> ApprovalRequest | None:
        """Decrypt the request for approval in a database row; None if the row was not written by this gateway."""
        found = self._sealer.open(row[2])
        if found is None or (found.id, found.state) != row[:2]:
            _log.error(
                "a request for approval is ignored: %s was changed without the key of the gateway", self._file.path
            )
            return None
        return found

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._file.run(work)
        except (sqlite3.Error, OSError) as exc:
            raise StoreError(f"{self._file.path}: {exc}") from exc
