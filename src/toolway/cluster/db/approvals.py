"""Store, in the cluster database, of calls that wait for the approval of an operator, and of the answers.

Every change locks the state row of the tenant first. So if two nodes use one approval at once, only one of them gets
it. A row that was changed, removed or put back without the key is refused (`integrity.py`): then no call is approved.

Used answers of clients (`SpentAnswerRow`) are not protected in this way. A person who can delete rows in the database
can replay an answer that a client itself gave.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from msgspec.structs import replace
from sqlalchemy import Row, and_, delete, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from toolway.cluster.db.engine import insert_if_absent, upsert, with_autocommit, with_snapshot
from toolway.cluster.db.integrity import Integrity, StateRefused, TenantState
from toolway.cluster.db.tables import ApprovalRow, SpentAnswerRow
from toolway.gateway.approvals.records import (
    APPROVAL_LIFETIME_S,
    MAX_SPENT,
    ApprovalRequest,
    ClaimOutcome,
    RequestSealer,
    StoreError,
    decide_claim,
)

T = TypeVar("T")
_log = logging.getLogger("toolway.cluster")
_HEAD = (ApprovalRow.id, ApprovalRow.key, ApprovalRow.state, ApprovalRow.caller, ApprovalRow.until, ApprovalRow.mac)


class DbApprovalStore:
    """Store of requests to approve calls, in the database of a cluster (`ApprovalStore`). `now` returns wall time."""

    def __init__(
        self,
        engine: AsyncEngine,
        tenant: str,
        integrity: Integrity,
        sealer: RequestSealer,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._autocommit = with_autocommit(engine)
        self._snapshot_engine = with_snapshot(engine)
        self._tenant = tenant
        self._integrity = integrity
        self._sealer = sealer
        self._now = now

    async def close(self) -> None:
        """Do nothing: the node closes the database."""

    async def claim(self, request: ApprovalRequest) -> ClaimOutcome:
        async def change(change: _Change) -> ClaimOutcome:
            expired = await change.remove_expired(self._now())
            heads = change.heads.values()
            known = [await change.read(each) for each in heads if each.key == request.key]
            pending = [each.caller for each in heads if each.state == "pending"]
            outcome = decide_claim(known, request, len(pending), pending.count(request.caller))
            if outcome.outcome in ("used", "asked"):
                await change.write(outcome.request)
            return outcome._replace(expired=expired)

        return await self._change(change)

    async def decide(
        self, id: str, state: Literal["approved", "denied"], who: str, reason: str
    ) -> ApprovalRequest | None:
        async def change(change: _Change) -> ApprovalRequest | None:
            head, now = change.heads.get(id), self._now()
            if head is None or head.state != "pending" or head.until <= now:
                return None
            found = await change.read(head)
            decided = replace(found, state=state, who=who, reason=reason, until=now + APPROVAL_LIFETIME_S)
            await change.write(decided)
            return decided

        return await self._change(change)

    async def spend(self, nonce: str) -> bool:
        async def work() -> bool:
            async with self._autocommit.begin() as db:
                await db.execute(delete(SpentAnswerRow).where(SpentAnswerRow.until < self._now()))
                ours = select(func.count()).select_from(SpentAnswerRow).where(SpentAnswerRow.tenant == self._tenant)
                if (await db.execute(ours)).scalar_one() >= MAX_SPENT:
                    return False
                until = self._now() + 2 * APPROVAL_LIFETIME_S
                row = {"tenant": self._tenant, "id": nonce, "until": until}
                return await insert_if_absent(db, SpentAnswerRow, row)

        return await _reporting(work())

    async def load(self) -> list[ApprovalRequest]:
        async def work() -> list[ApprovalRequest]:
            newest = self._integrity.newest(self._tenant)
            async with self._snapshot_engine.connect() as db:
                state = await self._integrity.read_state(db, self._tenant, newest)
                rows = (await db.execute(select(ApprovalRow).where(ApprovalRow.tenant == self._tenant))).all()
                self._integrity.check(state, self._tenant, "approvals", map(self._mark, rows))
                found = [each for row in rows if row.until > self._now() if (each := self._try_open(row)) is not None]
            return sorted(found, key=lambda each: each.asked_at)

        return await _reporting(work())

    async def count_pending(self) -> int:
        async def work() -> int:
            waits = and_(ApprovalRow.state == "pending", ApprovalRow.until > self._now())
            query = select(func.count()).select_from(ApprovalRow).where(ApprovalRow.tenant == self._tenant, waits)
            async with self._autocommit.begin() as db:
                return int((await db.execute(query)).scalar_one())

        return await _reporting(work())

    # -- rows ---------------------------------------------------------------------------------------------------------

    async def _change(self, change: Callable[[_Change], Awaitable[T]]) -> T:
        """Run `change` on the rows of the store in one transaction, while the state row of the tenant is locked."""

        async def work() -> T:
            async with self._engine.begin() as db:
                state = await self._integrity.lock_state(db, self._tenant)
                query = select(*_HEAD).where(ApprovalRow.tenant == self._tenant)
                heads: Sequence[Row[Any]] = (await db.execute(query)).all()  # type: ignore[assignment]
                self._integrity.check(state, self._tenant, "approvals", map(self._mark, heads))
                under_way = _Change(self, db, {each.id: each for each in heads})
                result = await change(under_way)
                await under_way.finish(state)
                return result

        return await _reporting(work())

    def _mark(self, row: Row[Any]) -> int:
        return self._integrity.mark("approvals", self._tenant, row.id, row.mac)

    def _sign(self, *content: Any) -> str:
        return self._integrity.sign("approvals", self._tenant, *content)

    def _open(self, row: Row[Any]) -> ApprovalRequest:
        """Decrypt and check the approval request in a row. Raises `StoreError` if it was changed without the key."""
        is_signed = row.mac == self._sign(row.id, row.key, row.state, row.caller, row.until, row.sealed)
        found = self._sealer.open(row.sealed) if is_signed else None
        if found is None:
            raise StoreError(f"the request {row.id[:40]!r} was changed without the key of the cluster")
        return found

    def _try_open(self, row: Row[Any]) -> ApprovalRequest | None:
        """Return the request in a row; None, and a line in the log, if the row was changed without the key."""
        try:
            return self._open(row)
        except StoreError as exc:
            _log.error("E-APPROVAL-STORE: a request for approval is ignored: %s", exc)
            return None


class _Change:
    """One transaction that changes requests for approval. `heads` are their rows by id, without encrypted content."""

    def __init__(self, store: DbApprovalStore, db: AsyncConnection, heads: Mapping[str, Row[Any]]) -> None:
        self._store = store
        self._db = db
        self.heads = dict(heads)
        self._difference = 0  # of the marks
        self._is_changed = False

    async def read(self, head: Row[Any]) -> ApprovalRequest:
        query = select(ApprovalRow).where(ApprovalRow.tenant == self._store._tenant, ApprovalRow.id == head.id)
        return self._store._open((await self._db.execute(query)).one())

    async def _find(self, head: Row[Any]) -> ApprovalRequest | None:
        """Return the request of a head; None if its row was changed without the key."""
        query = select(ApprovalRow).where(ApprovalRow.tenant == self._store._tenant, ApprovalRow.id == head.id)
        return self._store._try_open((await self._db.execute(query)).one())

    async def write(self, request: ApprovalRequest) -> None:
        store, sealed = self._store, self._store._sealer.seal(request)
        content = (request.id, request.key, request.state, request.caller, request.until)
        mac = store._sign(*content, sealed)
        row = dict(zip(("id", "key", "state", "caller", "until"), content, strict=True))
        await upsert(self._db, ApprovalRow, {"tenant": store._tenant, **row, "sealed": sealed, "mac": mac})
        self._difference += store._integrity.mark("approvals", store._tenant, request.id, mac)
        if request.id in self.heads:
            self._difference -= store._mark(self.heads.pop(request.id))
        self._is_changed = True

    async def remove_expired(self, now: float) -> Sequence[ApprovalRequest]:
        """Remove expired requests for approval. Return those of them that no operator has answered."""
        over = [each for each in self.heads.values() if each.until <= now]
        pending = [await self._find(each) for each in over if each.state == "pending"]
        unanswered = [replace(each, state="expired") for each in pending if each is not None]
        for each in over:
            ours = and_(ApprovalRow.tenant == self._store._tenant, ApprovalRow.id == each.id)
            await self._db.execute(delete(ApprovalRow).where(ours))
            self._difference -= self._store._mark(self.heads.pop(each.id))
            self._is_changed = True
        return unanswered

    async def finish(self, state: TenantState) -> None:
        """Write the new integrity sums of the tenant (`integrity.py`), if rows were changed."""
        if self._is_changed:
            store = self._store
            await store._integrity.write_state(self._db, store._tenant, state.changed({"approvals": self._difference}))


async def _reporting(work: Awaitable[T]) -> T:
    try:
        return await work
    except (SQLAlchemyError, OSError, StateRefused) as exc:
        # The text of a database error may contain its address.
        detail = str(exc) if isinstance(exc, StateRefused) else type(exc).__name__
        raise StoreError(f"the database of the cluster: {detail}") from exc
