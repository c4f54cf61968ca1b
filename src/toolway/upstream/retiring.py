"""Upstreams that were removed or replaced: what they were given runs to its end, and then they are stopped.

A new definition takes new calls at once. It starts beside an old one that still works, and after one that does not:
two processes at once may want the same file or port, and nobody gains by it where the old one has nothing left to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from toolway.upstream.private import Aside
from toolway.upstream.surroundings import Surroundings
from toolway.upstream.upstream import Upstream

WITHIN: Final = 30.0  # seconds that calls under way may take, unless their own deadline comes first
LOOK: Final = 0.05  # seconds between two looks at what is left; an event would cost every call something


class Retiring:
    def __init__(self, around: Surroundings) -> None:
        self._around = Aside(around)  # what happens to them is no news about the server of that name
        self._leaving: dict[asyncio.Task[None], Upstream] = {}

    def begin(self, upstreams: Iterable[Upstream]) -> list[asyncio.Task[None]]:
        """Let these go; what will be done when they are gone."""
        return [self._begin(upstream) for upstream in upstreams]

    def _begin(self, upstream: Upstream) -> asyncio.Task[None]:
        upstream.retire(self._around)
        task = asyncio.get_running_loop().create_task(self._end(upstream))
        self._leaving[task] = upstream
        task.add_done_callback(self._leaving.pop)
        return task

    async def _end(self, upstream: Upstream) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + WITHIN
        while upstream.busy and not upstream.stopping and loop.time() < until:  # noqa: ASYNC110 - see LOOK
            await asyncio.sleep(LOOK)
        await upstream.stop()

    def before(self, name: str) -> asyncio.Task[None] | None:
        """The end of an upstream of this name that has nothing left to do, for its successor to wait for."""
        found = [task for task, upstream in self._leaving.items() if upstream.name == name and not upstream.busy]
        return found[-1] if found else None

    async def close(self) -> None:
        """Stop them all, whatever they do."""
        await asyncio.gather(*(upstream.stop() for upstream in self._leaving.values()), return_exceptions=True)
        await asyncio.gather(*self._leaving, return_exceptions=True)
