"""What one client may cost before it has been answered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpLimits:
    connections: int = 20_000  # open at once; one more closes the one that has been idle longest
    head: int = 32 * 1024  # bytes of a request's head
    fields: int = 100  # headers in it
    head_time: float = 10.0  # seconds from its first byte to its end
    body: int = 4 * 1024 * 1024  # bytes of a request's body
    bodies: int = 256 * 1024 * 1024  # bytes of all bodies that are being read or answered
    slow: float = 1024.0  # a body that comes with fewer bytes a second, over `slow_window`, has stopped
    slow_window: float = 10.0
    idle: float = 75.0  # seconds an unused connection is kept
    unread: int = 4 * 1024 * 1024  # bytes written and not yet taken by the client
    stuck: float = 30.0  # seconds in which a client that has much to take takes nothing
    pipelined: int = 16  # requests that came before the one before them was answered
