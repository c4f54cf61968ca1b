"""Charges each call to the budgets of its API key and groups.

A unit is one call or one byte. A process leases units from the ledger, which stores what was used, and most calls only
take units that are already leased. If too few are left, the call waits for the ledger. Nothing is spent on credit, so a
budget is never exceeded while the ledger works. If the ledger fails, the leased units are used up first. After that,
calls are rejected, or allowed for at most an hour (`"budgetsFail": "open"`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from typing import Final

from toolway.events import AccessEvent, Event
from toolway.gateway.principals import ACCESS_PREFIX, Principal
from toolway.parts.budgets.held_units import HeldUnits
from toolway.parts.budgets.key_limits import limits_of
from toolway.parts.budgets.ledger import BudgetAccount, BudgetLease, BudgetLedger, LeaseRequest, MemoryLedger
from toolway.parts.budgets.settings import EVERY_CALLER, BudgetRules, GroupBudgets

MAX_ACCOUNTS: Final = 10_000  # in use at the same time; calls of more accounts are refused
MAX_CACHED: Final = 10_000  # callers and tools whose accounts are remembered
MAX_WAIT_S: Final = 10.0  # seconds that a call waits for units
LEDGER_TIMEOUT_S: Final = 3.0
CHECK_INTERVAL_S: Final = 0.5  # seconds between two checks for unused units
PROBE_INTERVAL_S: Final = 1.0  # seconds between two requests to a ledger that failed
MAX_OPEN_S: Final = 3600.0  # seconds that calls may pass without a ledger
LEDGER_RETRY_S: Final = 5.0  # seconds after which a caller may try again if the ledger failed
QUERY_BATCH: Final = 200  # accounts in one request
_log = logging.getLogger("toolway.gateway")


class BudgetExceeded(Exception):
    """Raised when a budget that a call is charged to is used up."""

    def __init__(self, account: BudgetAccount, wait: float, resets_at: int) -> None:
        super().__init__(account.id)
        self.account = account
        self.wait = wait
        self.resets_at = resets_at


class LedgerUnavailable(Exception):
    """Raised when a budget's usage is unknown because its ledger is unavailable."""


