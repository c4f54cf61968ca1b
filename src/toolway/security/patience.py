"""How often a server may ask for another credential before we say no. Pure.

A server that refuses whatever it is given would else have us log in for ever.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from toolway.model import Refusal

ROUNDS: Final = 2  # of more scope, for one tool
PAUSE: Final = 300.0  # seconds for which a no stays one
REMEMBERED: Final = 1000  # tools whose rounds are counted

_INSUFFICIENT = re.compile(r'\berror\s*=\s*"?insufficient_scope\b')


def wants_more_scope(refusal: Refusal) -> bool:
    return refusal.status == 403 and _INSUFFICIENT.search(refusal.challenge) is not None


@dataclass(slots=True)
class Patience:
    _barred: dict[str, float] = field(default_factory=dict)  # credential → until when it is not replaced
    _rounds: dict[str, tuple[int, float]] = field(default_factory=dict)  # what → how often, and since when

    def grants(self, refusal: Refusal, now: float) -> bool:
        """Whether the refusal is to be answered with another credential. Counts it."""
        if self._barred.get(refusal.sent, 0.0) > now:
            return False
        if refusal.status == 401:
            return True
        if not wants_more_scope(refusal):
            return False
        made, since = self._rounds.get(refusal.what, (0, now))
        if now - since >= PAUSE:
            made, since = 0, now
        if made >= ROUNDS:
            return False
        self._rounds[refusal.what] = (made + 1, since)
        while len(self._rounds) > REMEMBERED:
            del self._rounds[next(iter(self._rounds))]
        return True

    def ends_for(self, credential: str, now: float) -> None:
        """A new credential was refused too: it is not replaced for a while."""
        self._barred = {credential: now + PAUSE}
