"""Limits of the HTTP client and server, `HttpError`, stall detection and the body budget.

`HttpError` has the number of bytes of the request that were sent. Zero is certain: the server cannot have executed the
request. Any other number means that it may have.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from toolway.types import Certainty


class ClientLimits(msgspec.Struct, frozen=True):
    """Limits of the HTTP client in seconds and bytes.

    Exceeding one of them fails the request or closes the connection.
    """

    connect_timeout: float = 5.0  # DNS, TCP, proxy and TLS together
    write_timeout: float = 10.0  # time without progress of a write after which the server counts as stuck
    head_timeout: float = 10.0  # from the first byte of a response to the end of its head
    max_head_bytes: int = 64 * 1024  # the response's head, interim responses included
    max_headers: int = 200  # header fields of a response
    min_rate_window: float = 10.0  # a body that is waited for must arrive at `min_rate` over this time
    min_rate: int = 1024  # bytes a second
    max_unread_bytes: int = 256 * 1024  # body bytes buffered for a slow reader before the socket is paused
    idle_timeout: float = 30.0  # idle time after which a pooled connection is closed
    max_idle_connections: int = 256  # pooled per origin
    linger_timeout: float = 0.1  # time to wait for the end of an ignored body, to keep its connection
    max_linger_bytes: int = 16 * 1024
    accept_compression: bool = False  # accept gzip and deflate

    @property
    def check_interval(self) -> float:
        """Return the seconds between two checks of the connections for stalls and idle time."""
        return min(1.0, self.write_timeout / 5, self.head_timeout / 5, self.min_rate_window / 5, self.idle_timeout / 5)


class HttpError(Exception):
    """Failure of one HTTP request. Its connection is closed; no other request is affected."""

    def __init__(self, reason: str, *, code: str, bytes_sent: int = 0, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.bytes_sent = bytes_sent  # an upper bound; zero only if that is certain
        self.hint = hint

    @property
    def certainty(self) -> Certainty:
        """Return NOT_SENT if no byte of the request was sent, or else UNKNOWN (it may have run)."""
        return Certainty.UNKNOWN if self.bytes_sent else Certainty.NOT_SENT


ExchangeStage = Literal["write", "head", "body"]


class StallDetector:
    """Detects HTTP exchanges that make no progress. No I/O: the state and time are arguments."""

    __slots__ = ("_count", "_limits", "_since", "_stage")

    def __init__(self, limits: ClientLimits) -> None:
        self._limits = limits
        self._stage: ExchangeStage | None = None
        self._since = 0.0
        self._count = 0

    def reset(self) -> None:
        self._stage = None

    def is_stalled(self, now: float, stage: ExchangeStage, count: int) -> bool:
        """Return True if the exchange stays too long in `stage`, or receives its body too slowly.

        `count` is the number of unsent bytes if `stage` is "write", and otherwise of received bytes.
        """
        if stage != self._stage or (stage == "write" and count < self._count):
            self._restart(now, stage, count)
            return False
        lasted = now - self._since
        if stage == "write":
            return lasted >= self._limits.write_timeout
        if stage == "head":
            return lasted >= self._limits.head_timeout
        if lasted < self._limits.min_rate_window:
            return False
        too_slow = count - self._count < self._limits.min_rate * lasted
        self._restart(now, stage, count)
        return too_slow

    def _restart(self, now: float, stage: ExchangeStage, count: int) -> None:
        self._stage, self._since, self._count = stage, now, count


# -- server -----------------------------------------------------------------------------------------------------------


class ServerLimits(msgspec.Struct, frozen=True):
    """Limits of the HTTP server on the resources that its clients can use. Times are in seconds."""

    max_connections: int = 20_000  # open connections; beyond this, an unauthenticated or the longest idle one is closed
    max_head_bytes: int = 32 * 1024  # bytes of a request's head
    max_headers: int = 100  # headers of a request
    head_timeout: float = 10.0  # seconds from the first byte of a head to its end
    max_body_bytes: int = 4 * 1024 * 1024  # bytes of a request's body
    max_total_body_bytes: int = 256 * 1024 * 1024  # bytes of all bodies being read or handled
    min_bytes_per_s: float = 1024.0  # bytes per second; a slower body, measured over `speed_window`, is timed out
    speed_window: float = 10.0
    idle_timeout: float = 75.0  # seconds until an unused connection is closed
    max_unread_bytes: int = 4 * 1024 * 1024  # bytes unread by one client; beyond this, it is disconnected
    max_total_unread_bytes: int = 512 * 1024 * 1024  # by all clients; beyond this, those with most are disconnected
    stall_timeout: float = 30.0  # over which a client with many unread bytes must read at `min_bytes_per_s`
    max_pipelined: int = 16  # queued requests of one connection
    rejection_linger: float = 2.0  # seconds for a rejected client to read the response, while its input is discarded
    sweep_interval: float = 1.0  # seconds between two sweeps for slow clients


MAX_SHARE_DIVISOR: Final = 4  # one principal may use at most a quarter of the budget
STRANGERS_DIVISOR: Final = 16  # all clients that aren't authenticated yet share a sixteenth
STRANGERS: Final = ""  # principal id of all clients that aren't authenticated yet


class BodyBudget:
    """Memory budget of the HTTP server for request bodies: a total, and a share per principal.

    The principal id None is for a server without authentication, whose bytes count only against the total.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._reserved = 0
        self._by_principal: dict[str, int] = {}

    def __len__(self) -> int:
        return self._reserved

    def can_reserve(self, size: int, principal_id: str | None = None) -> bool:
        """Return True if `reserve` would accept `size` bytes for this principal. This does not reserve them."""
        if principal_id is not None and self._by_principal.get(principal_id, 0) + size > self._share_of(principal_id):
            return False
        return self._reserved + size <= self._max_bytes

    def _share_of(self, principal_id: str) -> int:
        return self._max_bytes // (STRANGERS_DIVISOR if principal_id == STRANGERS else MAX_SHARE_DIVISOR)

    def reserve(self, size: int, principal_id: str | None) -> bool:
        """Reserve `size` bytes for a request body.

        Return False without reserving them if the total or the principal's share would be exceeded.
        """
        if not self.can_reserve(size, principal_id):
            return False
        if principal_id is not None:
            self._by_principal[principal_id] = self._by_principal.get(principal_id, 0) + size
        self._reserved += size
        return True

    def release(self, size: int, principal_id: str | None) -> None:
        """Give back bytes that were reserved for this principal."""
        if not size:
            return
        self._reserved -= size
        if principal_id is not None:
            left = self._by_principal[principal_id] - size
            if left:
                self._by_principal[principal_id] = left
            else:
                del self._by_principal[principal_id]
