"""Writes that the record did not take, made when it is back.

Each is one statement that may be made twice, and at any later time: it says itself when it no longer applies.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

from sqlalchemy import Executable
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.model import Json

MOST: Final = 10_000  # that wait
PAUSES: Final = (0.2, 0.5, 1.0, 2.0, 5.0)  # seconds between two tries; the last one again and again
LAST_TRY: Final = 2.0  # seconds at the end
log = logging.getLogger("toolway.cluster")


class Later:
    def __init__(self, engine: AsyncEngine, most: int = MOST) -> None:
        self._engine = engine
        self._most = most
        self._waiting: deque[tuple[Executable, Json]] = deque()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, statement: Executable, values: Json) -> bool:
        """Whether there was room for it."""
        if len(self._waiting) >= self._most:
            return False
        self._waiting.append((statement, values))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._ended)
        return True

    async def close(self) -> None:
        """Try once more, in bounded time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        try:
            async with asyncio.timeout(LAST_TRY):
                await self._write_all()
        except Exception as exc:
            log.warning("%d outcomes could not be written: %s", len(self._waiting), type(exc).__name__)

    async def _run(self) -> None:
        tried = 0
        while self._waiting:
            await asyncio.sleep(PAUSES[min(tried, len(PAUSES) - 1)])
            try:
                await self._write_all()
            except Exception as exc:
                if not tried:
                    log.warning("the record takes no outcomes now, they wait: %s", type(exc).__name__)
                tried += 1

    async def _write_all(self) -> None:
        while self._waiting:
            async with self._engine.begin() as db:
                await db.execute(*self._waiting[0])
            self._waiting.popleft()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
