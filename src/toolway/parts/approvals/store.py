"""Approval requests in the part's database, shared by all processes of the gateway.

Every change is one transaction, and it is stored before a call is sent. So if two calls use the same approval at the
same time, even on different nodes, only one gets it, and an approval is used at most once even if the gateway is
killed.

In a cluster, the rows of requests are signed, but the rows that record used client answers are not: someone who can
delete rows in the database can replay an answer that their own client gave.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, Literal, TypeVar

from msgspec.structs import replace

from toolway.part_api.database import Database, DatabaseError, Row, Table, Transaction
from toolway.parts.approvals.records import (
    APPROVAL_LIFETIME_S,
    MAX_SPENT,
    ApprovalRequest,
    ClaimOutcome,
    RequestSealer,
    StoreError,
    decide_claim,
)

#: By id. `binding` is the hash of what the approval is bound to, `until` is by the wall clock, `sealed` the request.
REQUESTS: Final = Table(
    "approvals",
    {"binding": "TEXT", "state": "TEXT", "caller": "TEXT", "until": "DOUBLE", "sealed": "TEXT"},
    is_signed=True,
)
SPENT: Final = Table("spent_answers", {"until": "DOUBLE"})  # by the nonce of the question
TABLES: Final = (REQUESTS, SPENT)
_NOT_SPENT: Final = (0.0,)
T = TypeVar("T")
_log = logging.getLogger("toolway.gateway")


class DatabaseApprovalStore:
    """Stores approval requests in the part's database (`ApprovalStore`). `now` returns the wall-clock time."""

    def __init__(self, database: Database, sealer: RequestSealer, now: Callable[[], float] = time.time) -> None:
        self._database = database
        self._sealer = sealer
        self._now = now

    async def close(self) -> None:
        """Wait until pending changes are written, then close the database."""
        await self._database.close()

    async def claim(self, request: ApprovalRequest) -> ClaimOutcome:
        return await self._reporting(self._database.run(partial(self._claim, request)))

    async def spend(self, nonce: str) -> bool:
        return await self._reporting(self._database.run(partial(self._spend, nonce)))

    async def decide(
        self, id: str, state: Literal["approved", "denied"], who: str, reason: str
    ) -> ApprovalRequest | None:
        return await self._reporting(self._database.run(partial(self._decide, id, state, who, reason)))

    async def load(self) -> list[ApprovalRequest]:
        found = await self._reporting(self._database.read(lambda db: self._select(db, "until > :now", now=self._now())))
        return sorted(found, key=lambda each: each.asked_at)

    async def count_pending(self) -> int:
        def work(db: Transaction) -> int:
            return db.count(REQUESTS, "state = 'pending' AND until > :now", now=self._now())

        return await self._reporting(self._database.read(work))

    async def _reporting(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except DatabaseError as exc:
            raise StoreError(str(exc)) from exc

    # -- in a transaction ---------------------------------------------------------------------------------------------

    def _claim(self, request: ApprovalRequest, db: Transaction) -> ClaimOutcome:
        expired = self._remove_expired(db)
        pending = db.count(REQUESTS, "state = 'pending'")
        own = db.count(REQUESTS, "state = 'pending' AND caller = :caller", caller=request.caller)
        known = [
            each
            for each in self._select_all(db, "binding = :binding", binding=request.key)
            if each.key == request.key  # the column may have been changed
        ]
        outcome = decide_claim(known, request, pending, own)
        if outcome.outcome in ("used", "asked"):
            self._write(db, outcome.request)
        return outcome._replace(expired=expired)

    def _spend(self, nonce: str, db: Transaction) -> bool:
        db.delete(SPENT, "until < :now", now=self._now())
        if db.count(SPENT, "until > 0") >= MAX_SPENT or db.lock_rows(SPENT, [nonce], _NOT_SPENT)[nonce] != _NOT_SPENT:
            return False
        # Twice the lifetime: no clock that differs a little makes an answer usable again.
        db.put_rows(SPENT, {nonce: (self._now() + 2 * APPROVAL_LIFETIME_S,)})
        return True

    def _decide(
        self, id: str, state: Literal["approved", "denied"], who: str, reason: str, db: Transaction
    ) -> ApprovalRequest | None:
        found, now = self._select_all(db, '"key" = :id', id=id), self._now()
        if not found or found[0].state != "pending" or found[0].until <= now:
            return None
        decided = replace(found[0], state=state, who=who, reason=reason, until=now + APPROVAL_LIFETIME_S)
        self._write(db, decided)
        return decided

    def _remove_expired(self, db: Transaction) -> list[ApprovalRequest]:
        """Delete expired requests. Return the ones that were never answered."""
        now = self._now()
        found = self._select(db, "until <= :now", now=now)
        db.delete(REQUESTS, "until <= :now", now=now)
        return [replace(each, state="expired") for each in found if each.state == "pending"]

    def _write(self, db: Transaction, request: ApprovalRequest) -> None:
        row = (request.key, request.state, request.caller, request.until, self._sealer.seal(request))
        db.put_rows(REQUESTS, {request.id: row})

    def _select_all(self, db: Transaction, condition: str, **values: str) -> list[ApprovalRequest]:
        """Return the requests that meet a condition. Raises `StoreError` if a row does not match its signature.

        What the altered row said is unknown, and it may have been an administrator's answer.
        """
        rows = db.select(REQUESTS, condition, **values)
        if len(rows) != db.count(REQUESTS, condition, **values):
            raise StoreError("a request was changed without the cluster key")
        return self._open_rows(rows)

    def _select(self, db: Transaction, condition: str, **values: float) -> list[ApprovalRequest]:
        """Return matching requests, leaving out rows that were tampered with."""
        return self._open_rows(db.select(REQUESTS, condition, **values))

    def _open_rows(self, rows: Mapping[str, Row]) -> list[ApprovalRequest]:
        return [found for id, row in rows.items() if (found := self._open(id, row)) is not None]

    def _open(self, id: str, row: Row) -> ApprovalRequest | None:
        """Decrypt the request in a row. If this gateway did not write the row, log that and return None."""
        found = self._sealer.open(row[-1])
        if found is None or (found.id, found.state) != (id, row[1]):
            _log.error("E-APPROVAL-STORE: a request for approval is ignored: %r was changed without the key", id)
            return None
        return found
