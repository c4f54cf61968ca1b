"""Who owned which server and when, as the record said."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import psycopg

LOOK: Final = 0.1  # seconds between two looks
PATIENCE: Final = 1.0
FOREVER: Final = 1e9

_WHO = """
SELECT p.server, n.id, p.fence FROM instances p
LEFT JOIN nodes n ON n.id = p.node AND n.epoch = p.epoch
    AND n.lease_until > extract(epoch FROM clock_timestamp())
"""


@dataclass
class Tenure:
    """A node owned a server, from when to when we saw it."""

    server: str
    node: str
    fence: int
    since: float
    until: float = FOREVER


class Watcher:
    def __init__(self, url: str) -> None:
        self.tenures: list[Tenure] = []
        self._url = url
        self._now: dict[str, Tenure] = {}

    def owner(self, server: str) -> str | None:
        """The node that owns a server, when we last looked."""
        found = self._now.get(server)
        return found.node if found is not None else None

    def owners(self) -> dict[str, str]:
        return {server: tenure.node for server, tenure in self._now.items()}

    def begin_anew(self) -> None:
        """Forget all tenures that are over."""
        self.tenures = list(self._now.values())

    async def run(self) -> None:
        while True:
            with suppress(psycopg.Error, TimeoutError, OSError):
                async with asyncio.timeout(PATIENCE):
                    db = await psycopg.AsyncConnection.connect(self._url, autocommit=True)
                async with db:
                    await self._look_on(db)
            await asyncio.sleep(LOOK)

    async def _look_on(self, db: psycopg.AsyncConnection[tuple[str, str | None, int]]) -> None:
        while True:
            async with asyncio.timeout(PATIENCE):
                rows = await (await db.execute(_WHO)).fetchall()
            self._see({server: (node, fence) for server, node, fence in rows if node is not None})
            await asyncio.sleep(LOOK)

    def _see(self, found: dict[str, tuple[str, int]]) -> None:
        at = time.monotonic()
        for server, tenure in list(self._now.items()):
            if found.get(server) != (tenure.node, tenure.fence):
                tenure.until = at
                del self._now[server]
        for server, (node, fence) in found.items():
            if server not in self._now:
                self._now[server] = Tenure(server, node, fence, at)
                self.tenures.append(self._now[server])

    async def until(self, condition: Callable[[], bool], within: float) -> float:
        """Wait until it is so; the seconds it took."""
        began = time.monotonic()
        async with asyncio.timeout(within):
            while not condition():
                await asyncio.sleep(LOOK / 2)
        return time.monotonic() - began


@asynccontextmanager
async def watching(url: str) -> AsyncIterator[Watcher]:
    watcher = Watcher(url)
    task = asyncio.create_task(watcher.run())
    try:
        yield watcher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
