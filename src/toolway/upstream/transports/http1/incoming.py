"""A response as far as it has arrived: what a connection fills and a reader empties."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from toolway.upstream.transports.http1.limits import HttpFault


class Carrier(Protocol):
    """The connection, as the reader of a response sees it."""

    def abort(self) -> None: ...

    def linger(self) -> None: ...

    def taken(self) -> None: ...


class Incoming:
    """The state of one response. Only one reader waits for it."""

    __slots__ = (
        "_waiter",
        "chunks",
        "complete",
        "connection",
        "fault",
        "headers",
        "heard",
        "metered",
        "received",
        "sent",
        "status",
        "unread",
    )

    def __init__(self) -> None:
        self.heard = False  # a byte has come
        self.status = 0  # zero until the head is complete
        self.headers: dict[str, str] = {}
        self.chunks: deque[bytes] = deque()
        self.unread = 0  # bytes in `chunks`
        self.received = 0  # body bytes in all
        self.metered = False  # the slow-body rule applies
        self.complete = False
        self.fault: HttpFault | None = None
        self.sent = 0
        self.connection: Carrier | None = None  # while the exchange is under way
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        """Until something has changed."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
