"""Callers who wait for a server to be ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from toolway.errors import CallError
from toolway.upstream.session import Session


class Waiters:
    __slots__ = ("_all",)

    def __init__(self) -> None:
        self._all: set[asyncio.Future[Session]] = set()

    def __len__(self) -> int:
        return len(self._all)

    async def wait(self) -> Session:
        """The session, when there is one. Raises `CallError`."""
        waiter: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self._all.add(waiter)
        try:
            return await waiter
        finally:
            self._all.discard(waiter)

    def give(self, session: Session) -> None:
        for waiter in self._all:
            if not waiter.done():
                waiter.set_result(session)

    def refuse(self, error: Callable[[], CallError]) -> None:
        """Tell each that there will be none; an error is one caller's alone."""
        for waiter in self._all:
            if not waiter.done():
                waiter.set_exception(error())
                waiter.exception()  # whoever waited may be gone
