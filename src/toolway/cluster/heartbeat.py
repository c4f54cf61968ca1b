"""Failure detector: a node is considered dead if its heartbeats stop.

Rule 1. A node is lost after HEARTBEAT_TIMEOUT_S seconds without a heartbeat in which one could have been received.
Rule 2. A gap on our side does not count: neither while our own connection is down, nor while our own event loop was
        blocked. After a block, heartbeats may wait in a buffer, and are read first.
Rule 3. Subscribing costs messages, so a listener stays open for a while after its last user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

HEARTBEAT_INTERVAL_S: Final = 0.25  # seconds between two heartbeats
HEARTBEAT_TIMEOUT_S: Final = 0.8  # seconds without a heartbeat after which a node is considered dead or hung
UNUSED_LISTENER_TIMEOUT_S: Final = 10.0  # seconds after which an unused listener unsubscribes


class HeartbeatClock:
    """Measures the time since a node's last heartbeat. No I/O: the time is an argument.

    Time in which no heartbeat could arrive, such as without a NATS connection, does not count.
    """

    def __init__(self, now: float) -> None:
        self._last_heartbeat = now
        self._check_due = now  # time for which the next check was scheduled

    def record_heartbeat(self, now: float) -> None:
        """Record a heartbeat of the watched node, received at `now`."""
        self._last_heartbeat = max(self._last_heartbeat, now)

    def seconds_silent(self, now: float) -> float:
        """Return the seconds since the last heartbeat, not counting time when none could arrive."""
        return now - self._last_heartbeat

    def check(self, now: float, disconnected: bool) -> float:
        """Return the seconds until the next check, or 0 if the node's heartbeat timeout has passed.

        `disconnected` means that no heartbeat could be received since the last check.
        """
        late = max(0.0, now - self._check_due)
        self._last_heartbeat = now if disconnected else min(now, self._last_heartbeat + late)
        if late >= HEARTBEAT_INTERVAL_S:
            self._last_heartbeat = max(
                self._last_heartbeat, now - HEARTBEAT_TIMEOUT_S + HEARTBEAT_INTERVAL_S
            )  # heartbeats received since then are still unread
        left = self._last_heartbeat + HEARTBEAT_TIMEOUT_S - now
        if left <= 0:
            self._check_due = now + HEARTBEAT_INTERVAL_S
            return 0.0
        wait = min(left, HEARTBEAT_INTERVAL_S)
        self._check_due = now + wait
        return wait


class Heartbeats(Protocol):
    """Subscription to one other node's heartbeats; measures the time since the last one."""

    @property
    def seconds_silent(self) -> float:
        """Return the seconds without a heartbeat, not counting time when none could arrive."""
        ...


class HeartbeatListener:
    """NATS subscription to one other node's heartbeats.

    `client()` returns the NATS client; None until NATS was reached for the first time.
    """

    def __init__(self, client: Callable[[], Client | None], subject: str, on_closed: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._subject = subject
        self._on_closed = on_closed
        self._clock = HeartbeatClock(self._loop.time())
        self._last_used = self._loop.time()
        self._subscription: Any = None
        self._subscription_task = asyncio.ensure_future(self._subscribe())
        self._closed = False
        self._timer = self._loop.call_later(HEARTBEAT_INTERVAL_S, self._check)
        self.users = 0

    async def wait_subscribed(self) -> None:
        """Wait until the first attempt to subscribe has succeeded or failed."""
        await asyncio.shield(self._subscription_task)

    @property
    def seconds_silent(self) -> float:
        """Return the seconds without a heartbeat, not counting time without a NATS connection."""
        return self._clock.seconds_silent(self._loop.time())

    async def close(self) -> None:
        """Unsubscribe from the heartbeats of the node."""
        self._stop()
        self._subscription_task.cancel()
        await asyncio.gather(self._subscription_task, return_exceptions=True)
        await self._unsubscribe()

    async def _subscribe(self) -> None:
        client = self._client()
        if client is not None:
            with suppress(NatsError, OSError):
                self._subscription = await client.subscribe(self._subject, cb=self._on_heartbeat)
                self._clock.record_heartbeat(self._loop.time())

    async def _unsubscribe(self) -> None:
        if self._subscription is not None:
            with suppress(NatsError, OSError):
                await self._subscription.unsubscribe()

    async def _on_heartbeat(self, message: Msg) -> None:
        self._clock.record_heartbeat(self._loop.time())

    def _check(self) -> None:
        now = self._loop.time()
        if self._subscription is None and self._subscription_task.done():
            self._subscription_task = asyncio.ensure_future(self._subscribe())
        client = self._client()
        disconnected = self._subscription is None or client is None or not client.is_connected
        wait = self._clock.check(now, disconnected)
        if self.users:
            self._last_used = now
        if now - self._last_used >= UNUSED_LISTENER_TIMEOUT_S:
            self._stop()
            self._subscription_task = asyncio.ensure_future(self._unsubscribe())
        else:
            self._timer = self._loop.call_later(wait or HEARTBEAT_INTERVAL_S, self._check)

    def _stop(self) -> None:
        self._timer.cancel()
        if not self._closed:
            self._closed = True
            self._on_closed()
