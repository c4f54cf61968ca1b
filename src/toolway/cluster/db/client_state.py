"""Client state shared by all nodes of a tenant: API keys, legacy sessions, rate-limit buckets."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import Row, bindparam, delete, insert, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from toolway.cluster.db.changes import record_change
from toolway.cluster.db.engine import db_now, insert_if_absent, with_snapshot
from toolway.cluster.db.integrity import Integrity
from toolway.cluster.db.tables import ApiKeyRow, RateBucketRow, SessionRow
from toolway.types import Json

API_KEYS_CHANGE: Final = "keys"
KEEP_REVOKED_S: Final = 86_400.0  # seconds
EXPIRED_PER_WRITE: Final = 100  # expired rows that are deleted with each write
MAX_DEBT_BUCKETS: Final = 10.0  # maximum debt, in full buckets
KEEP_BUCKETS_S: Final = 12 * 86_400.0  # seconds; the slowest bucket fills in a day, and owes ten at most


# -- API keys ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TenantKeys:
    """All valid and revoked API keys of a tenant."""

    valid: Sequence[Json]  # the attributes of each, oldest first
    revoked: frozenset[str]  # ids


class ApiKeyTable:
    """Store of API keys in the database. Methods raise SQLAlchemy errors and `StateRefused`.

    The gateway defines their attributes; this class stores and signs them. Rows without a valid signature grant
    nothing; neither do old rows that were restored (`integrity.py`). A revoked key is remembered for a day, so a node
    with a delayed update finds it among the revoked keys.
    """

    def __init__(self, engine: AsyncEngine, integrity: Integrity) -> None:
        self._engine = engine
        self._snapshot_engine = with_snapshot(engine)
        self._integrity = integrity

    async def load_all(self, tenant: str) -> TenantKeys:
        query = select(ApiKeyRow).where(ApiKeyRow.tenant == tenant).order_by(ApiKeyRow.revision)
        newest = self._integrity.newest(tenant)
        async with self._snapshot_engine.connect() as db:
            state = await self._integrity.read_state(db, tenant, newest)
            rows = (await db.execute(query)).all()
        signed = [row for row in rows if self._is_signed(row)]
        ids = {row.id for row in signed}
        self._integrity.report("api_keys", [row.id for row in rows if row.id not in ids])
        self._integrity.check(state, tenant, "keys", [self._mark(row) for row in signed])
        revoked = frozenset(row.id for row in signed if row.revoked_at is not None)
        return TenantKeys([row.facts for row in signed if row.id not in revoked], revoked)

    async def add(self, tenant: str, id: str, attributes: Json) -> int:
        """Store an API key. Return the revision of the change.

        Raises `IntegrityError` if an API key with this id exists or was revoked.
        """
        async with self._engine.begin() as db:
            state = await self._integrity.lock_state(db, tenant)
            revision = await record_change(db, API_KEYS_CHANGE, tenant)
            mac = self._sign(tenant, id, attributes, revision, revoked=False)
            row = {"tenant": tenant, "id": id, "facts": attributes, "revision": revision, "mac": mac}
            await db.execute(insert(ApiKeyRow).values(row))
            added = self._integrity.mark("keys", tenant, id, mac)
            await self._integrity.write_state(db, tenant, state.changed({"keys": added}))
            return revision

    async def revoke(self, tenant: str, id: str) -> bool:
        """Revoke an API key. Return False if no valid API key has this id."""
        is_key = (ApiKeyRow.tenant == tenant) & (ApiKeyRow.id == id)
        async with self._engine.begin() as db:
            query = select(ApiKeyRow).where(is_key, ApiKeyRow.revoked_at.is_(None)).with_for_update()
            row = (await db.execute(query)).one_or_none()
            if row is None or not self._is_signed(row):
                return False
            is_old = ApiKeyRow.revoked_at < db_now() - KEEP_REVOKED_S
            columns = ApiKeyRow.__table__.columns
            deletion = delete(ApiKeyRow).where(ApiKeyRow.tenant == tenant, is_old).returning(*columns)
            deleted = [old for old in (await db.execute(deletion)).all() if self._is_signed(old)]
            state = await self._integrity.lock_state(db, tenant)
            revision = await record_change(db, API_KEYS_CHANGE, tenant)
            mac = self._sign(tenant, id, row.facts, revision, revoked=True)
            values = {"revoked_at": db_now(), "revision": revision, "mac": mac}
            await db.execute(update(ApiKeyRow).where(is_key).values(values))
            added = self._integrity.mark("keys", tenant, id, mac)
            removed = sum(map(self._mark, [row, *deleted]))
            await self._integrity.write_state(db, tenant, state.changed({"keys": added - removed}))
            return True

    def _sign(self, tenant: str, id: str, attributes: Json, revision: int, *, revoked: bool) -> str:
        return self._integrity.sign("api_keys", tenant, id, attributes, revision, revoked)

    def _is_signed(self, row: Row[Any]) -> bool:
        content = (row.tenant, row.id, row.facts, row.revision, row.revoked_at is not None)
        return self._integrity.is_signed(row.mac, "api_keys", *content)

    def _mark(self, row: Row[Any]) -> int:
        return self._integrity.mark("keys", row.tenant, row.id, row.mac)


# -- legacy sessions --------------------------------------------------------------------------------------------------


class SessionState(msgspec.Struct, frozen=True):
    """Log level, subscribed URIs and end of a legacy client session, as stored for all nodes.

    Fields are only ever added: nodes of two versions run side by side.
    """

    level: str | None = None
    uris: tuple[str, ...] = ()
    ended: bool = False


class SessionStateStore:
    """Stores the state that legacy clients set in their sessions.

    Methods raise SQLAlchemy errors.

    Most sessions set nothing and have no row. Rows are found by a digest, because the session id is a secret of the
    client.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def load_many(self, tenant: str, ids: Collection[str]) -> Mapping[str, SessionState]:
        """Return the stored state of these sessions, by session id; sessions without a row are left out.

        Call this with hundreds of ids, not thousands.
        """
        query = select(SessionRow.id, SessionRow.facts).where(SessionRow.tenant == tenant, SessionRow.id.in_(ids))
        async with self._engine.connect() as db:
            return {row.id: _to_session_state(row.facts) for row in await db.execute(query)}

    async def list_ids(self, tenant: str, prefix: str) -> Sequence[str]:
        """Return the ids of unexpired stored sessions that start with `prefix`, at most 10,000."""
        is_wanted = SessionRow.id.startswith(prefix, autoescape=True) & (SessionRow.until > db_now())
        query = select(SessionRow.id).where(SessionRow.tenant == tenant, is_wanted).limit(10_000)
        async with self._engine.connect() as db:
            return list((await db.execute(query)).scalars())

    async def update(
        self, tenant: str, id: str, modify: Callable[[SessionState], SessionState], ttl: float
    ) -> SessionState:
        """Update a session's state with `modify`, under a row lock. Return the new state.

        The row expires after `ttl` seconds.
        """
        is_session = (SessionRow.tenant == tenant) & (SessionRow.id == id)
        until = db_now() + ttl
        async with self._engine.begin() as db:
            await insert_if_absent(db, SessionRow, {"tenant": tenant, "id": id, "facts": {}, "until": until})
            before = (await db.execute(select(SessionRow.facts).where(is_session).with_for_update())).scalar_one()
            state = modify(_to_session_state(before))
            fields: dict[str, Any] = {**(before if isinstance(before, dict) else {}), **msgspec.to_builtins(state)}
            await db.execute(update(SessionRow).where(is_session).values(facts=fields, until=until))
            expired = select(SessionRow.id).where(SessionRow.tenant == tenant, SessionRow.until < db_now())
            is_expired = (SessionRow.tenant == tenant) & SessionRow.id.in_(
                expired.limit(EXPIRED_PER_WRITE).scalar_subquery()
            )
            await db.execute(delete(SessionRow).where(is_expired))
        return state


