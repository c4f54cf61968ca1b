"""Those who watch events. A slow one loses events, and is told how many; it never slows anyone else."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

from toolway.events import Event, EventsMissed

BACKLOG: Final = 1000  # events kept for one watcher


class _Watcher:
    def __init__(self, kinds: tuple[type[Event], ...]) -> None:
        self.kinds = kinds
        self.backlog: deque[Event] = deque()
        self.missed = 0
        self.news = asyncio.Event()
        self.over = False

    def put(self, event: Event) -> None:
        if len(self.backlog) >= BACKLOG:
            self.backlog.popleft()
            self.missed += 1
        self.backlog.append(event)
        self.news.set()


class Watchers:
    def __init__(self) -> None:
        self._all: set[_Watcher] = set()
        self._wanted: dict[type[Event], bool] = {}
        self.on_change: Callable[[], None] = lambda: None  # somebody has come or gone

    def want(self, kind: type[Event]) -> bool:
        """Whether anybody watches for events of this kind."""
        known = self._wanted.get(kind)  # asked at the end of every call, and nearly always the same
        if known is None:
            known = self._wanted[kind] = any(issubclass(kind, watcher.kinds) for watcher in self._all)
        return known

    def emit(self, event: Event) -> None:
        for watcher in self._all:
            if isinstance(event, watcher.kinds):
                watcher.put(event)

    def close(self) -> None:
        for watcher in self._all:
            watcher.over = True
            watcher.news.set()

    def watch(self, *kinds: type[Event]) -> AsyncIterator[Event]:
        """Everything of these kinds, or all, from now on, until `close`."""
        watcher = _Watcher(kinds or (Event,))
        self._all.add(watcher)
        self._wanted = {}
        self.on_change()
        return self._events(watcher)

    async def _events(self, watcher: _Watcher) -> AsyncIterator[Event]:
        try:
            while True:
                while watcher.backlog:
                    if watcher.missed:
                        missed, watcher.missed = watcher.missed, 0
                        yield EventsMissed("", missed)
                    yield watcher.backlog.popleft()
                if watcher.over:
                    return
                watcher.news.clear()
                await watcher.news.wait()
        finally:
            self._all.discard(watcher)
            self._wanted = {}
            self.on_change()
