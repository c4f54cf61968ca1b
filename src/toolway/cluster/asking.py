"""Questions to the record. One is never cancelled, only no longer waited for: one that is broken off in the middle
costs a connection. The database and the network end it in bounded time (`record/engine.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

PATIENCE: Final = 5.0  # seconds at the end for questions that nobody waits for

T = TypeVar("T")


class Asking:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._asked: set[asyncio.Future[Any]] = set()

    async def __call__(self, question: Coroutine[Any, Any, T]) -> T:
        """The answer. Raises what the record raises, and `TimeoutError`; then the question goes on without us."""
        asked = asyncio.ensure_future(question)
        self._asked.add(asked)
        asked.add_done_callback(self._asked.discard)
        asked.add_done_callback(lambda done: done.cancelled() or done.exception())
        async with asyncio.timeout(self._seconds):
            return await asyncio.shield(asked)

    async def wait_ended(self) -> None:
        if self._asked:
            await asyncio.wait(self._asked, timeout=PATIENCE)
