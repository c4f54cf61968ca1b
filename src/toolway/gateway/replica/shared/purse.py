"""The tokens of one key that this gateway has in hand. Pure: the time is handed in.

The bucket of a key is in the record, and all gateways draw on it. None asks for a token at a call: each keeps a few in
hand, about as many as its next second will need, and settles with the record meanwhile.

Rule 1. What is in hand was taken out of the bucket before it is spent, so it is never too much.
Rule 2. A key that comes to a gateway for the first time, or again after a while, begins on credit. What was spent on
        credit is taken out of the bucket with the next question, also where it is empty: it is paid back by waiting.
Rule 3. So beyond the rate there can be, once, what all gateways give on credit together: a quarter of the bucket, or
        one call of each gateway if that is more. Over any longer time the rate is kept.
Rule 4. What is not used is given back. Until then it is missing elsewhere: at most a second's need of a gateway.
Rule 5. While the record does not answer, each gateway fills its purse with its share of the rate, on credit.
"""

from __future__ import annotations

import math
from typing import Final

from toolway.gateway.rates import Rate

AHEAD: Final = 1.0  # seconds for which tokens are in hand
BRISK: Final = 0.1  # seconds below which two questions count as this far apart
IDLE: Final = 2.0  # seconds without a call after which what is left is given back
CREDIT: Final = 0.25  # of a bucket, for all gateways together
AGAIN: Final = 0.25  # seconds, at least, between two questions about a bucket that had too little
SOON: Final = 0.1  # seconds until an answer of the record may be there


class Purse:
    def __init__(self, rate: Rate, gateways: int, now: float) -> None:
        self.rate = rate
        self._gateways = max(1, gateways)
        self._left = 0.0
        self._credit = self._most_credit()
        self._owed = 0.0  # spent on credit, or (less than nothing) to be given back
        self._used = 0  # since the last question
        self._asked_at = now
        self._wanted = 0
        self._again = now  # when the record is worth asking
        self._filled_at = now
        self.used_at = now

    def take(self, now: float, *, alone: bool) -> float:
        """A token: 0.0, or the seconds until there may be one. `alone`: the record does not answer."""
        self.used_at = now
        if alone:
            self._fill(now)
        if self._left >= 1.0:
            self._left -= 1.0
        elif self._credit >= 1.0:
            self._credit -= 1.0
            self._owed += 1.0
        else:
            pause = 1.0 / self._share() if alone else SOON
            return max(self._again - now, pause)
        self._used += 1
        return 0.0

    def wants(self, now: float) -> bool:
        """Whether it is time to settle with the record."""
        if now < self._again:
            return False
        if now - self.used_at >= IDLE:
            return self._left >= 1.0 or self._owed > 0
        return self._left < self._need(now) / 2 or self._owed > 0

    def over(self, now: float) -> bool:
        """Nobody uses it, and there is nothing in it to be remembered."""
        return now - self.used_at >= IDLE and now >= self._again and self._left < 1.0 and self._owed <= 0

    def closing(self) -> float:
        """What the record is told at the end, if anything: tokens to be taken out, or put back."""
        charge, self._left, self._owed = self._owed - math.floor(self._left), 0.0, 0.0
        return charge

    def question(self, now: float) -> tuple[float, int]:
        """What the record is told: tokens that are to be taken out (or, less than nothing, put back) whatever is there,
        and how many are wanted if there are so many."""
        if now - self.used_at >= IDLE:
            charge, self._wanted = self.closing(), 0
        else:
            charge, self._owed = self._owed, 0.0
            self._wanted = min(max(1, math.ceil(self._need(now) - self._left)), self.rate.calls)
        self._used = 0
        self._asked_at = now
        return charge, self._wanted

    def answered(self, granted: int, wait: float, now: float) -> None:
        """The record gave so many; `wait`: seconds until it has another."""
        self._left += granted
        self._filled_at = now
        if granted >= self._wanted:
            self._credit, self._again = self._most_credit(), now
        else:
            self._credit, self._again = 0.0, now + max(wait, AGAIN)

    def unanswered(self, charge: float, now: float) -> None:
        """It does not answer: what it was to be told is told later."""
        self._owed = min(self._owed + charge, float(self.rate.calls))
        self._again = now + AGAIN

    def _need(self, now: float) -> float:
        """Tokens for the time ahead, if it is like the time since the last question."""
        return 1.0 + AHEAD * max(0, self._used - 1) / max(BRISK, now - self._asked_at)

    def _most_credit(self) -> float:
        return max(1.0, CREDIT * self.rate.calls / self._gateways)

    def _share(self) -> float:
        return self.rate.pace / self._gateways

    def _fill(self, now: float) -> None:
        gained = (now - self._filled_at) * self._share()
        self._filled_at = now
        self._credit = min(max(1.0, self.rate.calls / self._gateways), self._credit + gained)
