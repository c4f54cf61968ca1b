"""Take over a database: sign its rows, or delete those that cannot be verified. Only an operator does so.

A database of an earlier version has no signatures. Its servers, settings and API keys are signed as they are: the
operator sees them first. Logins of an earlier version are deleted, as are all rows without a valid signature in a
database of this version. Each tenant gets a new state, so nodes that still run refuse the database.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from sqlalchemy import delete, select, union, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from toolway._lazy import dataclass
from toolway.cluster.db.engine import db_now, lock_schema, upgrade_unsigned
from toolway.cluster.db.instances import DesiredInstances, apply_desired_instances
from toolway.cluster.db.integrity import Integrity, MarkedKind, TenantState
from toolway.cluster.db.tables import (
    ApiKeyRow,
    ApprovalRow,
    CredentialRow,
    IdempotencyRow,
    NodeRow,
    PinsRow,
    ServerListsRow,
    ServerRow,
    TenantRow,
    TenantStateRow,
)
from toolway.cluster.db.tokens import DecryptionError, EnvelopeCipher, login_binding
from toolway.cluster.keys import derive_tenant_key
from toolway.errors import ConfigError
from toolway.gateway.sealing import Sealer

TakeoverAction: TypeAlias = Literal["keep", "sign", "delete"]


@dataclass(frozen=True, slots=True)
class TakenRow:
    """One row of the cluster database, and whether a takeover keeps, signs or deletes it."""

    tenant: str
    kind: MarkedKind
    name: str
    action: TakeoverAction
    detail: str = ""


async def take_over(
    engine: AsyncEngine, cluster_key: bytes, confirmed: Sequence[TakenRow] | None = None
) -> Sequence[TakenRow]:
    """Plan the takeover of a database: return for each row if it is kept, signed or deleted.

    The plan is executed only if `confirmed` is equal to it. Raises `ConfigError` if a node is running, or if the
    database has changed since the plan was confirmed, and SQLAlchemy errors.
    """
    async with engine.connect() as db:
        await lock_schema(db)
        is_unsigned = await upgrade_unsigned(db)
        await _require_stopped_nodes(db)
        found: list[TakenRow] = []
        for tenant in await _list_tenants(db):
            found += await _Takeover(db, tenant, cluster_key, is_unsigned).run()
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
    return ConfigError(f"cluster database not taken over: {message}", detail=detail, hint=hint, code="E-RECORD-OLD")


class _Takeover:
    """Takeover of the rows of one tenant. If `is_unsigned`, an earlier version without signatures wrote them."""

    def __init__(self, db: AsyncConnection, tenant: str, cluster_key: bytes, is_unsigned: bool) -> None:
        self._db = db
        self._tenant = tenant
        self._is_unsigned = is_unsigned
        key = derive_tenant_key(cluster_key, tenant)
        self._integrity = Integrity(key)
        self._new = EnvelopeCipher(Sealer(key, time.time))
        self._stored = EnvelopeCipher(Sealer(cluster_key if is_unsigned else key, time.time))
        self._sums: dict[MarkedKind, int] = {}

    async def run(self) -> list[TakenRow]:
        found = [*await self._settings(), *await self._servers(), *await self._keys(), *await self._logins()]
        found += await self._pins()
        await self._outcomes()
        await self._db.execute(delete(ApprovalRow).where(ApprovalRow.tenant == self._tenant))  # they are asked again
        if self._is_unsigned:
            await self._db.execute(delete(ServerListsRow).where(ServerListsRow.tenant == self._tenant))
        state = TenantState().changed(self._sums)
        await self._integrity.write_state(self._db, self._tenant, state)
        return found

    def _add(self, kind: MarkedKind, id: str, content: str | int) -> None:
        self._sums[kind] = self._sums.get(kind, 0) + self._integrity.mark(kind, self._tenant, id, content)

    def _reseal(self, sealed: object, *binding: str) -> str | None:
        """Return a stored value, encrypted again with the tenant's key if needed; None if it cannot be decrypted."""
        try:
            value = self._stored.decrypt(sealed if isinstance(sealed, str) else "", *binding)
        except DecryptionError:
            return None
        return self._new.encrypt(value, *binding) if self._is_unsigned else str(sealed)

    async def _settings(self) -> list[TakenRow]:
        where = TenantRow.tenant == self._tenant
        sealed = (await self._db.execute(select(TenantRow.settings).where(where))).scalar_one_or_none()
        if not sealed:
            return []
        kept = self._reseal(sealed, "settings", self._tenant)
        await self._db.execute(update(TenantRow).where(where).values(settings=kept or ""))
        if kept:
            self._add("settings", "", kept)
        return [TakenRow(self._tenant, "settings", "", self._action(kept is not None))]

    async def _servers(self) -> list[TakenRow]:
        query = select(ServerRow).where(ServerRow.tenant == self._tenant).order_by(ServerRow.name)
        found = []
        for row in (await self._db.execute(query)).all():
            where = (ServerRow.tenant == self._tenant) & (ServerRow.name == row.name)
            sealed = row.definition.get("sealed") if isinstance(row.definition, dict) else None
            kept = self._reseal(sealed, "server", self._tenant, row.name)
            if kept is None:
                await apply_desired_instances(self._db, self._tenant, {row.name: DesiredInstances(count=0)})
                await self._db.execute(delete(ServerRow).where(where))
            else:
                await self._db.execute(update(ServerRow).where(where).values(definition={"sealed": kept}))
                self._add("servers", row.name, kept)
            found.append(TakenRow(self._tenant, "servers", row.name, self._action(kept is not None)))
        return found

    async def _keys(self) -> list[TakenRow]:
        query = select(ApiKeyRow).where(ApiKeyRow.tenant == self._tenant).order_by(ApiKeyRow.id)
        found = []
        for row in (await self._db.execute(query)).all():
            where = (ApiKeyRow.tenant == self._tenant) & (ApiKeyRow.id == row.id)
            content = (row.tenant, row.id, row.facts, row.revision, row.revoked_at is not None)
            is_signed = self._integrity.is_signed(row.mac, "api_keys", *content)
            is_kept = isinstance(row.facts, dict) and (self._is_unsigned or is_signed)
            if is_kept:
                mac = self._integrity.sign("api_keys", *content)
                await self._db.execute(update(ApiKeyRow).where(where).values(mac=mac))
                self._add("keys", row.id, mac)
            else:
                await self._db.execute(delete(ApiKeyRow).where(where))
            found.append(TakenRow(self._tenant, "keys", row.id, self._action(is_kept), _describe_key(row)))
        return found

    async def _logins(self) -> list[TakenRow]:
        query = select(CredentialRow).where(CredentialRow.tenant == self._tenant).order_by(CredentialRow.id)
        found = []
        for row in (await self._db.execute(query)).all():
            binding = login_binding(self._tenant, row.id, row.revision)
            is_kept = not self._is_unsigned and bool(not row.sealed or self._reseal(row.sealed, *binding))
            if not is_kept:
                where = (CredentialRow.tenant == self._tenant) & (CredentialRow.id == row.id)
                await self._db.execute(delete(CredentialRow).where(where))
            elif row.revision:
                self._add("logins", row.id, row.revision)
            if row.sealed:
                found.append(TakenRow(self._tenant, "logins", row.id[:12], self._action(is_kept)))
        return found

    async def _pins(self) -> list[TakenRow]:
        """Keep the pins (accepted definitions of servers) with a valid signature, and delete all other pins.

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
            found.append(TakenRow(self._tenant, "pins", row.server, "keep" if is_kept else "delete"))
        return found

    async def _outcomes(self) -> None:
        """Encrypt the stored outcomes of calls with idempotency keys again, with the key of the tenant.

        An outcome that cannot be decrypted becomes unknown.
        """
        query = select(IdempotencyRow).where(IdempotencyRow.tenant == self._tenant, IdempotencyRow.outcome.is_not(None))
        for row in (await self._db.execute(query)).all():
            kept = self._reseal((row.outcome or b"").decode("ascii", "replace"), "outcome", self._tenant, row.id)
            values: dict[str, Any] = {"outcome": kept.encode()} if kept else {"outcome": None, "state": "unknown"}
            where = (IdempotencyRow.tenant == self._tenant) & (IdempotencyRow.id == row.id)
            await self._db.execute(update(IdempotencyRow).where(where).values(values))

    def _action(self, is_kept: bool) -> TakeoverAction:
        return "delete" if not is_kept else "sign" if self._is_unsigned else "keep"


def _describe_key(row: Any) -> str:
    facts = row.facts if isinstance(row.facts, dict) else {}
    scope = "administrator" if facts.get("admin") else "revoked" if row.revoked_at is not None else "key"
    return f"{scope} {str(facts.get('name', ''))[:80]!r}"
