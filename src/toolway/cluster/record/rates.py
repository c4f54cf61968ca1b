"""The buckets of keys that have a rate: what all gateways of a tenant have left together, by the clock of the database.

A bucket is full where there is no row of it. What happened in the last moments before a crash of the database may be
lost: nobody waits for the disk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import bindparam, delete, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from toolway.cluster.record.clock import seconds_now
from toolway.cluster.record.tables import BucketRow

MOST_OWED: Final = 10.0  # buckets: a debt has an end
KEPT: Final = 12 * 86_400.0  # seconds: the slowest bucket fills in a day


@dataclass(frozen=True, slots=True)
class Question:
    """What one gateway settles of one key."""

    key: str
    calls: int  # tokens of a full bucket
    pace: float  # tokens a second
    charge: float  # spent already, or (less than nothing) given back
    want: int


@dataclass(frozen=True, slots=True)
class Grant:
    tokens: int
    wait: float  # seconds until there is another, where there was none


@dataclass(frozen=True, slots=True)
class _Bucket:
    tokens: float
    at: float
    now: float


class Buckets:
    """Raises what SQLAlchemy raises."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def settle(self, tenant: str, questions: Sequence[Question]) -> Mapping[str, Grant]:
        """Of several keys at once, each asked about once."""
        asked = sorted(questions, key=lambda each: each.key)  # all lock in this order
        async with self._engine.begin() as db:
            rows = await _locked(db, tenant, asked)
            grants, changed = {}, []
            for each in asked:
                row = rows[each.key]
                left = _filled(row, each)
                grants[each.key], rest = _granted(left, each)
                changed.append({"of": tenant, "whose": each.key, "left": rest, "when": max(row.at, row.now)})
            ours = (BucketRow.tenant == bindparam("of")) & (BucketRow.key == bindparam("whose"))
            write = update(BucketRow).where(ours).values(tokens=bindparam("left"), at=bindparam("when"))
            await db.execute(write, changed)
            return grants

    async def forget_old(self, tenant: str) -> None:
        """What nobody has asked about for so long is full again, whatever it was."""
        async with self._engine.begin() as db:
            old = BucketRow.at < seconds_now() - KEPT
            await db.execute(delete(BucketRow).where(BucketRow.tenant == tenant, old))


async def _locked(db: AsyncConnection, tenant: str, asked: Sequence[Question]) -> dict[str, _Bucket]:
    """The buckets, made where there are none, for us alone to the end of the transaction."""
    if db.dialect.name == "postgresql":
        await db.execute(text("SET LOCAL synchronous_commit = off"))
    make = sqlite.insert if db.dialect.name == "sqlite" else postgresql.insert
    full = [{"tenant": tenant, "key": each.key, "tokens": float(each.calls), "at": 0.0} for each in asked]
    await db.execute(make(BucketRow).on_conflict_do_nothing(), full)
    ours = (BucketRow.tenant == tenant) & BucketRow.key.in_([each.key for each in asked])
    found = await db.execute(
        select(BucketRow.key, BucketRow.tokens, BucketRow.at, seconds_now().label("now"))
        .where(ours)
        .order_by(BucketRow.key)
        .with_for_update()
    )
    return {row.key: _Bucket(row.tokens, row.at, row.now) for row in found}


def _filled(row: _Bucket, asked: Question) -> float:
    """What there is now. A statement that waited for a lock has an older time than the one before it."""
    gained = max(0.0, row.now - row.at) * asked.pace
    return min(float(asked.calls), row.tokens + gained)


def _granted(left: float, asked: Question) -> tuple[Grant, float]:
    left = min(max(left - asked.charge, -MOST_OWED * asked.calls), float(asked.calls))
    tokens = max(0, min(asked.want, math.floor(left)))
    wait = (1.0 - left) / asked.pace if tokens == 0 else 0.0
    return Grant(tokens, max(0.0, wait)), left - tokens
