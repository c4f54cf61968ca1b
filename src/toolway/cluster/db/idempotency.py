"""Idempotency keys in the database: a call with a key runs at most once in the cluster.

A call claims its key for a node, under the epoch of that node's lease. If the node loses the lease, the call is
interrupted: its outcome is unknown. A forwarded call is claimed by both nodes under its one call id. The owner node
claims last and makes the call; each node that learns the outcome writes it. So "unknown" and "interrupted" can become
"finished", but never the reverse, and nothing runs in between, unless the key is claimed again (`reclaim`).

If the reply to a claim is lost, the claim may exist although the call is not made. An outcome may be known while the
database is unavailable. Both are corrected when it is back, by `WriteRetryQueue`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final, cast

import msgspec
from sqlalchemy import ColumnElement, Double, Executable, Table, and_, bindparam, delete, exists, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from toolway.cluster.db.engine import db_now, with_autocommit
from toolway.cluster.db.tables import IdempotencyRow, NodeRow
from toolway.cluster.db.tokens import EnvelopeCipher
from toolway.cluster.node_auth import CallTokenSealer
from toolway.middleware.idempotency import IdempotencyKey, IdempotencyRecord
from toolway.types import Json

KEEP_KEYS_S: Final = 86_400.0  # seconds for which a finished key is kept
FOLLOW_TIMEOUT_S: Final = 30.0  # seconds to wait for a call that runs on another node
FOLLOW_INTERVALS_S: Final = (0.02, 0.05, 0.1, 0.25, 0.5)  # seconds between two polls of it; the last value repeats
CLEANUP_INTERVAL_S: Final = 60.0  # seconds between two cleanups of expired keys
CLEANUP_BATCH: Final = 500  # rows per cleanup
MAX_SEALED_BYTES: Final = 1_400_000  # of one result, encrypted: about 1 MB of JSON
MAX_QUEUED_WRITES: Final = 10_000  # queued writes
MAX_QUEUED_BYTES: Final = (
    64 * 1024 * 1024
)  # of the results in queued writes; beyond this, keys are written without them
WRITE_RETRY_INTERVALS_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)  # seconds between two attempts; the last value repeats
FINAL_WRITE_TIMEOUT_S: Final = 2.0  # seconds for the last attempt on close

#: Returns the node id and the epoch of its lease; None without a lease.
CurrentLease = Callable[[], tuple[str, int] | None]
log = logging.getLogger("toolway.cluster")


class DatabaseUnavailable(Exception):
    """Raised when the database does not respond, so an idempotency key cannot be claimed."""


class NoLease(Exception):
    """Raised when this node has no lease, so other nodes could not learn how its calls ended."""


@dataclass(slots=True)
class _Claim:
    """Records that a call on this node claimed an idempotency key."""

    call: str
    attempt: str = field(default_factory=lambda: secrets.token_hex(8))
    replaced: Json | None = None  # columns of the claim that this one replaced, if any: node, epoch and attempt, state


class DbIdempotencyStore:
    """`IdempotencyStore` in the cluster database: a call with one key runs once in the cluster.

    Outcomes are encrypted, because they contain server results. Claiming a key raises `NoLease`, `DecryptionError` or
    `DatabaseUnavailable`: then the call is not made.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        tenant: str,
        current_lease: CurrentLease,
        sealer: CallTokenSealer,
        *,
        keep: float = KEEP_KEYS_S,
        follow_timeout: float = FOLLOW_TIMEOUT_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._current_lease = current_lease
        self._envelopes = EnvelopeCipher(sealer)
        self._keep = keep
        self._follow_timeout = follow_timeout
        self._now = now
        self._last_cleanup = now()
        self._autocommit = with_autocommit(engine)  # for single statements
        self._claim_statement = _build_claim_statement(engine.dialect.name)
        self._retry_queue = WriteRetryQueue(engine)
        self._claims: dict[IdempotencyKey, _Claim] = {}  # of calls of this node

    async def close(self) -> None:
        """Write queued outcomes to the database. Call it before the engine is closed."""
        await self._retry_queue.close()

    # -- IdempotencyStore ---------------------------------------------------------------------------------------------

    async def claim(self, id: IdempotencyKey, fingerprint: str, call: str) -> IdempotencyRecord | None:
        return await self.claim_or_wait(id, fingerprint, call, lambda: None)

    async def claim_or_wait(
        self, id: IdempotencyKey, fingerprint: str, call: str, on_waiting: Callable[[], None]
    ) -> IdempotencyRecord | None:
        await self._delete_expired()
        give_up_at = self._now() + self._follow_timeout
        for polls in count():
            claim = _Claim(call)
            try:
                known = await self._try_claim(id, fingerprint, claim)
            except (SQLAlchemyError, OSError) as exc:  # its text names the database, which callers must not see
                raise DatabaseUnavailable(f"the database does not respond: {type(exc).__name__}") from exc
            if known is None:
                self._claims[id] = claim
                return None
            runs_elsewhere = known.state == "running" and known.fingerprint == fingerprint
            if not runs_elsewhere or self._now() >= give_up_at:
                return known
            on_waiting()
            await asyncio.sleep(FOLLOW_INTERVALS_S[min(polls, len(FOLLOW_INTERVALS_S) - 1)])
        raise AssertionError("unreachable")

    async def reclaim(self, id: IdempotencyKey, call: str) -> bool:
        claim = _Claim(call, replaced={"state": "interrupted"})
        try:
            async with self._autocommit.begin() as db:
                is_interrupted = and_(self._where_key(id), IdempotencyRow.state == "interrupted")
                values = {"state": "running", "until": db_now() + self._keep, **self._claimant(claim)}
                changed = await db.execute(update(IdempotencyRow).where(is_interrupted).values(values))
                is_claimed = changed.rowcount == 1
        except (SQLAlchemyError, OSError) as exc:
            self._retry_queue.add(self._undo_statement(id, claim), {})
            raise DatabaseUnavailable(f"the database does not respond: {type(exc).__name__}") from exc
        except BaseException:
            self._retry_queue.add(self._undo_statement(id, claim), {})
            raise
        if is_claimed:
            self._claims[id] = claim
        return is_claimed

    async def finish(self, id: IdempotencyKey, outcome: Json) -> None:
        sealed = self._envelopes.encrypt(outcome, "outcome", self._tenant, _key_digest(id)).encode()
        kept = sealed if len(sealed) <= MAX_SEALED_BYTES else None  # a repeated call learns that it ran
        await self._finish_claim(id, _FINISH_STATEMENT, {"sealed_outcome": kept})

    async def mark_unknown(self, id: IdempotencyKey) -> None:
        await self._finish_claim(id, _UNKNOWN_STATEMENT, {})

    async def release(self, id: IdempotencyKey) -> None:
        claim = self._claims.pop(id, None)
        if claim is not None:
            await self._write_or_queue(self._undo_statement(id, claim), {})

    # -- claiming -----------------------------------------------------------------------------------------------------

    def _undo_statement(self, id: IdempotencyKey, claim: _Claim) -> Executable:
        """Build the SQL statement that undoes the claim of an idempotency key, if the call was not made.

        A new claim is deleted. A replaced claim is restored: its node may be about to make the call, or a crash has
        interrupted it.
        """
        is_our_claim = and_(
            self._where_key(id), IdempotencyRow.attempt == claim.attempt, IdempotencyRow.state == "running"
        )
        if claim.replaced is None:
            return delete(IdempotencyRow).where(is_our_claim)
        return update(IdempotencyRow).where(is_our_claim).values(claim.replaced)

    async def _try_claim(self, id: IdempotencyKey, fingerprint: str, claim: _Claim) -> IdempotencyRecord | None:
        claimant = self._claimant(claim)
        row = {
            "tenant": self._tenant,
            "id": _key_digest(id),
            "fingerprint": fingerprint,
            "state": "running",
            **claimant,
        }
        try:
            async with self._autocommit.begin() as db:
                if (await db.execute(self._claim_statement, {**row, "keep": self._keep})).first() is not None:
                    return None
            async with self._engine.begin() as db:
                return await self._resolve_existing(db, id, row, claimant, claim)
        except BaseException:
            # The call is not made now, even if the database stored the claim. A new attempt of the same call has
            # another claim, which is not undone.
            self._retry_queue.add(self._undo_statement(id, claim), {})
            raise

    def _claimant(self, claim: _Claim) -> Json:
        """Return the columns of an idempotency key: the call, node and lease that claim it. Raises `NoLease`."""
        lease = self._current_lease()
        if lease is None:
            raise NoLease("this node has no cluster lease")
        return {"call": claim.call, "attempt": claim.attempt, "node": lease[0], "epoch": lease[1]}

    async def _resolve_existing(
        self, db: AsyncConnection, id: IdempotencyKey, row: Json, claimant: Json, claim: _Claim
    ) -> IdempotencyRecord | None:
        """Decide what happens to a new call whose idempotency key was claimed before.

        Return None if the new call takes the key over, otherwise the record of the earlier call. A separate statement
        locks the row before it is checked (see `InstanceStore.claim_many`).
        """
        await db.execute(select(IdempotencyRow.state).where(self._where_key(id)).with_for_update())
        expired = and_(IdempotencyRow.until < db_now(), IdempotencyRow.state != "running").label("over")
        query = select(IdempotencyRow, expired, _is_claimant_alive().label("alive")).where(self._where_key(id))
        found = (await db.execute(query)).one_or_none()
        if found is None:
            return IdempotencyRecord("running", row["fingerprint"])  # it was just released: the next poll decides
        if found.over:
            renewed = {**row, "outcome": None, "until": db_now() + self._keep}
            await db.execute(update(IdempotencyRow).where(self._where_key(id)).values(renewed))
            return None
        if found.state == "running" and claimant["call"] and found.call == claimant["call"]:
            # The last claimant of a forwarded call makes it: from now on its node decides the outcome.
            claim.replaced = {"attempt": found.attempt, "node": found.node, "epoch": found.epoch}
            await db.execute(update(IdempotencyRow).where(self._where_key(id)).values(claimant))
            return None
        if found.state == "running" and not found.alive:
            await db.execute(update(IdempotencyRow).where(self._where_key(id)).values(state="interrupted"))
            return IdempotencyRecord("interrupted", found.fingerprint)
        if found.outcome is None:
            return IdempotencyRecord(found.state, found.fingerprint)
        binding = ("outcome", self._tenant, found.id)
        return IdempotencyRecord(
            found.state, found.fingerprint, self._envelopes.decrypt(found.outcome.decode("ascii", "replace"), *binding)
        )

    # -- ending -------------------------------------------------------------------------------------------------------

    async def _finish_claim(self, id: IdempotencyKey, statement: Executable, values: Json) -> None:
        """Store the outcome of a call that this node made, under its idempotency key.

        Does nothing if another call has claimed the key since.
        """
        claim = self._claims.pop(id, None)
        if claim is not None:
            params = {"row_tenant": self._tenant, "row_id": _key_digest(id), "row_call": claim.call, "keep": self._keep}
            await self._write_or_queue(statement, {**params, **values})

    async def _write_or_queue(self, statement: Executable, values: Json) -> None:
        """Execute a write now; if that fails, queue it until the database is back.

        Raises SQLAlchemy errors if the queue is full.
        """
        try:
            async with self._autocommit.begin() as db:
                await db.execute(statement, values)
        except Exception:
            if not self._retry_queue.add(statement, values):
                raise
        except BaseException:
            self._retry_queue.add(statement, values)
            raise

    def _where_key(self, id: IdempotencyKey) -> ColumnElement[bool]:
        return and_(IdempotencyRow.tenant == self._tenant, IdempotencyRow.id == _key_digest(id))

    # -- what is over -------------------------------------------------------------------------------------------------

    async def _delete_expired(self) -> None:
        """Delete a batch of expired idempotency keys of any tenant, at most once per minute."""
        if self._now() - self._last_cleanup < CLEANUP_INTERVAL_S:
            return
        self._last_cleanup = self._now()
        try:
            async with self._engine.begin() as db:
                expired = and_(
                    IdempotencyRow.until < db_now(), or_(IdempotencyRow.state != "running", ~_is_claimant_alive())
                )
                query = (
                    select(IdempotencyRow.tenant, IdempotencyRow.id)
                    .where(expired)
                    .limit(CLEANUP_BATCH)
                    .with_for_update(skip_locked=True)
                )
                for row in (await db.execute(query)).all():
                    await db.execute(
                        delete(IdempotencyRow).where(IdempotencyRow.tenant == row.tenant, IdempotencyRow.id == row.id)
                    )
        except Exception as exc:  # the call does not depend on it
            log.warning("cannot delete expired idempotency keys: %s", type(exc).__name__)


