"""Buckets that several gateways draw on, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.record.rates import KEPT, Buckets, Grant, Question
from toolway.cluster.record.tables import BucketRow

pytestmark = pytest.mark.anyio
SLOW = 1e-9  # tokens a second: nothing comes back while a test runs


def _ask(key: str = "k", *, calls: int = 10, pace: float = SLOW, charge: float = 0.0, want: int = 0) -> Question:
    return Question(key, calls, pace, charge, want)


async def _one(buckets: Buckets, asked: Question, tenant: str = "t") -> Grant:
    return (await buckets.settle(tenant, [asked]))[asked.key]


async def test_a_bucket_is_full_at_first_and_gives_no_more_than_it_has(engine: AsyncEngine) -> None:
    buckets = Buckets(engine)
    assert (await _one(buckets, _ask(want=4))).tokens == 4
    assert (await _one(buckets, _ask(want=100))).tokens == 6
    empty = await _one(buckets, _ask(want=1, pace=0.5))
    assert empty.tokens == 0 and 1.5 < empty.wait <= 2.0
    assert (await _one(buckets, _ask(want=100), "another")).tokens == 10


async def test_it_fills_by_the_clock_of_the_database_and_no_further_than_full(engine: AsyncEngine) -> None:
    buckets = Buckets(engine)
    await _one(buckets, _ask(want=10, pace=20))
    await asyncio.sleep(0.25)
    assert 4 <= (await _one(buckets, _ask(want=10, pace=20))).tokens <= 9
    await asyncio.sleep(0.6)
    assert (await _one(buckets, _ask(want=100, pace=20))).tokens == 10


async def test_what_was_spent_on_credit_is_paid_back(engine: AsyncEngine) -> None:
    buckets = Buckets(engine)
    assert (await _one(buckets, _ask(charge=13, want=1))).tokens == 0
    assert (await _one(buckets, _ask(charge=-4, want=5))).tokens == 1
    await _one(buckets, _ask(charge=1e9))
    owing = await _one(buckets, _ask(want=1, pace=1.0))
    assert 100 < owing.wait <= 101  # a debt has an end


async def test_what_is_given_back_makes_it_no_fuller_than_full(engine: AsyncEngine) -> None:
    assert (await _one(Buckets(engine), _ask(charge=-500, want=1000))).tokens == 10


async def test_a_smaller_rate_is_in_force_at_once(engine: AsyncEngine) -> None:
    buckets = Buckets(engine)
    await _one(buckets, _ask(calls=1000, want=1))
    assert (await _one(buckets, _ask(calls=5, want=1000))).tokens == 5


async def test_many_gateways_at_once_get_no_more_than_there_is(engine: AsyncEngine) -> None:
    buckets = Buckets(engine)
    keys = [f"k{number}" for number in range(5)]

    async def draw(number: int) -> dict[str, Grant]:
        order = keys[number % 5 :] + keys[: number % 5]  # each in another order: nobody waits in a circle
        return dict(await buckets.settle("t", [_ask(key, calls=50, want=7) for key in order]))

    drawn = await asyncio.gather(*(draw(number) for number in range(20)))
    assert {key: sum(each[key].tokens for each in drawn) for key in keys} == dict.fromkeys(keys, 50)


async def test_old_buckets_are_forgotten(engine: AsyncEngine) -> None:
    buckets = Buckets(engine)
    await buckets.settle("t", [_ask("old", want=10), _ask("new", want=10)])
    async with engine.begin() as db:
        await db.execute(update(BucketRow).where(BucketRow.key == "old").values(at=BucketRow.at - KEPT - 60))
    await buckets.forget_old("t")
    async with engine.connect() as db:
        assert (await db.execute(select(BucketRow.key))).scalars().all() == ["new"]
