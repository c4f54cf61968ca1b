"""Whether another node lives, by the signs of life that it sends.

Rule 1. A node is lost when nothing was heard of it for SILENCE seconds in which something could have been heard.
Rule 2. What we cannot hear ourselves is not the silence of another: neither while our own connection is down, nor while
        our own event loop stood still. Then signs of life may lie in a buffer, and are read first.
Rule 3. Beginning to listen costs messages, so an ear stays open for a while when nobody waits any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

BEAT: Final = 0.25  # seconds between two signs of life
SILENCE: Final = 0.8  # seconds without one after which a node is taken for dead or hung
LINGER: Final = 10.0  # seconds after which an ear that nobody needs is closed


class Hearing:
    """When something was heard last, as far as that counts. Pure."""

    def __init__(self, now: float) -> None:
        self._heard = now
        self._due = now  # when we meant to look

    def heard(self, now: float) -> None:
        self._heard = max(self._heard, now)

    def quiet(self, now: float) -> float:
        """Seconds since something was heard, as of the last look."""
        return now - self._heard

    def look(self, now: float, deaf: bool) -> float:
        """Seconds until the next look; 0 where it was silent for too long. `deaf`: nothing could be heard."""
        late = max(0.0, now - self._due)
        self._heard = now if deaf else min(now, self._heard + late)
        if late >= BEAT:
            self._heard = max(self._heard, now - SILENCE + BEAT)  # what came meanwhile is yet to be read
        left = self._heard + SILENCE - now
        if left <= 0:
            self._due = now + BEAT
            return 0.0
        wait = min(left, BEAT)
        self._due = now + wait
        return wait


class Ear:
    """What is heard of one node. `client` is there once NATS was reached."""

    def __init__(self, client: Callable[[], Client | None], subject: str, on_end: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._subject = subject
        self._on_end = on_end
        self._hearing = Hearing(self._loop.time())
        self._needed = self._loop.time()
        self._subscription: Any = None
        self._opening = asyncio.ensure_future(self._open())
        self._ended = False
        self._timer = self._loop.call_later(BEAT, self._look)
        self.users = 0

    async def opened(self) -> None:
        await asyncio.shield(self._opening)

    @property
    def quiet(self) -> float:
        """Seconds for which nothing was heard that could have been."""
        return self._hearing.quiet(self._loop.time())

    async def end(self) -> None:
        self._stop()
        self._opening.cancel()
        await asyncio.gather(self._opening, return_exceptions=True)
        await self._close()

    async def _open(self) -> None:
        client = self._client()
        if client is not None:
            with suppress(NatsError, OSError):
                self._subscription = await client.subscribe(self._subject, cb=self._on_beat)
                self._hearing.heard(self._loop.time())

    async def _close(self) -> None:
        if self._subscription is not None:
            with suppress(NatsError, OSError):
                await self._subscription.unsubscribe()

    async def _on_beat(self, message: Msg) -> None:
        self._hearing.heard(self._loop.time())

    def _look(self) -> None:
        now = self._loop.time()
        if self._subscription is None and self._opening.done():
            self._opening = asyncio.ensure_future(self._open())
        client = self._client()
        deaf = self._subscription is None or client is None or not client.is_connected
        wait = self._hearing.look(now, deaf)
        if self.users:
            self._needed = now
        if now - self._needed >= LINGER:
            self._stop()
            self._opening = asyncio.ensure_future(self._close())
        else:
            self._timer = self._loop.call_later(wait or BEAT, self._look)

    def _stop(self) -> None:
        self._timer.cancel()
        if not self._ended:
            self._ended = True
            self._on_end()