class TooManyCalls(Exception):
    """Raised when an API key has reached its limit on concurrent calls.

    `limit` is this process's share of the key's limit.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit


class CallBudgets:
    """All callers' budgets, as charged by one process. `ledger` stores what all processes have used.

    `now` returns monotonic time. `node_count` returns how many processes there are.
    """

    def __init__(
        self,
        ledger: BudgetLedger | None = None,
        emit: Callable[[Event], None] = lambda event: None,
        node_count: Callable[[], int] = lambda: 1,
        now: Callable[[], float] = time.monotonic,
        on_rules_changed: Callable[[], None] = lambda: None,
        toolsets: Callable[[], Container[str]] = tuple,
    ) -> None:
        self._toolsets = toolsets
        self._on_rules_changed = on_rules_changed
        self._ledger = ledger if ledger is not None else MemoryLedger(time.time)
        self._emit = emit
        self._node_count = node_count
        self._now = now
        self.rules = BudgetRules({})
        self.has_rules = False
        self.fails_open = False
        self._held: dict[str, HeldUnits] = {}
        self._found: dict[tuple[str, str], tuple[Principal, Sequence[BudgetAccount]]] = {}
        self._active: dict[str, int] = {}  # calls in flight by principal, if their number is limited
        self._wake = asyncio.Event()
        self._settled: asyncio.Future[None] | None = None  # done when the next requests to the ledger have ended
        self._task: asyncio.Task[None] | None = None
        self._lost_at: float | None = None  # when the ledger failed first
        self._probe_at = 0.0
        self._passed = 0  # calls that passed without a ledger
        self._is_open_reported = False

    def set_rules(self, budgets: GroupBudgets, *, fails_open: bool) -> None:
        """Use these group budgets from now on. Calls that were already charged still count."""
        if budgets != self.rules.settings:
            self.rules = BudgetRules(budgets)
            self.has_rules = bool(self.rules)
            self._found.clear()
            self._on_rules_changed()
        self.fails_open = fails_open

    def find(self, principal: Principal, target: str) -> Sequence[BudgetAccount]:
        """Return the budget accounts to charge when a principal calls `target` (`server.tool`)."""
        key = (principal.id, target)
        known = self._found.get(key)
        if known is not None and (known[0] is principal or known[0] == principal):
            return known[1]
        own = [BudgetAccount(f"key {principal.id}", "*", budget) for budget in limits_of(principal).budgets]
        groups = [each.removeprefix(ACCESS_PREFIX) for each in principal.access or ()]
        shared = self.rules.find(groups, target)
        found = (*own, *(BudgetAccount(f"group {group}", pattern, budget) for group, pattern, budget in shared))
        if len(self._found) >= MAX_CACHED:
            self._found.clear()  # cheap to find again
        self._found[key] = (principal, found)
        return found

    def holder_of(self, account: BudgetAccount) -> str:
        """Return whose budget it is, in words: `key ID`, `toolset NAME`, `group NAME` or `every caller`."""
        kind, _, name = account.holder.partition(" ")
        if kind != "group":
            return account.holder
        # The ledger does not know what a name stands for, so a use stays the same if a toolset gets it.
        return (
            "every caller"
            if name == EVERY_CALLER
            else f"toolset {name}"
            if name in self._toolsets()
            else account.holder
        )

    # -- calls --------------------------------------------------------------------------------------------------------

    def try_take(self, accounts: Sequence[BudgetAccount]) -> bool:
        """Charge one call to these accounts without waiting.

        Return False, charging nothing, if this process has no leased unit left for one of them. Accounts that count
        bytes are charged later, by `add_bytes`.
        """
        now = self._now()
        held = [self._hold(account, now) for account in accounts]
        if not all(each is not None and each.has_unit(now) for each in held):
            return False
        for each in held:
            assert each is not None
            if each.account.budget.unit == "calls":
                each.spend(1, now)
            if each.is_due(now):
                self._wake.set()
        return True

    def give_back(self, accounts: Sequence[BudgetAccount]) -> None:
        """Undo a `try_take` that just succeeded, because the call was not made."""
        now = self._now()
        for account in accounts:
            found = self._held.get(account.id)
            if found is not None and account.budget.unit == "calls":
                found.give_back(1, now)

    async def take(self, accounts: Sequence[BudgetAccount]) -> None:
        """Charge one call to these accounts, waiting for more leased units if necessary.

        Raises `BudgetExceeded` if a budget is used up, and `LedgerUnavailable` if that is unknown.
        """
        began = self._now()
        while not self.try_take(accounts):
            now = self._now()
            held = [self._require(account, now) for account in accounts]
            for each in held:
                each.used_at = now  # else units of one account would be returned while the call waits for another
            short = [each for each in held if not each.has_unit(now)]
            for each in short:
                if each.is_used_up(now) or (self._lost_at is not None and now < each.over_until):
                    raise BudgetExceeded(each.account, max(0.0, each.until - now), each.end)
            if self._lost_at is not None and now < self._probe_at:
                self._pass_or_refuse(accounts, now)
                return
            if now - began >= MAX_WAIT_S:
                raise LedgerUnavailable("the ledger is slow")
            await self._wait_settled(short)

    def _pass_or_refuse(self, accounts: Sequence[BudgetAccount], now: float) -> None:
        """Let a call pass for up to an hour while the ledger fails, if the settings allow it.

        Raises `LedgerUnavailable` if the call must not pass.
        """
        assert self._lost_at is not None
        if not self.fails_open or now - self._lost_at >= MAX_OPEN_S:
            self._report_open(is_open=False)
            raise LedgerUnavailable("the ledger cannot be used")
        self._report_open(is_open=True)
        self._passed += 1
        for account in accounts:
            if account.budget.unit == "calls":
                self._require(account, now).spend(1, now)

    def add_bytes(self, accounts: Sequence[BudgetAccount], size: int) -> None:
        """Charge the size of a finished call's result to the accounts that count bytes."""
        now = self._now()
        for account in accounts:
            if account.budget.unit == "bytes":
                each = self._require(account, now)
                each.spend(size, now)
                if each.is_due(now):
                    self._wake.set()

    def enter(self, principal: Principal) -> bool:
        """Count a principal's call as running if its concurrent calls are limited.

        Return False without a limit. Raises `TooManyCalls` if the limit is reached. In a cluster, each process has
        a share of the limit.
        """
        concurrent = limits_of(principal).concurrent
        if concurrent is None:
            return False
        limit, active = max(1, concurrent // max(1, self._node_count())), self._active.get(principal.id, 0)
        if active >= limit:
            raise TooManyCalls(limit)
        self._active[principal.id] = active + 1
        return True

    def leave(self, principal: Principal) -> None:
        """Stop counting a call as running. Call this once for each `enter` that returned True."""
        left = self._active[principal.id] - 1
        if left:
            self._active[principal.id] = left
        else:
            del self._active[principal.id]

    # -- what was used ------------------------------------------------------------------------------------------------

    async def read(self, accounts: Sequence[BudgetAccount]) -> Mapping[str, BudgetLease]:
        """Return how much of each account is used, by account id.

        Units that this process leased but has not spent are not included. Raises `LedgerError` or `TimeoutError` if the
        ledger cannot be used.
        """
        found: dict[str, BudgetLease] = {}
        now = self._now()
        for start in range(0, len(accounts), QUERY_BATCH):
            requests = [LeaseRequest(account, 0) for account in accounts[start : start + QUERY_BATCH]]
            async with asyncio.timeout(LEDGER_TIMEOUT_S):
                found |= await self._ledger.lease(requests)
        for id_, lease in found.items():
            held = self._held.get(id_)
            if held is not None and held.period == lease.period and now < held.until:
                found[id_] = lease._replace(used=max(0, lease.used - held.units + held.debt))
        return found

    # -- ledger -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Return unspent units to the ledger, if possible, and close it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        now = self._now()
        requests = [each.final_request(now, each.debt) for each in self._held.values() if each.units or each.debt]
        with suppress(Exception):
            for start in range(0, len(requests), QUERY_BATCH):
                async with asyncio.timeout(LEDGER_TIMEOUT_S):
                    await self._ledger.lease(requests[start : start + QUERY_BATCH])
        self._held.clear()
        await self._ledger.close()

    def _hold(self, account: BudgetAccount, now: float) -> HeldUnits | None:
        """Return the units this process holds for an account. They are created on first use.

        Return None if this process has too many accounts.
        """
        found = self._held.get(account.id)
        if found is not None:
            found.account = account  # its amount may have changed
            return found
        if len(self._held) >= MAX_ACCOUNTS:
            return None
        found = self._held[account.id] = HeldUnits(account, now)
        return found

    def _require(self, account: BudgetAccount, now: float) -> HeldUnits:
        found = self._hold(account, now)
        if found is None:
            raise LedgerUnavailable(f"more than {MAX_ACCOUNTS} budgets are in use")
        return found

    async def _wait_settled(self, short: Sequence[HeldUnits]) -> None:
        """Wait until the ledger has been asked for more units for the accounts in `short`."""
        if self._settled is None:
            self._settled = asyncio.get_running_loop().create_future()
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        for each in short:
            each.waiting += 1
        self._wake.set()
        try:
            await asyncio.shield(self._settled)
        finally:
            for each in short:
                each.waiting -= 1

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_INTERVAL_S if self._held else None):
                    await self._wake.wait()
            self._wake.clear()
            settled, self._settled = self._settled, None
            try:
                await self._settle()
            finally:
                if settled is not None and not settled.done():
                    settled.set_result(None)

    async def _settle(self) -> None:
        now = self._now()
        if self._lost_at is not None and now < self._probe_at:
            return
        due = []
        for id_, each in list(self._held.items()):
            if each.is_due(now):
                due.append(each)
            elif each.is_removable(now):
                del self._held[id_]
        for start in range(0, len(due), QUERY_BATCH):
            await self._ask([(each, each.next_request(now)) for each in due[start : start + QUERY_BATCH]])

    async def _ask(self, asked: Sequence[tuple[HeldUnits, LeaseRequest]]) -> None:
        sent_at = self._now()
        try:
            async with asyncio.timeout(LEDGER_TIMEOUT_S):
                leases = await self._ledger.lease([request for _, request in asked])
        except Exception as exc:
            for each, request in asked:
                each.restore(request)
            now = self._now()
            if self._lost_at is None:
                self._lost_at = now
                _log.warning("cannot use the budget ledger: %s", type(exc).__name__)
            self._probe_at = now + PROBE_INTERVAL_S
            return
        if self._lost_at is not None:
            self._lost_at = None
            _log.warning("the budget ledger works again")
            self._report_open(is_open=False)
        now = self._now()
        for each, request in asked:
            each.apply(leases[each.account.id], request, sent_at, now)

    def _report_open(self, *, is_open: bool) -> None:
        """Emit events when calls start to pass uncharged because the ledger fails, and when that ends.

        `budgets_open` means that calls pass because budgets cannot be counted. `budgets_closed` means that they are
        counted again, and says how many calls passed.
        """
        if is_open == self._is_open_reported:
            return
        self._is_open_reported = is_open
        if is_open:
            self._emit(AccessEvent("", "budgets_open", "cannot use the budget ledger: calls pass unchecked"))
        else:
            self._emit(AccessEvent("", "budgets_closed", f"{self._passed} calls passed without a ledger"))
            self._passed = 0
