"""Rate limit per API key: a token bucket that refills continuously.

No I/O: the time is an argument.

A full bucket holds `calls` tokens, so within t seconds there are at most `calls * (1 + t / seconds)` calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from toolway.config.schema import Rate as Rate

MAX_BUCKETS: Final = 10_000  # buckets of recently used keys; beyond this, full buckets are dropped


class RateLimiter(Protocol):
    """Interface of a rate limiter for API keys' calls."""

    def try_acquire(self, key_id: str, rate: Rate) -> float:
        """Take a token for one call from an API key's bucket. Return 0.0 if there was one, so the call may proceed.

        If there is none, return the seconds until one may be available. Never blocks and does no I/O.
        """
        ...

    def give_back(self, key_id: str) -> None:
        """Put a token back into the bucket right after `try_acquire` took it, because the call was not made."""
        ...


class RateBucket:
    """One API key's token bucket. It starts full."""

    __slots__ = ("rate", "tokens", "updated_at")

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate = rate
        self.tokens = float(rate.calls)
        self.updated_at = now

    def refill(self, now: float) -> None:
        """Add the tokens gained since the last refill.

        Nothing is added if `now` is before the last refill, because a remote clock is behind.
        """
        gained = max(0.0, now - self.updated_at) * self.rate.per_second
        self.tokens = min(float(self.rate.calls), self.tokens + gained)
        self.updated_at = max(self.updated_at, now)

    def try_acquire(self, now: float) -> float:
        """Take one token and return 0.0, or return the seconds until there is one."""
        self.refill(now)
        if self.tokens < 1.0:
            return (1.0 - self.tokens) / self.rate.per_second
        self.tokens -= 1.0
        return 0.0


class LocalRateLimiter:
    """Counts only this process's calls, in one token bucket per API key."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._buckets: dict[str, RateBucket] = {}

    def try_acquire(self, key_id: str, rate: Rate) -> float:
        now = self._now()
        bucket = self._buckets.get(key_id)
        if bucket is None or bucket.rate != rate:
            bucket = self._buckets[key_id] = RateBucket(rate, now)
            if len(self._buckets) > MAX_BUCKETS:
                self._drop_full_buckets(now)
        return bucket.try_acquire(now)

    def give_back(self, key_id: str) -> None:
        bucket = self._buckets.get(key_id)
        if bucket is not None:  # a full one may have been dropped
            bucket.tokens = min(bucket.tokens + 1.0, float(bucket.rate.calls))

    def _drop_full_buckets(self, now: float) -> None:
        """Drop full buckets to free memory. A dropped bucket is created again, full, when it is needed."""
        for key, bucket in list(self._buckets.items()):
            bucket.refill(now)
            if bucket.tokens >= bucket.rate.calls:
                del self._buckets[key]
