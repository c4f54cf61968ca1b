"""A store of idempotency keys that takes its time, and is not always there."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from tests.sim.faults import ticks
from toolway.middleware.idempotency import IdempotencyKey, IdempotencyRecord, MemoryIdempotencyStore
from toolway.types import Json


class StoreDown(Exception):
    """The store is not there."""


class SlowKeys:
    def __init__(self, dice: random.Random, now: Callable[[], float]) -> None:
        self._dice = dice
        self._keys = MemoryIdempotencyStore(now)

    async def claim(self, id: IdempotencyKey, fingerprint: str, call: str) -> IdempotencyRecord | None:
        await self._way()
        return await self._keys.claim(id, fingerprint, call)

    async def finish(self, id: IdempotencyKey, outcome: Json) -> None:
        await self._way()
        await self._keys.finish(id, outcome)

    async def mark_unknown(self, id: IdempotencyKey) -> None:
        await self._way()
        await self._keys.mark_unknown(id)

    async def release(self, id: IdempotencyKey) -> None:
        await self._way()
        await self._keys.release(id)

    async def _way(self) -> None:
        await asyncio.sleep(ticks(self._dice, 0, 4))
        if self._dice.random() < 0.02:
            raise StoreDown
