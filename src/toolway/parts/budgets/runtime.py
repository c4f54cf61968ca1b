"""Budgets in a running gateway."""

from __future__ import annotations

from typing import Any

from toolway.gateway.authenticator import ThrottleLog
from toolway.part_api.part import Part, PartContext, PartRuntime
from toolway.parts.budgets.call_budgets import CallBudgets
from toolway.parts.budgets.call_limit import BudgetLimit
from toolway.parts.budgets.ledger import StoredLedger
from toolway.parts.budgets.settings import BudgetSettings

_NO_SETTINGS = BudgetSettings()


class BudgetsRuntime(PartRuntime):
    """A gateway's budgets and their ledger. Without a store, the ledger is in memory."""

    def __init__(self, part: Part, context: PartContext) -> None:
        database = context.open_database(part)
        ledger = StoredLedger(database) if database is not None else None
        self.api_keys = context.api_keys
        self.budgets = CallBudgets(
            ledger,
            context.hub.emit,
            context.node_count,
            on_rules_changed=context.limits.on_changed,
            toolsets=lambda: context.meta_tools.endpoints.toolsets(),
        )
        context.limits.add(BudgetLimit(self.budgets, ThrottleLog(context.hub.emit)))

    def apply(self, settings: Any) -> None:
        found: BudgetSettings = settings or _NO_SETTINGS
        self.budgets.set_rules(found.budgets, fails_open=found.budgets_fail == "open")

    async def close(self) -> None:
        await self.budgets.close()
