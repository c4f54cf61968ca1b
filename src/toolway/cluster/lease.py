"""This node's lease: acquire, renew and give up in time (rules in `lease_clock.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from toolway.cluster.db.nodes import NodeInfo, NodeStore
from toolway.cluster.lease_clock import LeaseClock, LeaseSettings
from toolway.cluster.queries import LogThrottle, QueryRunner

DATABASE_RETRY_DELAY_S: Final = 0.5  # seconds after a failed database query


class Lease:
    """This node's lease in the database. While it is valid, the node may own server instances.

    `on_acquired` and `on_lost` are called synchronously and must not block. `load()` returns the total cost of owned
    instances, which is published with each renewal.
    """

    def __init__(
        self,
        info: NodeInfo,
        nodes: NodeStore,
        run_query: QueryRunner,
        now: Callable[[], float],
        settings: LeaseSettings,
        *,
        on_acquired: Callable[[], None],
        on_lost: Callable[[], None],
        load: Callable[[], int],
    ) -> None:
        self._info = info
        self._nodes = nodes
        self._run_query = run_query
        self._now = now
        self._settings = settings
        self._on_acquired = on_acquired
        self._on_lost = on_lost
        self._load = load
        self._clock = LeaseClock(settings)
        self._renewal_log = LogThrottle("cluster database unavailable, lease not renewed")

    @property
    def epoch(self) -> int | None:
        """Number of the current lease, judged by this node's clock; None without a lease.

        Every new lease in the cluster has a higher number. Without a lease, the node owns no servers.
        """
        return self._clock.epoch(self._now())

    async def run(self) -> None:
        """Acquire and periodically renew the lease until cancelled; retries after database errors."""
        while True:
            requested_at = self._now()
            try:
                await self._renew(self._clock.epoch(requested_at), requested_at)
                self._renewal_log.log_recovery()
                wait = self._settings.renew_interval if self.epoch is not None else 0.0
            except Exception as exc:
                self._renewal_log.log_failure(exc)
                wait = min(DATABASE_RETRY_DELAY_S, self._settings.renew_interval)
            if not await self._sleep_while_held(wait):
                self._on_lost()

    async def release(self) -> None:
        """End the lease of this node.

        If the database is reachable, other nodes can claim its server instances at once.
        """
        epoch = self.epoch
        self._clock.end()
        if epoch is not None:
            with suppress(Exception):
                await self._run_query(self._nodes.leave(self._info.id, epoch))

    async def _renew(self, epoch: int | None, requested_at: float) -> None:
        if epoch is None:
            self._on_lost()
            self._clock.start(await self._run_query(self._nodes.join(self._info)), requested_at)
            self._on_acquired()
        elif await self._run_query(self._nodes.renew(self._info.id, epoch, self._load())):
            self._clock.extend(requested_at, self._now())
        else:
            self._clock.end()

    async def _sleep_while_held(self, seconds: float) -> bool:
        """Sleep `seconds`, or less if the lease ends first. Return False without a lease.

        Waking at the end of the lease lets this node stop owned servers in time.
        """
        await asyncio.sleep(max(0.0, min(seconds, self._seconds_left()) if self._seconds_left() > 0 else seconds))
        return self.epoch is not None

    def _seconds_left(self) -> float:
        return self._clock.expires_at() - self._now()
