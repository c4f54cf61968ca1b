"""Something that has happened or not, and that can be waited for: `asyncio.Event` in a tenth of its memory.

An upstream has a dozen of them, most of which nobody ever waits for, and there may be thousands of upstreams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Flag:
    __slots__ = ("_set", "_waiting")

    def __init__(self) -> None:
        self._set = False
        self._waiting: set[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        """It has happened; all that wait go on."""
        self._set = True
        for each in self._waiting or ():
            if not each.done():
                each.set_result(None)

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> None:
        """Return when it has happened, at once where it has."""
        if self._set:
            return
        if self._waiting is None:
            self._waiting = set()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(turn)
        try:
            await turn
        finally:
            self._waiting.discard(turn)
            if not self._waiting:
                self._waiting = None


class Interrupted(Exception):
    """A flag was set before the work was done."""


async def unless(flag: Flag, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises `Interrupted` as soon as the flag is set."""
    loop = asyncio.get_running_loop()
    task, end = loop.create_task(work), loop.create_task(flag.wait())
    try:
        await asyncio.wait({task, end}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Interrupted
    finally:
        for each in (task, end):
            each.cancel()
        await asyncio.gather(task, end, return_exceptions=True)
