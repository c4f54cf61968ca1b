"""Lease rules: a node acts as owner only while it is certain that no other node may. No I/O.

A node has one lease and owns servers under it, so renewing costs the same for one server and for a thousand.

Rule 1. The database grants `ttl` seconds by its own clock. We count from before the request was sent, so the real lease
        lasts longer than we assume.
Rule 2. The lease is renewed every `renew_interval` seconds. It is given up `hold` seconds after the request of the last
        grant: an owner stops sending before another node may start.
Rule 3. A lease that was given up stays so, even if the result of a renewal arrives later: another node may have acted
        since. The node must join again.
Rule 4. Every lease has a new number (`epoch`). A node that joins again is a new owner: it must claim its former
        instances again.

`now` is a clock that runs on while the machine sleeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Durations of a lease, in seconds. All nodes of a cluster use the same values."""

    ttl: float = 10.0
    renew_interval: float = 3.0
    hold: float = 7.0


DEFAULT_LEASE_SETTINGS: Final = LeaseSettings()
#: Workers of one machine: a worker that ended is noticed by its parent, and only one of them owns servers.
WORKER_LEASE_SETTINGS: Final = LeaseSettings(ttl=60.0, renew_interval=10.0, hold=50.0)


class LeaseClock:
    """State of this node's own lease, by this node's clock.

    No I/O: the time is an argument.
    """

    def __init__(self, settings: LeaseSettings = DEFAULT_LEASE_SETTINGS) -> None:
        self._settings = settings
        self._epoch: int | None = None
        self._granted_at = 0.0  # when the request of the last grant was sent

    def start(self, epoch: int, requested_at: float) -> None:
        """Start a new lease that the database granted to a request sent at `requested_at`."""
        self._epoch, self._granted_at = epoch, requested_at

    def extend(self, requested_at: float, now: float) -> None:
        """Extend the lease after the database confirmed a renewal that was sent at `requested_at`.

        Confirmations may arrive out of order. One that arrives after the end of the lease does not revive it.
        """
        if self.epoch(now) is None:
            self._epoch = None
        else:
            self._granted_at = max(self._granted_at, requested_at)

    def end(self) -> None:
        """End the lease, because the database rejected a renewal or this node gives the lease back."""
        self._epoch = None

    def epoch(self, now: float) -> int | None:
        """Return the number of the lease at time `now`, or None if the lease has ended.

        A node without a lease owns nothing.
        """
        return self._epoch if now < self._granted_at + self._settings.hold else None

    def expires_at(self) -> float:
        """Return when the lease ends if it is not renewed."""
        return self._granted_at + self._settings.hold