# -- statements -------------------------------------------------------------------------------------------------------


# Statements of every call with a key, built once.
_TABLE: Final = cast(Table, IdempotencyRow.__table__)
_EXPIRES_AT: Final = db_now() + bindparam("keep", type_=Double())
_IS_OUR_CLAIM: Final = and_(
    _TABLE.c.tenant == bindparam("row_tenant"),
    _TABLE.c.id == bindparam("row_id"),
    _TABLE.c.call == bindparam("row_call"),
)
_FINISH_STATEMENT: Final = (
    update(_TABLE)
    .where(_IS_OUR_CLAIM, _TABLE.c.state != "finished")
    .values(state="finished", outcome=bindparam("sealed_outcome"), until=_EXPIRES_AT)
)
_UNKNOWN_STATEMENT: Final = (
    update(_TABLE).where(_IS_OUR_CLAIM, _TABLE.c.state == "running").values(state="unknown", until=_EXPIRES_AT)
)


def _build_claim_statement(dialect: str) -> Executable:
    """Build the INSERT that claims an idempotency key; it returns a row only if the key was free."""
    names = ("tenant", "id", "fingerprint", "state", "call", "attempt", "node", "epoch")
    row: Json = {name: bindparam(name) for name in names}
    dialect_insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
    return dialect_insert(_TABLE).values(**row, until=_EXPIRES_AT).on_conflict_do_nothing().returning(_TABLE.c.id)


