"""A large message on its way, piece by piece: few are under way at any time, of one message and of all together.

That keeps every buffer small, ours and those of NATS, and leaves room between pieces for what others have to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from toolway.gateway.replica.over_nats import frames

EACH: Final = 2  # pieces of one message that nobody has acknowledged
ALL: Final = 4  # of all messages of one node
STALL: Final = 3.0  # seconds without an acknowledgement after which nobody is taken to be there

Publish = Callable[[bytes], Awaitable[None]]


class Stalled(Exception):
    """Nobody takes the pieces."""


class Transfer:
    """Of one message."""

    def __init__(self, window: asyncio.Semaphore) -> None:
        self._window = window  # what all messages share
        self._own = asyncio.Semaphore(EACH)
        self._out = 0

    def taken(self) -> None:
        """The other side has one piece more."""
        if self._out:
            self._out -= 1
            self._own.release()
            self._window.release()

    async def send(self, frame: bytes, max_payload: int, publish: Publish, on_last: Callable[[], None]) -> None:
        """Return when all pieces were taken; `on_last` is called before the last one leaves. Raises `Stalled`, and what
        `publish` raises."""
        left = frames.count(frame, max_payload)
        try:
            for piece in frames.pieces(frame, max_payload):
                await self._own_room()
                try:
                    await self._window.acquire()  # whoever holds it up gives it back soon
                except BaseException:
                    self._own.release()
                    raise
                self._out += 1
                left -= 1
                if not left:
                    on_last()
                await publish(piece)
            for _ in range(EACH):
                await self._own_room()
        finally:
            for _ in range(self._out):  # nobody will take them any more
                self.taken()

    async def _own_room(self) -> None:
        try:
            async with asyncio.timeout(STALL):
                await self._own.acquire()
        except TimeoutError:
            raise Stalled from None
