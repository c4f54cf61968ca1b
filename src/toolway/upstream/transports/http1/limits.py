"""What an HTTP server may make us wait for and hold, and the one way in which a request fails.

`HttpFault` tells how many bytes of the request left. Zero is certain knowledge: the server cannot have acted. Anything
else means that it may have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from toolway.model import Certainty

Stage = Literal["write", "head", "body"]


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Seconds and bytes; each has a defined end when it is passed."""

    connect: float = 5.0  # name look-up, TCP, proxy and TLS together
    write: float = 10.0  # a server that takes no byte for so long has stopped reading
    head: float = 10.0  # from the first byte of a response to the end of its head
    head_bytes: int = 64 * 1024  # the response's head, interim responses included
    headers: int = 200  # header fields of a response
    slow_window: float = 10.0  # a body that is waited for must bring `slow_rate` over this long
    slow_rate: int = 1024  # bytes a second
    unread: int = 256 * 1024  # body bytes held for a slow reader before the server is made to wait
    idle: float = 30.0  # a kept connection that nobody used for so long is closed
    idle_connections: int = 256  # kept for each origin
    linger: float = 0.1  # how long the end of an answered stream is waited for, to keep its connection
    linger_bytes: int = 16 * 1024
    compression: bool = False  # accept gzip and deflate

    @property
    def tick(self) -> float:
        """How often connections are looked at."""
        return min(1.0, self.write / 5, self.head / 5, self.slow_window / 5, self.idle / 5)


class HttpFault(Exception):
    """A request that brought no usable response. The connection it used is gone; nothing else is affected."""

    def __init__(self, reason: str, *, code: str, bytes_sent: int = 0, fix: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.bytes_sent = bytes_sent  # an upper bound; zero only where that is certain
        self.fix = fix

    @property
    def certainty(self) -> Certainty:
        return Certainty.C2 if self.bytes_sent else Certainty.C0


class Watch:
    """Notices an exchange that does not get on. It is shown the state now and then; it has no clock of its own."""

    __slots__ = ("_count", "_limits", "_since", "_stage")

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._stage: Stage | None = None
        self._since = 0.0
        self._count = 0

    def reset(self) -> None:
        self._stage = None

    def overdue(self, now: float, stage: Stage, count: int) -> bool:
        """Whether `stage` has lasted too long. `count` are bytes: still unsent while writing, received otherwise."""
        if stage != self._stage or (stage == "write" and count < self._count):
            self._restart(now, stage, count)
            return False
        lasted = now - self._since
        if stage == "write":
            return lasted >= self._limits.write
        if stage == "head":
            return lasted >= self._limits.head
        if lasted < self._limits.slow_window:
            return False
        too_slow = count - self._count < self._limits.slow_rate * lasted
        self._restart(now, stage, count)
        return too_slow

    def _restart(self, now: float, stage: Stage, count: int) -> None:
        self._stage, self._since, self._count = stage, now, count