def _is_claimant_alive() -> ColumnElement[bool]:
    """Build the SQL condition that the node which claimed the key still has the same lease."""
    return exists().where(
        NodeRow.id == IdempotencyRow.node, NodeRow.epoch == IdempotencyRow.epoch, NodeRow.lease_until > db_now()
    )


def _key_digest(id: IdempotencyKey) -> str:
    """Return the hash under which an idempotency key is stored; caller, server and tool are part of it.

    The key itself may be long or contain characters that the database rejects.
    """
    return hashlib.sha256(msgspec.json.encode([id.caller, id.server, id.name, id.key])).hexdigest()


# -- retries of failed writes -----------------------------------------------------------------------------------------


class WriteRetryQueue:
    """Bounded queue of failed database writes, retried in a background task until they succeed.

    Each write is one idempotent statement that stays valid later: its condition says whether it still applies."""

    def __init__(self, engine: AsyncEngine, max_queued: int = MAX_QUEUED_WRITES) -> None:
        self._engine = engine
        self._max_queued = max_queued
        self._queue: deque[tuple[Executable, Json]] = deque()
        self._queued_bytes = 0
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, statement: Executable, values: Json) -> bool:
        """Queue a database write for retries. Return False if the queue is full."""
        if len(self._queue) >= self._max_queued:
            return False
        if self._queued_bytes + _outcome_size(values) > MAX_QUEUED_BYTES:
            values = {**values, "sealed_outcome": None}
        self._queued_bytes += _outcome_size(values)
        self._queue.append((statement, values))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._on_task_done)
        return True

    async def close(self) -> None:
        """Write the queued outcomes for at most `FINAL_WRITE_TIMEOUT_S`; those not written by then are lost."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        try:
            async with asyncio.timeout(FINAL_WRITE_TIMEOUT_S):
                await self._write_all()
        except Exception as exc:
            log.warning("%d outcomes of calls were not written: %s", len(self._queue), type(exc).__name__)

    async def _run(self) -> None:
        failures = 0
        while self._queue:
            await asyncio.sleep(WRITE_RETRY_INTERVALS_S[min(failures, len(WRITE_RETRY_INTERVALS_S) - 1)])
            try:
                await self._write_all()
            except Exception as exc:
                if not failures:
                    log.warning("outcomes of calls are queued, database writes fail: %s", type(exc).__name__)
                failures += 1

    async def _write_all(self) -> None:
        while self._queue:
            async with self._engine.begin() as db:
                await db.execute(*self._queue[0])
            self._queued_bytes -= _outcome_size(self._queue.popleft()[1])

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._task = None


def _outcome_size(values: Json) -> int:
    return len(values.get("sealed_outcome") or b"")
