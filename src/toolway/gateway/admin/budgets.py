"""`/admin/budgets`: the budgets of keys and groups, and how much of them is used."""

from __future__ import annotations

from collections.abc import Mapping

from toolway.errors import ServerUnavailable
from toolway.gateway.budgets.call_budgets import CallBudgets
from toolway.gateway.budgets.ledger import BudgetAccount, LedgerError
from toolway.gateway.principals import ApiKey, ApiKeyStore
from toolway.types import Json


class BudgetsAdmin:
    """Handlers of `/admin/budgets`: the budgets of keys and groups, and how much of them is used."""

    def __init__(self, budgets: CallBudgets, api_keys: ApiKeyStore | None) -> None:
        self._budgets = budgets
        self._api_keys = api_keys

    async def list_budgets(self) -> Json:
        """Return all budgets with their use in the current period. Raises `ServerUnavailable`."""
        names = self._key_names()
        accounts = [
            *(BudgetAccount(f"key {key.id}", "*", each) for key in self._keys() for each in key.budgets),
            *(
                BudgetAccount(f"group {group}", pattern, each)
                for group, patterns in self._budgets.rules.settings.items()
                for pattern, found in patterns.items()
                for each in found
            ),
        ]
        try:
            used = await self._budgets.read(accounts) if accounts else {}
        except (LedgerError, OSError, TimeoutError) as exc:
            raise ServerUnavailable(
                "the use of the budgets cannot be read",
                detail=str(exc)[:300] or type(exc).__name__,
                hint="correct the cause, then try again",
                code="E-BUDGET-STORE",
            ) from exc
        return {
            "budgets": [
                {
                    "holder": account.holder,
                    "name": names.get(account.holder, ""),
                    "tools": account.pattern,
                    "budget": str(account.budget),
                    "unit": account.budget.unit,
                    "amount": account.budget.amount,
                    "used": used[account.id].used,
                    "resets_at": used[account.id].end,
                }
                for account in accounts
            ],
            "concurrent": [
                {"holder": f"key {key.id}", "name": key.name, "limit": key.concurrent}
                for key in self._keys()
                if key.concurrent is not None
            ],
        }

    def _keys(self) -> list[ApiKey]:
        return list(self._api_keys.list_keys()) if self._api_keys is not None else []

    def _key_names(self) -> Mapping[str, str]:
        return {f"key {key.id}": key.name for key in self._keys()}
