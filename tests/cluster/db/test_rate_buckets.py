"""Buckets that several gateways draw on, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.db.client_state import KEEP_BUCKETS_S, RateBuckets, RateGrant, RateRequest
from toolway.cluster.db.tables import RateBucketRow

pytestmark = pytest.mark.anyio
SLOW = 1e-9  # tokens a second: nothing comes back while a test runs


def _ask(key: str = "k", *, calls: int = 10, pace: float = SLOW, charge: float = 0.0, want: int = 0) -> RateRequest:
    return RateRequest(key, calls, pace, charge, want)


async def _one(buckets: RateBuckets, asked: RateRequest, tenant: str = "t") -> RateGrant:
    return (await buckets.acquire(tenant, [asked]))[asked.key]


async def test_bucket_starts_full_and_grants_no_more_than_it_has(engine: AsyncEngine) -> None:
    buckets = RateBuckets(engine)
    assert (await _one(buckets, _ask(want=4))).tokens == 4
    assert (await _one(buckets, _ask(want=100))).tokens == 6
    empty = await _one(buckets, _ask(want=1, pace=0.5))
    assert empty.tokens == 0 and 1.5 < empty.wait_s <= 2.0
    assert (await _one(buckets, _ask(want=100), "another")).tokens == 10


async def test_bucket_refills_by_the_database_clock_up_to_full(engine: AsyncEngine) -> None:
    buckets = RateBuckets(engine)
    await _one(buckets, _ask(want=10, pace=20))
    await asyncio.sleep(1.5)
    assert 2 <= (await _one(buckets, _ask(want=10, pace=2))).tokens <= 9
    await asyncio.sleep(0.6)
    assert (await _one(buckets, _ask(want=100, pace=20))).tokens == 10


async def test_tokens_spent_on_credit_are_paid_back(engine: AsyncEngine) -> None:
    buckets = RateBuckets(engine)
    assert (await _one(buckets, _ask(charge=13, want=1))).tokens == 0
    assert (await _one(buckets, _ask(charge=-4, want=5))).tokens == 1
    await _one(buckets, _ask(charge=1e9))
    owing = await _one(buckets, _ask(want=1, pace=1.0))
    assert 100 < owing.wait_s <= 101  # a debt has an end


async def test_returned_tokens_never_exceed_a_full_bucket(engine: AsyncEngine) -> None:
    assert (await _one(RateBuckets(engine), _ask(charge=-500, want=1000))).tokens == 10


async def test_smaller_rate_applies_at_once(engine: AsyncEngine) -> None:
    buckets = RateBuckets(engine)
    await _one(buckets, _ask(calls=1000, want=1))
    assert (await _one(buckets, _ask(calls=5, want=1000))).tokens == 5


async def test_concurrent_gateways_get_no_more_than_the_bucket_has(engine: AsyncEngine) -> None:
    buckets = RateBuckets(engine)
    keys = [f"k{number}" for number in range(5)]

    async def draw(number: int) -> dict[str, RateGrant]:
        order = keys[number % 5 :] + keys[: number % 5]  # each in another order: no deadlock
        return dict(await buckets.acquire("t", [_ask(key, calls=50, want=7) for key in order]))

    drawn = await asyncio.gather(*(draw(number) for number in range(20)))
    assert {key: sum(each[key].tokens for each in drawn) for key in keys} == dict.fromkeys(keys, 50)


async def test_old_buckets_are_deleted(engine: AsyncEngine) -> None:
    buckets = RateBuckets(engine)
    await buckets.acquire("t", [_ask("old", want=10), _ask("new", want=10)])
    async with engine.begin() as db:
        await db.execute(
            update(RateBucketRow).where(RateBucketRow.key == "old").values(at=RateBucketRow.at - KEEP_BUCKETS_S - 60)
        )
    await buckets.delete_unused("t")
    async with engine.connect() as db:
        assert (await db.execute(select(RateBucketRow.key))).scalars().all() == ["new"]
