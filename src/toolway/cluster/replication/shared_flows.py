"""Data-flow labels of each caller's recent calls, in the database that all nodes of a tenant share."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.db.engine import insert_if_absent
from toolway.cluster.db.tables import FlowWindowRow
from toolway.config.call_rules.flow_labels import WINDOW_S, Window
from toolway.gateway.flows.store import Change, FlowStoreError, decode_window, decode_windows, encode_window


class DbFlowStore:
    """`FlowStore` in the cluster database: the data-flow labels (private, untrusted, sink) of each caller.

    A window has, for each label, the last call of the caller with that label. Methods raise `FlowStoreError`.
    """

    def __init__(self, engine: AsyncEngine, tenant: str) -> None:
        self._engine = engine
        self._tenant = tenant

    async def change(self, caller: str, change: Change, now: float) -> None:
        is_caller = (FlowWindowRow.tenant == self._tenant) & (FlowWindowRow.key == caller)
        try:
            async with self._engine.begin() as db:
                empty = {"tenant": self._tenant, "key": caller, "entries": "{}", "at": now}
                await insert_if_absent(db, FlowWindowRow, empty)
                query = select(FlowWindowRow.entries).where(is_caller).with_for_update()
                changed = change(decode_window((await db.execute(query)).scalar_one()))
                if changed is not None:
                    values = {"entries": encode_window(changed), "at": now}
                    await db.execute(update(FlowWindowRow).where(is_caller).values(values))
        except (SQLAlchemyError, OSError, TimeoutError) as exc:
            raise FlowStoreError(type(exc).__name__) from exc

    async def load(self, now: float) -> Mapping[str, Window]:
        is_current = (FlowWindowRow.tenant == self._tenant) & (FlowWindowRow.at > now - WINDOW_S)
        try:
            async with self._engine.begin() as db:
                is_old = (FlowWindowRow.tenant == self._tenant) & (FlowWindowRow.at < now - 2 * WINDOW_S)
                await db.execute(delete(FlowWindowRow).where(is_old))
                rows = (await db.execute(select(FlowWindowRow.key, FlowWindowRow.entries).where(is_current))).all()
        except (SQLAlchemyError, OSError, TimeoutError) as exc:
            raise FlowStoreError(type(exc).__name__) from exc
        return decode_windows((row.key, row.entries) for row in rows)

    async def remove(self, caller: str) -> bool:
        is_caller = (FlowWindowRow.tenant == self._tenant) & (FlowWindowRow.key == caller)
        try:
            async with self._engine.begin() as db:
                return (await db.execute(delete(FlowWindowRow).where(is_caller))).rowcount > 0
        except (SQLAlchemyError, OSError, TimeoutError) as exc:
            raise FlowStoreError(type(exc).__name__) from exc

    async def close(self) -> None:
        """Do nothing: the node closes the database engine."""
