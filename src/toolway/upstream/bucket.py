"""A bounded rate: so many a second, and a burst. Pure; the time is handed in."""

from __future__ import annotations


class Bucket:
    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._at = now

    def take(self, now: float) -> bool:
        """Whether one more is within the rate."""
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        if self._level < 1:
            return False
        self._level -= 1
        return True
