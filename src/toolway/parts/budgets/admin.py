"""`/admin/budgets`: the budgets of keys, toolsets, and groups, and how much of each is used."""

from __future__ import annotations

from typing import Final

from toolway.errors import ServerUnavailable
from toolway.gateway.admin.routes import Route
from toolway.gateway.admin.schema import INTEGER, STRING, array_of, object_of
from toolway.parts.budgets.key_limits import limits_of
from toolway.parts.budgets.ledger import BudgetAccount, LedgerError
from toolway.parts.budgets.runtime import BudgetsRuntime
from toolway.types import Json

SCHEMAS: Final = {
    "BudgetList": object_of(
        {
            "budgets": array_of(
                object_of(
                    {
                        **dict.fromkeys(("holder", "name", "tools", "budget", "unit"), STRING),
                        **dict.fromkeys(("amount", "used", "resets_at"), INTEGER),
                    }
                )
            ),
            "concurrent": array_of(object_of({"holder": STRING, "name": STRING, "limit": INTEGER})),
        }
    )
}


async def list_budgets(runtime: BudgetsRuntime) -> Json:
    """Return all budgets and their use in the current period.

    Raises `ServerUnavailable` if the ledger cannot be read.
    """
    keys = list(runtime.api_keys.list_keys()) if runtime.api_keys is not None else []
    limits = {key.id: limits_of(key.to_principal()) for key in keys}
    names = {f"key {key.id}": key.name for key in keys}
    accounts = [
        *(BudgetAccount(f"key {key.id}", "*", each) for key in keys for each in limits[key.id].budgets),
        *(
            BudgetAccount(f"group {group}", pattern, each)
            for group, patterns in runtime.budgets.rules.settings.items()
            for pattern, found in patterns.items()
            for each in found
        ),
    ]
    try:
        used = await runtime.budgets.read(accounts) if accounts else {}
    except (LedgerError, OSError, TimeoutError) as exc:
        raise ServerUnavailable(
            "cannot read budget usage",
            detail=str(exc)[:300] or type(exc).__name__,
            hint="see the gateway log for the cause, then try again",
            code="E-BUDGET-STORE",
        ) from exc
    return {
        "budgets": [
            {
                "holder": runtime.budgets.holder_of(account),
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
            {"holder": f"key {key.id}", "name": key.name, "limit": limits[key.id].concurrent}
            for key in keys
            if limits[key.id].concurrent is not None
        ],
    }


ROUTES: Final = (
    Route(
        "GET",
        "/admin/budgets",
        "Budgets of keys, toolsets, and groups, and how much of each is used in the current period",
        "BudgetList",
        lambda runtime, request: list_budgets(runtime),
    ),
)
