"""Idempotency keys in the record: a call with a key is executed at most once, at whichever node it is repeated.

A key is claimed by a call at a node, under the number of that node's tenure. Of what a node without a lease was doing
nobody knows the outcome. A call that is forwarded is claimed by both nodes under its one id, the owner last, who makes
it; whoever of the two learns the outcome writes it. What was unknown may become known that way, never the other way
round, and never is anything executed in between.

A claim whose answer is lost may stand in the record although the call is not made; an outcome may be known while the
record is away. Both are put right when it is back (`later.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final, cast

import msgspec
from sqlalchemy import ColumnElement, Double, Executable, Table, and_, bindparam, delete, exists, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from toolway.cluster.passes import Sealer
from toolway.cluster.record.clock import seconds_now
from toolway.cluster.record.engine import for_reading
from toolway.cluster.record.envelopes import Envelopes
from toolway.cluster.record.later import Later
from toolway.cluster.record.tables import ClaimRow, NodeRow
from toolway.model import Json
from toolway.resilience.keys import KeyId, Record

DAY: Final = 86_400.0
WAIT: Final = 30.0  # seconds for a call that runs at another node
PAUSES: Final = (0.02, 0.05, 0.1, 0.25, 0.5)  # seconds between two looks at it; the last one again and again
SWEEP: Final = 60.0  # seconds between two looks for what is over
SWEPT: Final = 500  # rows that are forgotten in one go

#: The node and the number of its tenure, while it has a lease.
Who = Callable[[], tuple[str, int] | None]
log = logging.getLogger("toolway.cluster")


class RecordAway(Exception):
    """The record does not answer."""


class NoLease(Exception):
    """This node has no lease, so others would not know what became of what it does."""


@dataclass(slots=True)
class _Claim:
    call: str
    attempt: str = field(default_factory=lambda: secrets.token_hex(8))
    before: Json | None = None  # of the claim that we joined, if we did


class RecordKeys:
    """A `KeyStore`. Outcomes are sealed: they are what servers answered. Raises `NoLease`, `Unsealable` and
    `RecordAway`: then the call is not made."""

    def __init__(
        self,
        engine: AsyncEngine,
        tenant: str,
        who: Who,
        sealer: Sealer,
        *,
        keep: float = DAY,
        wait: float = WAIT,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._who = who
        self._envelopes = Envelopes(sealer)
        self._keep = keep
        self._wait = wait
        self._now = now
        self._swept = now()
        self._single = for_reading(engine)  # for what is one statement
        self._claiming = _claiming(engine.dialect.name)
        self._later = Later(engine)
        self._running: dict[KeyId, _Claim] = {}  # by calls of this node

    async def close(self) -> None:
        """Before the way to the database ends."""
        await self._later.close()

    # -- as a store ---------------------------------------------------------------------------------------------------

    async def claim(self, id: KeyId, fingerprint: str, call: str) -> Record | None:
        return await self.claim_or_follow(id, fingerprint, call, lambda: None)

    async def claim_or_follow(
        self, id: KeyId, fingerprint: str, call: str, following: Callable[[], None]
    ) -> Record | None:
        await self._sweep()
        until = self._now() + self._wait
        for tried in count():
            claim = _Claim(call)
            try:
                known = await self._try(id, fingerprint, claim)
            except (SQLAlchemyError, OSError) as exc:  # what it says names the database, which is not for callers
                raise RecordAway(f"the record does not answer: {type(exc).__name__}") from exc
            if known is None:
                self._running[id] = claim
                return None
            runs_elsewhere = known.state == "running" and known.fingerprint == fingerprint
            if not runs_elsewhere or self._now() >= until:
                return known
            following()
            await asyncio.sleep(PAUSES[min(tried, len(PAUSES) - 1)])
        raise AssertionError("unreachable")

    async def finish(self, id: KeyId, outcome: Json) -> None:
        sealed = self._envelopes.seal(outcome, "outcome", self._tenant, _digest(id))
        await self._end(id, _FINISHED, {"found": sealed.encode()})

    async def mark_unknown(self, id: KeyId) -> None:
        await self._end(id, _UNKNOWN, {})

    async def release(self, id: KeyId) -> None:
        claim = self._running.pop(id, None)
        if claim is not None:
            await self._write(self._undo(id, claim), {})

    # -- claiming -----------------------------------------------------------------------------------------------------

    def _undo(self, id: KeyId, claim: _Claim) -> Executable:
        """Nothing was executed here. A claim of our own is over; one that we joined is again his who made it, and who
        may be about to make the call elsewhere."""
        ours = and_(self._is(id), ClaimRow.attempt == claim.attempt, ClaimRow.state == "running")
        if claim.before is None:
            return delete(ClaimRow).where(ours)
        return update(ClaimRow).where(ours).values(claim.before)

    async def _try(self, id: KeyId, fingerprint: str, claim: _Claim) -> Record | None:
        who = self._who()
        if who is None:
            raise NoLease("this node has no lease on the cluster now")
        ours = {"call": claim.call, "attempt": claim.attempt, "node": who[0], "epoch": who[1]}
        row = {"tenant": self._tenant, "id": _digest(id), "fingerprint": fingerprint, "state": "running", **ours}
        try:
            async with self._single.begin() as db:
                if (await db.execute(self._claiming, {**row, "keep": self._keep})).first() is not None:
                    return None
            async with self._engine.begin() as db:
                return await self._judge(db, id, row, ours, claim)
        except BaseException:
            # Whether or not the record took it, the call is not made now. Another try for the same call is another
            # claim, and stays.
            self._later.add(self._undo(id, claim), {})
            raise

    async def _judge(self, db: AsyncConnection, id: KeyId, row: Json, ours: Json, claim: _Claim) -> Record | None:
        """What the claim of another means for us. The row is locked before it is judged, by a statement of its own (see
        `places.take`)."""
        await db.execute(select(ClaimRow.state).where(self._is(id)).with_for_update())
        over = and_(ClaimRow.until < seconds_now(), ClaimRow.state != "running").label("over")
        asked = select(ClaimRow, over, _alive().label("alive")).where(self._is(id))
        found = (await db.execute(asked)).one_or_none()
        if found is None:
            return Record("running", row["fingerprint"])  # it was released this moment: the next look decides
        if found.over:
            again = {**row, "outcome": None, "until": seconds_now() + self._keep}
            await db.execute(update(ClaimRow).where(self._is(id)).values(again))
            return None
        if found.state == "running" and ours["call"] and found.call == ours["call"]:
            # Whoever claims last makes the call: what becomes of that node is what matters from now on.
            claim.before = {"attempt": found.attempt, "node": found.node, "epoch": found.epoch}
            await db.execute(update(ClaimRow).where(self._is(id)).values(ours))
            return None
        if found.state == "running" and not found.alive:
            await db.execute(update(ClaimRow).where(self._is(id)).values(state="unknown"))
            return Record("unknown", found.fingerprint)
        if found.outcome is None:
            return Record(found.state, found.fingerprint)
        place = ("outcome", self._tenant, found.id)
        return Record(found.state, found.fingerprint, self._envelopes.open(found.outcome.decode(), *place))

    # -- ending -------------------------------------------------------------------------------------------------------

    async def _end(self, id: KeyId, statement: Executable, values: Json) -> None:
        """What became of our call; a claim of another call is not ours to end."""
        claim = self._running.pop(id, None)
        if claim is not None:
            ours = {"whose": self._tenant, "key": _digest(id), "by": claim.call, "keep": self._keep}
            await self._write(statement, {**ours, **values})

    async def _write(self, statement: Executable, values: Json) -> None:
        """Now, or when the record is back. Raises what SQLAlchemy raises where too much waits already."""
        try:
            async with self._single.begin() as db:
                await db.execute(statement, values)
        except Exception:
            if not self._later.add(statement, values):
                raise
        except BaseException:
            self._later.add(statement, values)
            raise

    def _is(self, id: KeyId) -> ColumnElement[bool]:
        return and_(ClaimRow.tenant == self._tenant, ClaimRow.id == _digest(id))

    # -- what is over -------------------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Forget a few of those whose day has passed, now and then; of whichever tenant."""
        if self._now() - self._swept < SWEEP:
            return
        self._swept = self._now()
        try:
            async with self._engine.begin() as db:
                over = and_(ClaimRow.until < seconds_now(), or_(ClaimRow.state != "running", ~_alive()))
                some = select(ClaimRow.tenant, ClaimRow.id).where(over).limit(SWEPT).with_for_update(skip_locked=True)
                for row in (await db.execute(some)).all():
                    await db.execute(delete(ClaimRow).where(ClaimRow.tenant == row.tenant, ClaimRow.id == row.id))
        except Exception as exc:  # the call does not depend on it
            log.warning("old idempotency keys could not be forgotten: %s", type(exc).__name__)