def _to_session_state(fields: Any) -> SessionState:
    """Return the stored state of a session. An unreadable session counts as ended."""
    try:
        return msgspec.convert(fields, SessionState)
    except msgspec.ValidationError:
        return SessionState(ended=True)


# -- rate-limit buckets -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RateRequest:
    """One node's request for an API key's rate-limit tokens, with a debit for calls already made."""

    key: str
    capacity: int  # tokens of a full bucket
    tokens_per_s: float  # refill in tokens per second
    debit: float  # tokens already spent; negative = returned
    requested: int


@dataclass(frozen=True, slots=True)
class RateGrant:
    """Rate-limit tokens granted to a node, or the wait until the next one."""

    tokens: int
    wait_s: float  # seconds until the next token, if none was granted


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Locked row of a rate-limit bucket, with the database time of the statement that read it."""

    tokens: float
    at: float
    now: float


class RateBuckets:
    """Stores the rate-limit buckets of API keys, shared by all nodes.

    Raises SQLAlchemy errors.

    Buckets refill by the database clock. A bucket without a row is full. Commits do not wait for the disk: a crash of
    the database may lose the last moments.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def acquire(self, tenant: str, requests: Sequence[RateRequest]) -> Mapping[str, RateGrant]:
        """Debit the buckets of several API keys and grant tokens, in one transaction.

        `requests` has at most one request per API key; the result maps API keys to grants.
        """
        ordered = sorted(requests, key=lambda each: each.key)  # one lock order for all nodes
        async with self._engine.begin() as db:
            rows = await _lock_buckets(db, tenant, ordered)
            grants, changed = {}, []
            for each in ordered:
                row = rows[each.key]
                left = _current_tokens(row, each)
                grants[each.key], remaining = _grant_tokens(left, each)
                changed.append(
                    {"row_tenant": tenant, "row_key": each.key, "new_tokens": remaining, "new_at": max(row.at, row.now)}
                )
            is_bucket = (RateBucketRow.tenant == bindparam("row_tenant")) & (RateBucketRow.key == bindparam("row_key"))
            write = (
                update(RateBucketRow).where(is_bucket).values(tokens=bindparam("new_tokens"), at=bindparam("new_at"))
            )
            await db.execute(write, changed)
            return grants

    async def delete_unused(self, tenant: str) -> None:
        """Delete buckets that were not used for days: they are full, just like missing ones."""
        async with self._engine.begin() as db:
            is_old = RateBucketRow.at < db_now() - KEEP_BUCKETS_S
            await db.execute(delete(RateBucketRow).where(RateBucketRow.tenant == tenant, is_old))


