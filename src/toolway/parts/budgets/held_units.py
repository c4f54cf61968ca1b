"""The units that this process leased for one budget account. No I/O: monotonic time is passed as `now`."""

from __future__ import annotations

import math
from typing import Final

from toolway.parts.budgets.ledger import BudgetAccount, BudgetLease, LeaseRequest

LEASE_AHEAD_S: Final = 1.0  # seconds of demand to lease ahead
MIN_DEMAND_WINDOW_S: Final = 0.1  # seconds: shorter intervals between two requests count as this long
IDLE_AFTER_S: Final = 2.0  # seconds without a call after which unused units are returned
RETRY_S: Final = 1.0  # seconds between two requests for a budget that is used up: units may have been returned
_LEAST: Final = {"calls": 8, "bytes": 64 * 1024}
_MOST: Final = {"calls": 20_000, "bytes": 64 * 1024 * 1024}


class HeldUnits:
    """The units this process has leased for one budget account, and the account's last known state."""

    __slots__ = (
        "_asked_at",
        "_low",
        "_spent_since",
        "account",
        "debt",
        "end",
        "is_asking",
        "over_until",
        "period",
        "retry_at",
        "units",
        "until",
        "used",
        "used_at",
        "waiting",
    )

    def __init__(self, account: BudgetAccount, now: float) -> None:
        self.account = account
        self.units = 0
        self.period = 0  # start of the units' period
        self.end = 0  # end of that period, in seconds since 1970
        self.until = now  # time at which the units end with their period
        self.used = 0  # in the ledger, when it was last asked
        self.debt = 0  # units spent without a lease
        self.over_until = now  # the budget is used up until then
        self.retry_at = now  # earliest time to ask again for a budget that is used up
        self.waiting = 0  # calls that wait for units
        self.is_asking = False
        self.used_at = now
        self._asked_at = now
        self._spent_since = 0
        self._low = 0  # fewer units are filled up

    def has_unit(self, now: float) -> bool:
        """Return True if at least one unit is left, which is enough for another call."""
        if now >= self.until:
            self.units = 0
        return self.units > 0

    def spend(self, units: int, now: float) -> None:
        """Spend leased units.

        If too few are left, the rest becomes a debt, which the next request reports to the ledger. This happens with
        bytes, whose number is known only when a call has ended.
        """
        self.units -= units
        if self.units < 0:
            self.debt, self.units = self.debt - self.units, 0
        self._spent_since += units
        self.used_at = now

    def give_back(self, units: int, now: float) -> None:
        """Undo a `spend` that was just made, because the call was not made."""
        if now < self.until:
            self.units += units
        self._spent_since -= units

    def is_used_up(self, now: float) -> bool:
        """Return True if the budget was used up when the ledger was last asked, and it is too early to ask again."""
        return now < self.over_until and now < self.retry_at

    def is_due(self, now: float) -> bool:
        """Return True if it is time to ask the ledger for units, report a debt, or return units."""
        if self.is_asking:
            return False
        if self.waiting or self.debt:
            return not self.is_used_up(now) or self.debt > 0
        if now - self.used_at >= IDLE_AFTER_S:
            return self.units > 0 and now < self.until
        return self.units < self._low and not self.is_used_up(now)

    def is_removable(self, now: float) -> bool:
        """Return True if this object can be dropped because it is idle and has no units or debt."""
        is_idle = now - self.used_at >= IDLE_AFTER_S and now >= self.retry_at
        return is_idle and not (self.is_asking or self.waiting or self.debt or (self.units and now < self.until))

    def next_request(self, now: float) -> LeaseRequest:
        """Return the next ledger request, which asks for units or returns some. Call `apply` or `restore` after it."""
        self.is_asking = True
        debt, self.debt = self.debt, 0
        if not self.waiting and now - self.used_at >= IDLE_AFTER_S:
            return self.final_request(now, debt)
        unit = self.account.budget.unit
        demand = LEASE_AHEAD_S * self._spent_since / max(MIN_DEMAND_WINDOW_S, now - self._asked_at)
        wanted = min(max(_LEAST[unit], math.ceil(demand) + self.waiting), _MOST[unit])
        self._low = wanted // 2
        self._asked_at, self._spent_since = now, 0
        held = self.units if now < self.until else 0
        return LeaseRequest(self.account, max(1, wanted - held), debt)

    def final_request(self, now: float, debt: int = 0) -> LeaseRequest:
        """Return the request that returns all unspent units to the ledger.

        If that request fails, the units are lost: they count as used.
        """
        units, self.units, self._low = (self.units if now < self.until else 0), 0, 0
        return LeaseRequest(self.account, 0, debt - units, self.period if units else 0)

    def apply(self, lease: BudgetLease, request: LeaseRequest, sent_at: float, now: float) -> None:
        """Add the units that the ledger granted for `request`. `sent_at` is when the request was sent.

        The time left in the period is counted from `sent_at`, so the period does not seem to end later than it does.
        """
        self.is_asking = False
        if lease.period != self.period:
            self.units, self.period = 0, lease.period
        self.units += lease.units
        self.used, self.end, self.until = lease.used, lease.end, sent_at + lease.seconds_left
        if request.wanted and not lease.units:
            self.over_until, self.retry_at = self.until, now + RETRY_S
        elif lease.units:
            self.over_until = now

    def restore(self, request: LeaseRequest) -> None:
        """Take back the debt from a failed request, so the next one reports it.

        Units that the failed request returned are lost, because the ledger may have received them.
        """
        self.is_asking = False
        self.debt += max(0, request.spent)