# What every keyed call says is put together once.

_CLAIMS: Final = cast(Table, ClaimRow.__table__)
_UNTIL: Final = seconds_now() + bindparam("keep", type_=Double())
_OURS: Final = and_(
    _CLAIMS.c.tenant == bindparam("whose"), _CLAIMS.c.id == bindparam("key"), _CLAIMS.c.call == bindparam("by")
)
_FINISHED: Final = (
    update(_CLAIMS)
    .where(_OURS, _CLAIMS.c.state != "finished")
    .values(state="finished", outcome=bindparam("found"), until=_UNTIL)
)
_UNKNOWN: Final = update(_CLAIMS).where(_OURS, _CLAIMS.c.state == "running").values(state="unknown", until=_UNTIL)


def _claiming(dialect: str) -> Executable:
    """Answers with a row where there was none."""
    names = ("tenant", "id", "fingerprint", "state", "call", "attempt", "node", "epoch")
    row: Json = {name: bindparam(name) for name in names}
    make = sqlite.insert if dialect == "sqlite" else postgresql.insert
    return make(_CLAIMS).values(**row, until=_UNTIL).on_conflict_do_nothing().returning(_CLAIMS.c.id)


def _alive() -> ColumnElement[bool]:
    """Whether the node that makes the call still has the lease under which it began."""
    return exists().where(
        NodeRow.id == ClaimRow.node, NodeRow.epoch == ClaimRow.epoch, NodeRow.lease_until > seconds_now()
    )


def _digest(id: KeyId) -> str:
    """Parts of a key may be long, and may hold what no text of a database can."""
    return hashlib.sha256(msgspec.json.encode([id.caller, id.server, id.name, id.key])).hexdigest()
