"""One budget that several nodes spend, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.db.part_database import ClusterDatabase
from toolway.parts.budgets.call_budgets import BudgetExceeded, CallBudgets, LedgerUnavailable
from toolway.parts.budgets.ledger import BudgetAccount, BudgetLease, LeaseRequest, StoredLedger
from toolway.parts.budgets.settings import CallBudget

pytestmark = pytest.mark.anyio


class DbLedger(StoredLedger):
    def __init__(self, engine: AsyncEngine, tenant: str) -> None:
        super().__init__(ClusterDatabase(engine, tenant))


ACCOUNT = BudgetAccount("group eng", "*", CallBudget.parse("2000/month"))


async def test_three_nodes_spend_one_budget_and_no_more(engine: AsyncEngine) -> None:
    nodes = [CallBudgets(DbLedger(engine, "t")) for _ in range(3)]
    other = DbLedger(engine, "another")

    async def call(node: CallBudgets) -> int:
        made = 0
        for _ in range(250):
            try:
                await node.take([ACCOUNT])
            except BudgetExceeded:
                break
            made += 1
            await asyncio.sleep(0)
        return made

    made = sum(await asyncio.gather(*(call(node) for node in nodes for _ in range(4))))
    assert 0.9 * 2000 <= made <= 2000  # a node that is given no processor holds its units in the meantime
    for node in nodes:
        await node.close()
    assert (await DbLedger(engine, "t").lease([LeaseRequest(ACCOUNT, 0)]))[ACCOUNT.id].used == made
    assert (await other.lease([LeaseRequest(ACCOUNT, 5)]))[ACCOUNT.id].units == 5  # of another tenant


async def test_new_period_starts_unused(engine: AsyncEngine) -> None:
    ledger = DbLedger(engine, "t")
    first = (await ledger.lease([LeaseRequest(ACCOUNT, 100, 1900)]))[ACCOUNT.id]
    assert (first.used, first.units) == (1912, 12)
    async with engine.begin() as db:
        await db.execute(text("UPDATE budget_use SET period = :period"), {"period": first.period - 86_400})
    assert (await ledger.lease([LeaseRequest(ACCOUNT, 8)]))[ACCOUNT.id].used == 8
    async with engine.begin() as db:
        assert (await db.execute(text("SELECT used FROM budget_use"))).scalar_one() == 8


class _Lost(DbLedger):
    lost = False

    async def lease(self, requests: Sequence[LeaseRequest]) -> Mapping[str, BudgetLease]:
        if self.lost:
            raise ConnectionError("no database")
        return await super().lease(requests)


async def test_lost_database_rejects_calls_after_the_lease(engine: AsyncEngine) -> None:
    ledger = _Lost(engine, "t")
    node = CallBudgets(ledger)
    await node.take([ACCOUNT])
    ledger.lost = True
    made = 0
    with pytest.raises(LedgerUnavailable):
        while True:
            await node.take([ACCOUNT])
            made += 1
    assert 0 < made < 250
    ledger.lost = False
    await node.close()
