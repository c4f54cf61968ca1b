"""A gateway limit that enforces budgets: it charges calls before they are sent, and explains rejections."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any

from toolway.gateway.authenticator import ThrottleLog
from toolway.gateway.limits import count_bytes
from toolway.gateway.mcp.errors import QUOTA, STORE_UNAVAILABLE, RpcFailure, not_sent
from toolway.gateway.mcp.responses import RpcResult
from toolway.gateway.principals import Principal
from toolway.parts.budgets.call_budgets import (
    LEDGER_RETRY_S,
    BudgetExceeded,
    CallBudgets,
    LedgerUnavailable,
    TooManyCalls,
)
from toolway.parts.budgets.key_limits import limits_of
from toolway.parts.budgets.ledger import BudgetAccount


class BudgetLimit:
    """The `CallLimit` that enforces a gateway's budgets."""

    def __init__(self, budgets: CallBudgets, throttle_log: ThrottleLog) -> None:
        self._budgets = budgets
        self._throttle_log = throttle_log

    def concerns(self, principal: Principal) -> bool:
        return self._budgets.has_rules or bool(principal.attributes)

    def bind(self, principal: Principal, target: str) -> BoundBudgets | None:
        accounts = self._budgets.find(principal, target)
        is_concurrent = limits_of(principal).concurrent is not None
        if not accounts and not is_concurrent:
            return None
        return BoundBudgets(self._budgets, self._throttle_log, principal, accounts, is_concurrent)


class BoundBudgets:
    """The budgets to charge for one principal's calls to one tool."""

    __slots__ = ("_accounts", "_budgets", "_has_bytes", "_is_quick", "_principal", "_throttle_log")

    def __init__(
        self,
        budgets: CallBudgets,
        throttle_log: ThrottleLog,
        principal: Principal,
        accounts: Sequence[BudgetAccount],
        is_concurrent: bool,
    ) -> None:
        self._budgets = budgets
        self._throttle_log = throttle_log
        self._principal = principal
        self._accounts = accounts
        self._has_bytes = any(each.budget.unit == "bytes" for each in accounts)
        self._is_quick = not (is_concurrent or self._has_bytes)  # nothing is counted when the call has ended

    def try_take(self) -> bool:
        return self._is_quick and self._budgets.try_take(self._accounts)

    def give_back(self) -> None:
        self._budgets.give_back(self._accounts)

    async def run(self, work: Coroutine[Any, Any, RpcResult], *, is_followup: bool) -> RpcResult:
        budgets, accounts = self._budgets, self._accounts
        if is_followup:  # the call that created the task was counted; the task result is its result
            accounts = [each for each in accounts if each.budget.unit == "bytes"]
        try:
            is_counted = budgets.enter(self._principal)
            try:
                await budgets.take(accounts)
                result = await work
            finally:
                if is_counted:
                    budgets.leave(self._principal)
        except BudgetExceeded as exc:
            self._throttle_log.add(self._principal.id, str(exc.account.budget), "budget")
            raise budget_failure(exc, budgets.holder_of(exc.account)) from None
        except TooManyCalls as exc:
            raise concurrency_failure(exc.limit) from None
        except LedgerUnavailable as exc:
            raise ledger_failure(str(exc), LEDGER_RETRY_S) from None
        finally:
            work.close()
        if self._has_bytes:
            budgets.add_bytes(accounts, count_bytes(result))
        return result


def budget_failure(exc: BudgetExceeded, holder: str) -> RpcFailure:
    """Return the error for a call that is rejected because a budget is used up."""
    _, pattern, budget = exc.account
    resets_at = datetime.fromtimestamp(exc.resets_at, UTC).isoformat().replace("+00:00", "Z")
    data = not_sent("E-BUDGET", exc.wait, f"wait until {resets_at}, or ask an administrator to raise the budget")
    data |= {"budget": str(budget), "of": holder, "tools": pattern, "resetAt": resets_at}
    message = f"budget of {budget} of {holder} for {pattern} is used up: it resets at {resets_at}"
    return RpcFailure(QUOTA, message, data, retry_after=exc.wait)


def concurrency_failure(limit: int) -> RpcFailure:
    """Return the error for a call that is rejected because its API key has too many calls running."""
    data = not_sent("E-CONCURRENT", 1.0, "wait for the result of another call")
    return RpcFailure(QUOTA, f"this API key has {limit} calls in flight, which is its limit", data)


def ledger_failure(detail: str, wait: float) -> RpcFailure:
    """Return the error for a call that is rejected because nobody knows how much of its budget is used."""
    data = not_sent("E-BUDGET-STORE", wait, "try again; if it keeps failing, ask an administrator to check the log")
    message = f"cannot tell how much of a budget is used, so the call was not sent: {detail}"
    return RpcFailure(STORE_UNAVAILABLE, message, data, retry_after=wait)
