"""Ledger in the cluster database of how much of each call budget was used; all nodes of a tenant share it.

Periods begin and end by the clock of the database. Units that a node leases are committed to disk before it spends
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.db.engine import db_now
from toolway.cluster.db.tables import BudgetUseRow
from toolway.cluster.queries import QueryRunner
from toolway.gateway.budgets.ledger import KEEP_USE_S, BudgetLease, LeaseRequest, StoredUse, decide_lease

QUERY_TIMEOUT_S: Final = 2.5  # seconds


class DbLedger:
    """Ledger of how much of each call budget of one tenant was used. Raises SQLAlchemy errors and `TimeoutError`."""

    def __init__(self, engine: AsyncEngine, tenant: str) -> None:
        self._engine = engine
        self._tenant = tenant
        self._run_query = QueryRunner(QUERY_TIMEOUT_S)
        self._is_cleaned = False

    async def lease(self, requests: Sequence[LeaseRequest]) -> Mapping[str, BudgetLease]:
        # A query that is late runs on. Units that it leases are then lost until the end of their period.
        return await self._run_query(self._lease(requests))

    async def close(self) -> None:
        """Wait for queries that still run. The database engine stays open: the node closes it."""
        await self._run_query.wait_pending()

    async def _lease(self, requests: Sequence[LeaseRequest]) -> Mapping[str, BudgetLease]:
        ordered = sorted(requests, key=lambda each: each.account.id)  # one lock order for all nodes
        ids = [each.account.id for each in ordered]
        is_ours = BudgetUseRow.tenant == self._tenant
        async with self._engine.begin() as db:
            dialect_insert = sqlite.insert if db.dialect.name == "sqlite" else postgresql.insert
            missing = [{"tenant": self._tenant, "key": id_, "period": 0, "used": 0} for id_ in ids]
            await db.execute(dialect_insert(BudgetUseRow).on_conflict_do_nothing(), missing)
            columns = (BudgetUseRow.key, BudgetUseRow.period, BudgetUseRow.used, db_now().label("now"))
            query = select(*columns).where(is_ours, BudgetUseRow.key.in_(ids)).order_by(BudgetUseRow.key)
            rows = {row.key: row for row in await db.execute(query.with_for_update())}
            leases, changed = {}, []
            for request in ordered:
                row = rows[request.account.id]
                stored = StoredUse(row.period, row.used)
                leases[row.key], use = decide_lease(stored, request, row.now)
                if use != stored:
                    changed.append({"row": row.key, "new_period": use.period, "new_used": use.used})
            if changed:
                write = update(BudgetUseRow).where(is_ours, BudgetUseRow.key == bindparam("row"))
                await db.execute(write.values(period=bindparam("new_period"), used=bindparam("new_used")), changed)
            if not self._is_cleaned:
                is_old = BudgetUseRow.period.between(1, db_now() - KEEP_USE_S)
                await db.execute(delete(BudgetUseRow).where(is_ours, is_old))
                self._is_cleaned = True
        return leases
