"""Take over a database: keep the rows that nodes wrote, delete all others. Only administrators do.

Each tenant gets a new state, so nodes that still run refuse the database.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sqlalchemy import delete, select, union, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from toolway.cluster.db.engine import db_now, upgrade_locked
from toolway.cluster.db.instances import DesiredInstances, apply_desired_instances
from toolway.cluster.db.integrity import Integrity, MarkedKind, TenantState
from toolway.cluster.db.tables import (
    ApiKeyRow,
    CredentialRow,
    IdempotencyRow,
    NodeRow,
    PinsRow,
    ServerRow,
    TenantRow,
    TenantStateRow,
    add_part_tables,
)
from toolway.cluster.db.tokens import DecryptionError, EnvelopeCipher, login_binding
from toolway.cluster.keys import derive_tenant_key
from toolway.errors import ConfigError
from toolway.gateway.sealing import Sealer
from toolway.part_api import registry

TakeoverAction: TypeAlias = Literal["keep", "delete"]


@dataclass(frozen=True, slots=True)
class TakenRow:
    """One row of the cluster database, and whether a takeover keeps or deletes it."""

    tenant: str
    kind: MarkedKind
    name: str
    action: TakeoverAction
    detail: str = ""


async def take_over(
    engine: AsyncEngine, cluster_key: bytes, confirmed: Sequence[TakenRow] | None = None
) -> Sequence[TakenRow]:
    """Plan the takeover of a database: return for each row whether it is kept or deleted.

    The plan runs only if `confirmed` is equal to it. Raises `ConfigError` if a node is running, or if the
    database has changed since the plan was confirmed, and SQLAlchemy errors.
    """
    async with engine.connect() as db:
        await upgrade_locked(db)
        await _require_stopped_nodes(db)
        found: list[TakenRow] = []
        for tenant in await _list_tenants(db):
            found += await _Takeover(db, tenant, cluster_key).run()
        if confirmed is None:
            await db.rollback()
        elif list(confirmed) != found:
            raise _takeover_error(
                "the database has changed since it was shown", "", "look again: toolway cluster trust"
            )
        else:
            await db.commit()
    return found


async def _require_stopped_nodes(db: AsyncConnection) -> None:
    running = (await db.execute(select(NodeRow.id).where(NodeRow.lease_until > db_now()))).scalars().all()
    if running:
        detail = ", ".join(running[:5])
        raise _takeover_error("nodes are running", detail, "stop all nodes of all tenants, then run this again")


async def _list_tenants(db: AsyncConnection) -> Sequence[str]:
    tables = (TenantRow, ServerRow, ApiKeyRow, CredentialRow, IdempotencyRow, PinsRow, TenantStateRow)
    return sorted((await db.execute(union(*(select(table.tenant) for table in tables)))).scalars())


def _takeover_error(message: str, detail: str, hint: str) -> ConfigError:
    return ConfigError(f"cluster database not taken over: {message}", detail=detail, hint=hint, code="E-RECORD-CHANGED")


class _Takeover:
    """Takes over the rows of one tenant."""

    def __init__(self, db: AsyncConnection, tenant: str, cluster_key: bytes) -> None:
        self._db = db
        self._tenant = tenant
        key = derive_tenant_key(cluster_key, tenant)
        self._integrity = Integrity(key)
        self._cipher = EnvelopeCipher(Sealer(key, time.time))
        self._sums: dict[MarkedKind, int] = {}

    async def run(self) -> list[TakenRow]:
        found = [*await self._settings(), *await self._servers(), *await self._keys(), *await self._logins()]
        found += await self._pins()
        await self._outcomes()
        for table in add_part_tables(registry.in_use()):
            if "mac" in table.c:  # signed rows of parts
                await self._db.execute(delete(table).where(table.c.tenant == self._tenant))
        state = TenantState().changed(self._sums)
        await self._integrity.write_state(self._db, self._tenant, state)
        return found

    def _add(self, kind: MarkedKind, id: str, content: str | int) -> None:
        self._sums[kind] = self._sums.get(kind, 0) + self._integrity.mark(kind, self._tenant, id, content)

    def _opens(self, sealed: object, *binding: str) -> bool:
        """Return True if a stored value can be decrypted with the tenant's key."""
        try:
            self._cipher.decrypt(sealed if isinstance(sealed, str) else "", *binding)
        except DecryptionError:
            return False
        return True

    async def _settings(self) -> list[TakenRow]:
        where = TenantRow.tenant == self._tenant
        sealed = (await self._db.execute(select(TenantRow.settings).where(where))).scalar_one_or_none()
        if not sealed:
            return []
        is_kept = self._opens(sealed, "settings", self._tenant)
        if is_kept:
            self._add("settings", "", sealed)
        else:
            await self._db.execute(update(TenantRow).where(where).values(settings=""))
        return [TakenRow(self._tenant, "settings", "", _action(is_kept))]

    async def _servers(self) -> list[TakenRow]:
        query = select(ServerRow).where(ServerRow.tenant == self._tenant).order_by(ServerRow.name)
        found = []
        for row in (await self._db.execute(query)).all():
            where = (ServerRow.tenant == self._tenant) & (ServerRow.name == row.name)
            sealed = row.definition.get("sealed") if isinstance(row.definition, dict) else None
            is_kept = self._opens(sealed, "server", self._tenant, row.name)
            if is_kept:
                self._add("servers", row.name, str(sealed))
            else:
                await apply_desired_instances(self._db, self._tenant, {row.name: DesiredInstances(count=0)})
                await self._db.execute(delete(ServerRow).where(where))
            found.append(TakenRow(self._tenant, "servers", row.name, _action(is_kept)))
        return found

    async def _keys(self) -> list[TakenRow]:
        query = select(ApiKeyRow).where(ApiKeyRow.tenant == self._tenant).order_by(ApiKeyRow.id)
        found = []
        for row in (await self._db.execute(query)).all():
            where = (ApiKeyRow.tenant == self._tenant) & (ApiKeyRow.id == row.id)
            content = (row.tenant, row.id, row.facts, row.revision, row.revoked_at is not None)
            is_kept = isinstance(row.facts, dict) and self._integrity.is_signed(row.mac, "api_keys", *content)
            if is_kept:
                self._add("keys", row.id, row.mac)
            else:
                await self._db.execute(delete(ApiKeyRow).where(where))
            found.append(TakenRow(self._tenant, "keys", row.id, _action(is_kept), _describe_key(row)))
        return found

    async def _logins(self) -> list[TakenRow]:
        query = select(CredentialRow).where(CredentialRow.tenant == self._tenant).order_by(CredentialRow.id)
        found = []
        for row in (await self._db.execute(query)).all():
            binding = login_binding(self._tenant, row.id, row.revision)
            is_kept = not row.sealed or self._opens(row.sealed, *binding)
            if not is_kept:
                where = (CredentialRow.tenant == self._tenant) & (CredentialRow.id == row.id)
                await self._db.execute(delete(CredentialRow).where(where))
            elif row.revision:
                self._add("logins", row.id, row.revision)
            if row.sealed:
                found.append(TakenRow(self._tenant, "logins", row.id[:12], _action(is_kept)))
        return found

    async def _pins(self) -> list[TakenRow]:
        """Keep validly signed pins (accepted server definitions), and delete the others.

        Return what was done with each row. A server without pins is pinned again by its next list.
        """
        query = select(PinsRow).where(PinsRow.tenant == self._tenant).order_by(PinsRow.server, PinsRow.identity)
        found = []
        for row in (await self._db.execute(query)).all():
            is_kept = self._integrity.is_signed(row.mac, "pins", row.tenant, row.server, row.identity, row.body)
            if is_kept:
                self._add("pins", f"{row.server} {row.identity}", row.mac)
            else:
                where = (PinsRow.tenant == self._tenant) & (PinsRow.server == row.server)
                await self._db.execute(delete(PinsRow).where(where, PinsRow.identity == row.identity))
            found.append(TakenRow(self._tenant, "pins", row.server, _action(is_kept)))
        return found

    async def _outcomes(self) -> None:
        """Mark the outcomes of keyed calls that cannot be decrypted as unknown."""
        query = select(IdempotencyRow).where(IdempotencyRow.tenant == self._tenant, IdempotencyRow.outcome.is_not(None))
        for row in (await self._db.execute(query)).all():
            if not self._opens((row.outcome or b"").decode("ascii", "replace"), "outcome", self._tenant, row.id):
                where = (IdempotencyRow.tenant == self._tenant) & (IdempotencyRow.id == row.id)
                await self._db.execute(update(IdempotencyRow).where(where).values(outcome=None, state="unknown"))


def _action(is_kept: bool) -> TakeoverAction:
    return "keep" if is_kept else "delete"


def _describe_key(row: Any) -> str:
    facts = row.facts if isinstance(row.facts, dict) else {}
    scope = "administrator" if facts.get("admin") else "revoked" if row.revoked_at is not None else "key"
    return f"{scope} {str(facts.get('name', ''))[:80]!r}"
