"""The budget ledger: stores how much of each budget was used in its current period.

Units (calls or bytes) are leased: the ledger counts them as used before a call spends them. So all processes together
never spend more than a budget, even if one is killed. Unused units are returned. A lease is on disk before its units
are spent, so usage survives a restart or a kill. Periods begin and end by the database's clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from toolway.part_api.database import Database, DatabaseError, Row, Table, Transaction
from toolway.parts.budgets.settings import MAX_AMOUNT, CallBudget

#: A lease has at most this part of what is free, so the last units of a budget do not stay with one process.
LEASE_FRACTION: Final = 8
MAX_USED: Final = 4 * MAX_AMOUNT  # stored values beyond it make no sense
KEEP_USE_S: Final = 62 * 86_400  # seconds after which the use of a budget is deleted: no period is so long
USE: Final = Table("budget_use", {"period": "BIGINT", "used": "BIGINT"})  # by account id
TABLES: Final = (USE,)
_log = logging.getLogger("toolway.gateway")


class LedgerError(Exception):
    """Raised when the ledger cannot be read or written."""


class BudgetAccount(NamedTuple):
    """One budget of an API key or group, with the pattern of tools it applies to."""

    holder: str  # `key ID`, or `group NAME` for any name in `toolway.budgets`; shown by `CallBudgets.holder_of`
    pattern: str  # of server.tool
    budget: CallBudget

    @property
    def id(self) -> str:
        """Return the account's id in the ledger. It omits the amount, so raising a budget keeps its usage."""
        return f"{self.holder}|{self.pattern}|{self.budget.unit}/{self.budget.period}"


class LeaseRequest(NamedTuple):
    """A request to the ledger for `wanted` units of one account. It also reports spent units or returns unused ones."""

    account: BudgetAccount
    wanted: int
    spent: int = 0  # units to count without a lease; negative: units of a lease that are returned
    period: int = 0  # start of the period of `spent`; 0: the current one


class BudgetLease(NamedTuple):
    """The units that the ledger granted to a process, and how much of the account is used."""

    units: int
    used: int  # in this period, with these units
    period: int  # start of the period, in seconds since 1970
    end: int  # end of the period
    seconds_left: float  # until that end, by the clock of the ledger


class StoredUse(NamedTuple):
    """The stored usage of one budget account: when its period started, and how many units were used."""

    period: int
    used: int


class BudgetLedger(Protocol):
    """Stores how much of each budget is used. Methods raise `LedgerError` if reading or writing fails."""

    async def lease(self, requests: Sequence[LeaseRequest]) -> Mapping[str, BudgetLease]:
        """Reserve budget units for several accounts in one transaction. Return the leases by account id.

        An account without enough units gets fewer units, or none.
        """
        ...

    async def close(self) -> None: ...


def decide_lease(stored: StoredUse | None, request: LeaseRequest, now: float) -> tuple[BudgetLease, StoredUse]:
    """Return the lease that the ledger grants for a request, and the usage to store.

    `stored` is the usage before the request.
    """
    budget = request.account.budget
    start, end = budget.period_at(now)
    if stored is not None and stored.period > start:  # the clock was set back: what was used stays used
        start, end = budget.period_at(stored.period)
    used = min(max(0, stored.used), MAX_USED) if stored is not None and stored.period == start else 0
    if request.spent and request.period in (0, start):
        used = min(max(0, used + request.spent), MAX_USED)
    free = max(0, budget.amount - used)
    units = min(request.wanted, max(1, free // LEASE_FRACTION)) if free else 0
    lease = BudgetLease(units, used + units, start, end, max(0.0, end - now))
    return lease, StoredUse(start, used + units)


class MemoryLedger:
    """A ledger in one process's memory. Its content is lost when the process ends."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._used: dict[str, StoredUse] = {}

    async def lease(self, requests: Sequence[LeaseRequest]) -> Mapping[str, BudgetLease]:
        leases = {}
        for request in requests:
            id_ = request.account.id
            leases[id_], self._used[id_] = decide_lease(self._used.get(id_), request, self._now())
        return leases

    async def close(self) -> None:
        """Do nothing, because a ledger in memory has nothing to close."""


class StoredLedger:
    """A ledger in a database that all processes of a gateway share."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_cleaned = False

    async def lease(self, requests: Sequence[LeaseRequest]) -> Mapping[str, BudgetLease]:
        try:
            return await self._database.run(lambda db: self._lease(db, requests))
        except DatabaseError as exc:
            raise LedgerError(str(exc)) from exc

    async def close(self) -> None:
        await self._database.close()

    def _lease(self, db: Transaction, requests: Sequence[LeaseRequest]) -> Mapping[str, BudgetLease]:
        ordered = sorted(requests, key=lambda each: each.account.id)  # one lock order for all nodes
        stored = db.lock_rows(USE, [each.account.id for each in ordered], (0, 0))
        leases, changed, now = {}, {}, db.now
        for request in ordered:
            id_ = request.account.id
            before = _stored_use(stored[id_], request, now)
            leases[id_], use = decide_lease(before, request, now)
            if use != before:
                changed[id_] = use
        if changed:
            db.put_rows(USE, changed)
        if not self._is_cleaned:
            db.delete(USE, "period > 0 AND period < :limit", limit=int(now) - KEEP_USE_S)
            self._is_cleaned = True
        return leases


def _stored_use(row: Row, request: LeaseRequest, now: float) -> StoredUse:
    """Return an account's usage. An unreadable row counts as used up until the period ends.

    Other accounts in the same transaction are not affected.
    """
    period, used = row
    if isinstance(period, int) and isinstance(used, int):
        return StoredUse(period, used)
    _log.error("E-BUDGET-STORE: cannot read how much of %s is used, so it counts as used up", request.account.id)
    return StoredUse(request.account.budget.period_at(now)[0], MAX_USED)
