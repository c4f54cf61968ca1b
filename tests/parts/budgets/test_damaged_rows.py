"""One stored use of a budget that cannot be read: it concerns itself alone, and grants nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.test_damaged_rows import NOT_UTF8, damage
from toolway.part_api.database import SqliteDatabase
from toolway.parts.budgets import Budgets
from toolway.parts.budgets.ledger import BudgetAccount, LeaseRequest, StoredLedger
from toolway.parts.budgets.settings import CallBudget

pytestmark = [pytest.mark.anyio, pytest.mark.attack("A2-D2")]


def a_ledger(folder: Path) -> StoredLedger:
    return StoredLedger(SqliteDatabase(folder / "budgets", Budgets()))


@pytest.mark.parametrize("column", ["used", "period"])
@pytest.mark.parametrize("value", ["'x'", "x'00'", NOT_UTF8])
async def test_damaged_account_is_exhausted_and_affects_no_other(tmp_path: Path, column: str, value: str) -> None:
    accounts = [BudgetAccount(name, "*", CallBudget.parse("100/day")) for name in ("bad", "good")]
    requests = [LeaseRequest(each, 1) for each in accounts]
    ledger = a_ledger(tmp_path)
    assert [each.units for each in (await ledger.lease(requests)).values()] == [1, 1]
    await ledger.close()
    damage(tmp_path / "budgets", f"UPDATE budget_use SET {column} = {value} WHERE key = '{accounts[0].id}'")
    ledger = a_ledger(tmp_path)
    assert [each.units for each in (await ledger.lease(requests)).values()] == [0, 1]
    await ledger.close()
