"""How a node keeps up with what others change: it asks the record once a second, and at once when it is told to.

Rule 1. The record is right. News only bring the next look forward, or say early what that look will find.
Rule 2. What was not taken (the record did not answer, or whoever takes it failed) is taken at a later look.
Rule 3. Each kind of change is taken by a task of its own, so a slow one does not hold up the revocation of a key.
Rule 4. However many news come, the record is asked at most ten times a second.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Protocol, TypeAlias

from toolway.cluster.asking import Asking
from toolway.cluster.trouble import Trouble
from toolway.model import Json

LOOK: Final = 1.0  # seconds between two looks at the record
LEAST: Final = 0.1  # seconds between two looks, however much is told
RETRY: Final = 0.5  # seconds after something could not be taken
PATIENCE: Final = 5.0  # seconds for an answer of the record
UNTOLD: Final = 1000  # news that wait to be told; what is more is not told, and found in the record

Take: TypeAlias = Callable[[int], Awaitable[None]]  # it is given the revision up to which it has taken everything
Hear: TypeAlias = Callable[[Json], None]

log = logging.getLogger("toolway.cluster")


class Changes(Protocol):
    async def since(self, revision: int) -> tuple[int, frozenset[tuple[str, str]]]: ...


class Following:
    """`heard` and `gap` are what a `Bus` calls, and `tell` is its own."""

    def __init__(self, changes: Changes, tenant: str) -> None:
        self._changes = changes
        self._tenant = tenant
        self._kinds: dict[str, _Kind] = {}
        self._ears: dict[str, Hear] = {}
        self._asking = Asking(PATIENCE)
        self._trouble = Trouble("what others changed cannot be read")
        self._seen = 0
        self._news = asyncio.Event()
        self._untold: deque[tuple[str, Json]] = deque(maxlen=UNTOLD)
        self._speak = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.looks = 0  # at the record
        self.tell: Callable[[str, Json], Awaitable[bool]] | None = None

    # -- before it begins ---------------------------------------------------------------------------------------------

    def on(self, kind: str, take: Take, hear: Hear | None = None) -> None:
        """Let `take` read what has changed, whenever something of this kind has; `hear` is given the news of it."""
        self._kinds[kind] = _Kind(kind, take)
        if hear is not None:
            self._ears[kind] = hear

    def on_news(self, kind: str, hear: Hear) -> None:
        """The same for what is only told, and stands in no record."""
        self._ears[kind] = hear

    async def start(self) -> None:
        """Take everything, and keep up with it from then on. Raises what the record and those who take raise."""
        await self._look()
        await asyncio.gather(*(kind.take_now(self._seen) for kind in self._kinds.values()))
        loops = [self._keep_looking(), self._keep_telling()]
        self._tasks = [asyncio.create_task(each) for each in loops]
        self._tasks += [asyncio.create_task(kind.keep_taking(lambda: self._seen)) for kind in self._kinds.values()]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._asking.wait_ended()

    # -- news ---------------------------------------------------------------------------------------------------------

    def heard(self, kind: str, body: Json) -> None:
        """Another node told us."""
        hear = self._ears.get(kind)
        if hear is not None:
            try:
                hear(body)
            except Exception:
                log.exception("news could not be understood: %s", kind[:80])
        if kind in self._kinds:
            self._news.set()

    def gap(self) -> None:
        """We may have missed news."""
        self._news.set()

    def say(self, kind: str, body: Json) -> None:
        """Tell the others soon, and look ourselves at what has changed. Does not wait."""
        self._untold.append((kind, body))
        self._speak.set()
        if kind in self._kinds:
            self._news.set()

    async def _keep_telling(self) -> None:
        while True:
            await self._speak.wait()
            self._speak.clear()
            while self._untold:
                kind, body = self._untold.popleft()
                if self.tell is not None:
                    await self.tell(kind, body)

    # -- looks --------------------------------------------------------------------------------------------------------

    async def _keep_looking(self) -> None:
        while True:
            # Not `wait_for`: in Python 3.11 it loses a cancellation that comes together with what it waits for.
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK * random.uniform(0.9, 1.0)):
                    await self._news.wait()
            self._news.clear()
            try:
                await self._look()
                self._trouble.over()
            except Exception as exc:
                self._trouble.say(exc)
                await asyncio.sleep(RETRY)
            await asyncio.sleep(LEAST)

    async def _look(self) -> None:
        newest, changed = await self._asking(self._changes.since(self._seen))
        self.looks += 1
        again, self._seen = newest < self._seen, newest
        for name, kind in self._kinds.items():
            if again:
                kind.taken = 0  # the record was put back from a copy: all that we know may be of another
            if (name, self._tenant) in changed:
                kind.behind.set()


class _Kind:
    """What is taken of one kind of change."""

    def __init__(self, name: str, take: Take) -> None:
        self._take = take
        self._trouble = Trouble(f"a change of {name} could not be taken yet")
        self.taken = 0  # the revision up to which it has all
        self.behind = asyncio.Event()

    async def take_now(self, newest: int) -> None:
        """What is read now is at least as new as what was seen before it."""
        self.behind.clear()
        try:
            await self._take(self.taken)
        except BaseException:
            self.behind.set()
            raise
        self.taken = newest

    async def keep_taking(self, newest: Callable[[], int]) -> None:
        while True:
            await self.behind.wait()
            try:
                await self.take_now(newest())
                self._trouble.over()
            except Exception as exc:
                self._trouble.say(exc)
                await asyncio.sleep(RETRY)
