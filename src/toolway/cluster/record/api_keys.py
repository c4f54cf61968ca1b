"""The API keys of a tenant, for all its gateways. What a key may is the gateway's to say: here its facts are kept.

A key that was revoked stays known for a day, so that who hears of it late finds it among the revoked, and a copy of it
that comes back from somewhere opens nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.record.changes import bump
from toolway.cluster.record.clock import seconds_now
from toolway.cluster.record.tables import ApiKeyRow
from toolway.model import Json

KIND: Final = "keys"
REVOKED_KEPT: Final = 86_400.0  # seconds


@dataclass(frozen=True, slots=True)
class TenantKeys:
    """All keys of a tenant."""

    valid: Sequence[Json]  # the facts of each, oldest first
    revoked: frozenset[str]  # ids


class ApiKeys:
    """Raises what SQLAlchemy raises."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def all(self, tenant: str) -> TenantKeys:
        asked = select(ApiKeyRow).where(ApiKeyRow.tenant == tenant).order_by(ApiKeyRow.revision)
        async with self._engine.connect() as db:
            rows = (await db.execute(asked)).all()
        revoked = frozenset(row.id for row in rows if row.revoked_at is not None)
        return TenantKeys([row.facts for row in rows if row.id not in revoked], revoked)

    async def add(self, tenant: str, id: str, facts: Json) -> int:
        """The revision of the change. Raises `IntegrityError` where there is or was a key with this id."""
        async with self._engine.begin() as db:
            revision = await bump(db, KIND, tenant)
            await db.execute(insert(ApiKeyRow).values(tenant=tenant, id=id, facts=facts, revision=revision))
            return revision

    async def revoke(self, tenant: str, id: str) -> bool:
        """Whether there was such a key."""
        async with self._engine.begin() as db:
            ours = (ApiKeyRow.tenant == tenant) & (ApiKeyRow.id == id) & ApiKeyRow.revoked_at.is_(None)
            done = await db.execute(update(ApiKeyRow).where(ours).values(revoked_at=seconds_now()))
            if not done.rowcount:
                return False
            old = ApiKeyRow.revoked_at < seconds_now() - REVOKED_KEPT
            await db.execute(delete(ApiKeyRow).where(ApiKeyRow.tenant == tenant, old))
            await bump(db, KIND, tenant)
            return True
