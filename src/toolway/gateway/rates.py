"""How often the holder of a key may call: a bucket of tokens that fills at an even pace. Pure: the time is handed in.

A full bucket has as many tokens as the rate names, so in any t seconds there are at most `calls * (1 + t / seconds)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal, Protocol, TypeAlias, cast

import msgspec

MOST_BUCKETS: Final = 10_000  # of keys that called lately; beyond that, those that are full are forgotten
_RATE: Final = re.compile(r"([1-9][0-9]{0,8})/(s|min|h|day)")

Unit: TypeAlias = Literal["s", "min", "h", "day"]
_UNITS: Final[Mapping[Unit, float]] = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86_400.0}


class Rate(msgspec.Struct, frozen=True):
    """
    >>> Rate.parse("600/min").pace
    10.0
    """

    calls: Annotated[int, msgspec.Meta(ge=1)]
    per: Unit

    @staticmethod
    def parse(text: str) -> Rate:
        """Raises `ValueError`."""
        found = _RATE.fullmatch(text)
        if found is None:
            raise ValueError(f"{text[:40]!r} is no rate: write it as 10/s, 600/min, 1000/h or 5000/day")
        return Rate(int(found[1]), cast(Unit, found[2]))

    def __str__(self) -> str:
        return f"{self.calls}/{self.per}"

    @property
    def seconds(self) -> float:
        return _UNITS[self.per]

    @property
    def pace(self) -> float:
        """Tokens a second."""
        return self.calls / self.seconds


class Rates(Protocol):
    """Who has used up what."""

    def take(self, key: str, rate: Rate) -> float:
        """Take a token for one call of a key. 0.0 where there was one, else the seconds until there may be. Does not
        wait, and asks nobody."""
        ...


class Bucket:
    """Tokens of one key at one moment. It is full at first."""

    __slots__ = ("at", "rate", "tokens")

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate = rate
        self.tokens = float(rate.calls)
        self.at = now

    def fill(self, now: float) -> None:
        """Clocks of others may be behind: time never goes back."""
        gained = max(0.0, now - self.at) * self.rate.pace
        self.tokens = min(float(self.rate.calls), self.tokens + gained)
        self.at = max(self.at, now)

    def take(self, now: float) -> float:
        self.fill(now)
        if self.tokens < 1.0:
            return (1.0 - self.tokens) / self.rate.pace
        self.tokens -= 1.0
        return 0.0


class MemoryRates:
    """The buckets of one gateway, which nobody shares."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._buckets: dict[str, Bucket] = {}

    def take(self, key: str, rate: Rate) -> float:
        now = self._now()
        bucket = self._buckets.get(key)
        if bucket is None or bucket.rate != rate:
            bucket = self._buckets[key] = Bucket(rate, now)
            if len(self._buckets) > MOST_BUCKETS:
                self._forget_full(now)
        return bucket.take(now)

    def _forget_full(self, now: float) -> None:
        """A full bucket is what a new one is."""
        for key, bucket in list(self._buckets.items()):
            bucket.fill(now)
            if bucket.tokens >= bucket.rate.calls:
                del self._buckets[key]
