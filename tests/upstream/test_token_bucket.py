"""A rate with a burst."""

from __future__ import annotations

from toolway.upstream.session import TokenBucket


def test_bucket_allows_burst_then_rate() -> None:
    bucket = TokenBucket(rate=100, burst=1000, now=0.0)
    assert sum(bucket.try_acquire(0.0) for _ in range(5000)) == 1000
    assert sum(bucket.try_acquire(0.5) for _ in range(5000)) == 50
    assert sum(bucket.try_acquire(1000.0) for _ in range(5000)) == 1000
