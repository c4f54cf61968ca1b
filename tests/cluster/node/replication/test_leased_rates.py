"""The rate of one key at several gateways that share a record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.timing import QUIET, within
from toolway.cluster.db.client_state import RateBuckets, RateGrant, RateRequest
from toolway.cluster.db.tables import RateBucketRow
from toolway.cluster.replication import rate_limit
from toolway.cluster.replication.rate_limit import LeasedRateLimiter
from toolway.gateway.rate_limit import Rate

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def _gateways(buckets: rate_limit.RateBucketStore, count: int) -> AsyncIterator[list[LeasedRateLimiter]]:
    found = [LeasedRateLimiter(buckets, "t", lambda: count, time.monotonic) for _ in range(count)]
    for each in found:
        each.start()
    try:
        yield found
    finally:
        for each in found:
            await each.close()


async def _call(gateways: Sequence[LeasedRateLimiter], rate: Rate, seconds: float, pause: float) -> int:
    """How many calls were let through, where each gateway is called again and again."""
    passed, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        passed += sum(not each.try_acquire("k", rate) for each in gateways)
        await asyncio.sleep(pause)
    return passed


async def test_all_gateways_together_keep_the_rate(engine: AsyncEngine) -> None:
    async with _gateways(RateBuckets(engine), 3) as found:
        passed = await _call(found, Rate(40, "s"), 3.0, 0.005)
    assert passed <= 40 * (1 + 3) + 40 / 4 + 5
    assert passed >= 0.7 * 40 * (1 + 3) or not QUIET  # a process without a core makes few calls


async def test_no_call_waits_for_the_database(engine: AsyncEngine) -> None:
    async with _gateways(RateBuckets(engine), 1) as (one,):
        began = time.perf_counter()
        passed = sum(not one.try_acquire("k", Rate(1000, "s")) for _ in range(200))
        assert passed == 200 and time.perf_counter() - began < within(0.1)  # the loop had no turn: all on credit
        assert one.query_count == 0


async def test_unused_tokens_are_returned_on_close(engine: AsyncEngine) -> None:
    rate = Rate(100, "day")
    async with _gateways(RateBuckets(engine), 2) as (one, _):
        for _ in range(10):
            assert one.try_acquire("k", rate) == 0.0
            await asyncio.sleep(0.02)
        async with asyncio.timeout(30):
            while not one.query_count:
                await asyncio.sleep(0.01)
    async with engine.connect() as db:
        assert (await db.execute(select(RateBucketRow.tokens))).scalar_one() == pytest.approx(90, abs=0.1)


class UnavailableBuckets:
    """A record that does not answer for a while."""

    def __init__(self, buckets: RateBuckets) -> None:
        self.buckets = buckets
        self.away = False

    async def acquire(self, tenant: str, requests: Sequence[RateRequest]) -> Mapping[str, RateGrant]:
        if self.away:
            raise ConnectionError
        return await self.buckets.acquire(tenant, requests)

    async def delete_unused(self, tenant: str) -> None:
        await self.buckets.delete_unused(tenant)


async def test_without_the_database_calls_pass_at_a_share_of_the_rate(engine: AsyncEngine) -> None:
    record, rate = UnavailableBuckets(RateBuckets(engine)), Rate(30, "s")
    async with _gateways(record, 3) as found:
        await _call(found, rate, 1.5, 0.01)
        record.away = True
        await asyncio.sleep(0.5)
        passed = await _call(found, rate, 2.0, 0.01)
        assert all(each.is_standalone for each in found)
        assert passed <= 30 * 2 + 45
        assert passed >= 0.5 * 30 * 2 or not QUIET
        record.away = False
        async with asyncio.timeout(60):
            while any(each.is_standalone for each in found):
                await _call(found, rate, 0.2, 0.01)


async def test_unused_keys_are_forgotten(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "MAX_ACTIVE_KEYS", 50)
    now = [0.0]
    found = LeasedRateLimiter(RateBuckets(engine), "t", lambda: 1, lambda: now[0])
    passed = [found.try_acquire(f"k{number}", Rate(10, "s")) for number in range(60)]
    assert passed.count(0.0) == 50 and len(found._leases) == 50
    found.start()
    try:
        for _ in range(10):
            await asyncio.sleep(0.1)
            now[0] += 1.0
            found._wake.set()
        async with asyncio.timeout(30):
            while found._leases:
                found._wake.set()
                await asyncio.sleep(0.05)
        assert found.try_acquire("k55", Rate(10, "s")) == 0.0
    finally:
        await found.close()
