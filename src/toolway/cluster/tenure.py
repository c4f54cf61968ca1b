"""How long a node may act as the owner of its servers: for as long as it is sure that nobody else may. Pure.

A node has one lease, and owns servers under it, so renewing costs the same for one server and for a thousand.

Rule 1. The record grants `ttl` seconds by its own clock. We count from before the question was sent, so what was
        granted lasts longer than we believe.
Rule 2. It is renewed every `renew` seconds, and given up `give_up` seconds after the last question that was granted:
        an owner stops sending before another may begin.
Rule 3. What was given up stays given up, also when the answer to a renewal comes after all: somebody else may have
        acted meanwhile. Such a node joins anew.
Rule 4. Every number of a tenure (`epoch`) is new. A node that joins anew is another owner: whatever it had is somebody
        else's until it has taken it again.

`now` is a clock that goes on while the machine sleeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Terms:
    """The lengths of a lease, in seconds. All nodes of a cluster have the same."""

    ttl: float = 10.0
    renew: float = 3.0
    give_up: float = 7.0


TERMS: Final = Terms()


class Tenure:
    """What one node knows of its own lease."""

    def __init__(self, terms: Terms = TERMS) -> None:
        self._terms = terms
        self._epoch: int | None = None
        self._since = 0.0  # when the last question that was granted was asked

    def began(self, epoch: int, asked_at: float) -> None:
        """The record gave us a new lease when it was asked at that time."""
        self._epoch, self._since = epoch, asked_at

    def renewed(self, asked_at: float, now: float) -> None:
        """The record renewed it. Answers may come in any order, and too late."""
        if self.epoch(now) is None:
            self._epoch = None
        else:
            self._since = max(self._since, asked_at)

    def refused(self) -> None:
        """The record knows nothing of our lease any more."""
        self._epoch = None

    def epoch(self, now: float) -> int | None:
        """The number under which we own; None when we own nothing."""
        return self._epoch if now < self._since + self._terms.give_up else None

    def ends_at(self) -> float:
        """When we stop being an owner unless it is renewed."""
        return self._since + self._terms.give_up
