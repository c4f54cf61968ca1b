"""Budgets: how many calls or bytes a key or group may use per period.

Each process leases units from a ledger in advance, so most calls do not have to wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from toolway.part_api.part import Command, KeyAttribute, Part

if TYPE_CHECKING:
    from toolway.types import Json


class _Budgets(KeyAttribute):
    code: ClassVar[Mapping[str, str]] = {"read": "key_limits:read_budgets", "show": "key_limits:show_budgets"}
    schema: ClassVar[Json] = {"type": "array", "items": {"type": "string"}}
    empty: ClassVar[Any] = []
    option = "--budget"
    option_type = list[str]
    metavar = "AMOUNT"
    help = "Calls, or bytes of results: 5000/day, 500MB/month."

    def describe(self, shown: Any) -> list[str]:
        return list(shown)


class _Concurrent(KeyAttribute):
    code: ClassVar[Mapping[str, str]] = {"read": "key_limits:read_concurrent"}
    schema: ClassVar[Json] = {"type": "integer"}
    option = "--concurrent"
    option_type = int
    metavar = "CALLS"
    help = "Maximum concurrent calls."

    def describe(self, shown: Any) -> list[str]:
        return [f"{shown} at once"]


class Budgets(Part):
    """Budgets of API keys and groups, and how many calls a key may have in flight."""

    name = "budgets"
    code: ClassVar[Mapping[str, str]] = {
        "parse_settings": "settings:parse_settings",
        "open": "runtime:BudgetsRuntime",
        "routes": "admin:ROUTES",
        "schemas": "admin:SCHEMAS",
        "tables": "ledger:TABLES",
    }
    setting_keys = ("budgets", "budgetsFail")
    setting_prefixes = ("budg",)
    table_file = "budgets.sqlite"
    commands: ClassVar[Mapping[str, Command]] = {
        "keys budgets": Command(
            "Show budgets and what is left of them.", "toolway.parts.budgets.cli:budgets", after="keys"
        )
    }
    former_commands: ClassVar[Mapping[str, str]] = {"budgets": "keys budgets"}
    key_attributes: ClassVar[Mapping[str, KeyAttribute]] = {"budgets": _Budgets(), "concurrent": _Concurrent()}
