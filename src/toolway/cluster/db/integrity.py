"""Proof that database rows were written by a node, and that none was changed, removed or restored.

Rows that grant or direct something (API keys, nodes, tool lists) carry a MAC of their content. Rows without a valid
one are ignored and reported.

A valid row can still be an old one. So each tenant has one sealed `TenantState`: for every kind of row (servers,
settings, API keys, logins, pins, each signed table of a part) the sum of the marks of all rows. A mark is a keyed
hash of a row's name and content. Every change updates the sums and increments the state's counter, in the same
transaction. A node that loads the rows adds up their marks: if a row was changed, removed or restored, the sum
differs, and the node rejects what it loaded. An attacker could still restore a tenant's complete old state. A running
node notices that by the counter. From then on it only accepts the newest state it has seen and its successors.

The sums are encrypted, so nobody can search for other valid rows with the same sum.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from toolway.cluster.db.engine import insert_if_absent, upsert
from toolway.cluster.db.tables import TenantStateRow
from toolway.cluster.keys import derive_key
from toolway.errors import ConfigError
from toolway.gateway.sealing import Sealer

MarkedKind: TypeAlias = Literal["servers", "settings", "keys", "logins", "pins"] | str  # or the name of a table

NO_EXPIRY_S: Final = 100 * 366 * 86_400.0  # seconds
MAX_FINDINGS: Final = 100  # reported rows of one table
_MODULUS: Final = 1 << 256
log = logging.getLogger("toolway.cluster")
_WRONG_KEY: Final = "it was written with another key, or changed"


@dataclass(frozen=True, slots=True)
class TenantState:
    """Expected sums of the marks (keyed hashes) of a tenant's rows, and a counter of changes."""

    lineage: str = ""  # random, new if the database was set up or taken over; "" = nothing was written yet
    count: int = 0  # number of changes
    sums: Mapping[MarkedKind, int] = field(default_factory=dict)  # sum of the marks of all rows, by kind

    def changed(self, changes: Mapping[MarkedKind, int]) -> TenantState:
        """Return the state after a write: `changes` added to the sums, and the counter incremented.

        `changes` are the marks of written rows minus those of removed rows.
        """
        sums = {**self.sums}
        for kind, difference in changes.items():
            sums[kind] = (sums.get(kind, 0) + difference) % _MODULUS
        return TenantState(self.lineage or secrets.token_hex(8), self.count + 1, sums)