async def _lock_buckets(db: AsyncConnection, tenant: str, requests: Sequence[RateRequest]) -> dict[str, _Bucket]:
    """Lock the rate-limit buckets of these API keys until the transaction ends. Missing ones are created full."""
    if db.dialect.name == "postgresql":
        await db.execute(text("SET LOCAL synchronous_commit = off"))
    dialect_insert = sqlite.insert if db.dialect.name == "sqlite" else postgresql.insert
    full = [{"tenant": tenant, "key": each.key, "tokens": float(each.capacity), "at": 0.0} for each in requests]
    await db.execute(dialect_insert(RateBucketRow).on_conflict_do_nothing(), full)
    is_requested = (RateBucketRow.tenant == tenant) & RateBucketRow.key.in_([each.key for each in requests])
    found = await db.execute(
        select(RateBucketRow.key, RateBucketRow.tokens, RateBucketRow.at, db_now().label("now"))
        .where(is_requested)
        .order_by(RateBucketRow.key)
        .with_for_update()
    )
    return {row.key: _Bucket(row.tokens, row.at, row.now) for row in found}


def _current_tokens(row: _Bucket, request: RateRequest) -> float:
    """Return the tokens in a rate-limit bucket now, with those gained since its last change.

    The time of this statement can be earlier than the last change's, if it waited for a lock: then nothing is gained.
    """
    gained = max(0.0, row.now - row.at) * request.tokens_per_s
    return min(float(request.capacity), row.tokens + gained)


def _grant_tokens(left: float, request: RateRequest) -> tuple[RateGrant, float]:
    left = min(max(left - request.debit, -MAX_DEBT_BUCKETS * request.capacity), float(request.capacity))
    tokens = max(0, min(request.requested, math.floor(left)))
    wait = (1.0 - left) / request.tokens_per_s if tokens == 0 else 0.0
    return RateGrant(tokens, max(0.0, wait)), left - tokens
