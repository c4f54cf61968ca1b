"""What one client may cost before it has been answered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpLimits:
    connections: int = 20_000  # open at once; one more closes one of a stranger, or the one that has been idle longest
    head: int = 32 * 1024  # bytes of a request's head
    fields: int = 100  # headers in it
    head_time: float = 10.0  # seconds from its first byte to its end
    body: int = 4 * 1024 * 1024  # bytes of a request's body
    bodies: int = 256 * 1024 * 1024  # bytes of all bodies that are being read or answered
    slow: float = 1024.0  # a body that comes with fewer bytes a second, over `slow_window`, has stopped
    slow_window: float = 10.0
    idle: float = 75.0  # seconds an unused connection is kept
    unread: int = 4 * 1024 * 1024  # bytes not yet taken by the client, beyond which nothing more is written to it
    unread_by_all: int = 512 * 1024 * 1024  # the same for all clients; beyond, those with most to take are left
    stuck: float = 30.0  # seconds in which a client that has much to take must have taken some of it, as fast as `slow`
    pipelined: int = 16  # requests that came before the one before them was answered
    linger: float = 2.0  # seconds in which a client that was refused may read why, whatever it still sends
    sweep: float = 1.0  # seconds between two looks at who is slow