class Integrity:
    """Signs and verifies rows with a tenant's key, and remembers the newest state it has seen.

    Each process has one, so no part of it accepts an older state than another part has seen. `on_finding` gets each
    new finding; `on_resolved` is called when the last one ended.
    """

    def __init__(self, tenant_key: bytes, on_finding: Callable[[str], None] | None = None) -> None:
        self._mac_key = derive_key(tenant_key, "row mac")
        self._mark_key = derive_key(tenant_key, "row mark")
        self._sealer = Sealer(derive_key(tenant_key, "tenant state"), time.time)
        self._newest: dict[str, TenantState] = {}  # by tenant
        self._put_back: set[str] = set()  # tenants with an older state than one seen before
        self._findings: dict[str, dict[str, str]] = {}  # by table and row
        self.on_finding = on_finding
        self.on_resolved: Callable[[], None] | None = None

    # -- rows ---------------------------------------------------------------------------------------------------------

    def sign(self, table: str, *content: Any) -> str:
        """Return the MAC of a row. `content` is the identity of the row, and all its fields on which nodes act."""
        return hmac.digest(self._mac_key, _encode(table, content), "sha256").hex()

    def is_signed(self, mac: object, table: str, *content: Any) -> bool:
        """Return True if `mac` is a row's MAC. Rows with values that no node can have written never match."""
        try:
            signature = self.sign(table, *content)
        except (ValueError, OverflowError, RecursionError):
            return False
        return isinstance(mac, str) and hmac.compare_digest(mac.encode(), signature.encode())

    def mark(self, kind: MarkedKind, tenant: str, id: str, content: str | int) -> int:
        """Return the mark of a row: a keyed hash of its name and content, as a number."""
        return int.from_bytes(hmac.digest(self._mark_key, _encode(kind, (tenant, id, content)), "sha256"))

    # -- state of a tenant --------------------------------------------------------------------------------------------

    def newest(self, tenant: str) -> TenantState | None:
        """Return the newest state (row sums) of a tenant that this process has seen, or None.

        Call this before a query and pass the result on, to reject any older state.
        """
        return self._newest.get(tenant)

    async def read_state(self, db: AsyncConnection, tenant: str, newest: TenantState | None) -> TenantState:
        """Read a tenant's stored state (row sums), in the same transaction as the rows.

        Raises `StateRefused` if it is older than `newest`.
        """
        query = select(TenantStateRow.sealed).where(TenantStateRow.tenant == tenant)
        return self._open(tenant, (await db.execute(query)).scalar_one_or_none() or "", newest)

    async def lock_state(self, db: AsyncConnection, tenant: str) -> TenantState:
        """Lock a tenant's state (row sums) until the transaction ends.

        Call it after the large writes of the transaction, and before it takes its revision. Raises `StateRefused` if
        the stored state is not the newest.
        """
        newest = self.newest(tenant)
        await insert_if_absent(db, TenantStateRow, {"tenant": tenant, "sealed": ""})
        query = select(TenantStateRow.sealed).where(TenantStateRow.tenant == tenant).with_for_update()
        return self._open(tenant, (await db.execute(query)).scalar_one(), newest)

    async def write_state(self, db: AsyncConnection, tenant: str, state: TenantState) -> None:
        """Write a tenant's state (row sums) after a change, in the same transaction."""
        value = [state.lineage, state.count, {kind: f"{number:x}" for kind, number in state.sums.items()}]
        sealed = self._sealer.seal(_state_kind(tenant), value, NO_EXPIRY_S)
        await upsert(db, TenantStateRow, {"tenant": tenant, "sealed": sealed})

    def _open(self, tenant: str, sealed: str, newest: TenantState | None) -> TenantState:
        value: Any = self._sealer.open(_state_kind(tenant), sealed) if sealed else ["", 0, {}]
        if value is None:
            raise self._refused(tenant, "state", _WRONG_KEY)
        state = TenantState(value[0], value[1], {kind: int(number, 16) for kind, number in value[2].items()})
        if newest is not None and not self._follows(tenant, state, newest):
            detail = f"change {newest.count} was seen before, and the database is at change {state.count}"
            raise self._refused(tenant, "state", detail)
        if state.lineage and (newest is None or state.count > newest.count):
            self._newest[tenant] = state
        self.report("state", {})
        return state

    def _follows(self, tenant: str, state: TenantState, newest: TenantState) -> bool:
        """Return True if the stored state is `newest`, or one made from it.

        A node that starts after an old state was restored accepts it and counts up from there. So once an older state
        was seen, no later one is accepted until `newest` is back.
        """
        if state == newest:
            self._put_back.discard(tenant)
            return True
        if state.lineage != newest.lineage or state.count <= newest.count:
            self._put_back.add(tenant)
        return tenant not in self._put_back

    def check(self, state: TenantState, tenant: str, kind: MarkedKind, marks: Iterable[int]) -> None:
        """Raise `StateRefused` if the marks (keyed hashes) of this kind of row do not add up to the sum."""
        if not self.adds_up(state, kind, marks):
            raise self._refused(tenant, kind, "a row was changed, removed or put back without the key")
        self.report(f"tenants.{kind}", {})

    def adds_up(self, state: TenantState, kind: MarkedKind, marks: Iterable[int]) -> bool:
        return sum(marks) % _MODULUS == state.sums.get(kind, 0)

    def _refused(self, tenant: str, what: str, detail: str) -> StateRefused:
        self.report("state" if what == "state" else f"tenants.{what}", {tenant: detail})
        return StateRefused(tenant, what, detail)

    # -- findings -----------------------------------------------------------------------------------------------------

    def report(self, table: str, refused: Mapping[str, str] | Collection[str]) -> None:
        """Record which rows of a table are rejected now. New ones are logged and passed to `on_finding`."""
        reasons = refused if isinstance(refused, Mapping) else dict.fromkeys(refused, "no valid signature")
        before, self._findings[table] = self._findings.get(table, {}), dict(list(reasons.items())[:MAX_FINDINGS])
        for id, reason in self._findings[table].items():
            if before.get(id) != reason:
                finding = _describe(table, id, reason)
                log.error("cluster database: %s", finding)
                if self.on_finding is not None:
                    self.on_finding(finding)
        if before and self.on_resolved is not None and not any(self._findings.values()):
            self.on_resolved()

    def findings(self) -> list[str]:
        """Return one line for each database row or state that is rejected now."""
        return [_describe(table, id, reason) for table, rows in self._findings.items() for id, reason in rows.items()]


def _describe(table: str, id: str, reason: str) -> str:
    shown = "".join(char if char.isprintable() else "?" for char in id[:80])
    return f"{table} {shown!r} is refused: {reason}"


def _state_kind(tenant: str) -> str:
    return f"tenant state {tenant}"


def _encode(table: str, content: tuple[Any, ...]) -> bytes:
    return msgspec.json.encode([table, *content], order="deterministic")


class StateRefused(ConfigError):
    """Raised when a tenant's rows are not what its nodes wrote last, or have another key."""

    def __init__(self, tenant: str, what: str, detail: str) -> None:
        restore = "if you restored a backup, restart all nodes; otherwise see: toolway cluster trust --help"
        other_key = (
            "use the key of the other nodes: --cluster-key-file; after a change of the key: toolway cluster trust"
        )
        super().__init__(
            f"cluster database rejected: {what} of tenant {tenant} are not what was last written",
            detail=detail,
            hint=other_key if detail is _WRONG_KEY else restore,
            code="E-CLUSTER-KEY" if detail is _WRONG_KEY else "E-RECORD-CHANGED",
        )
