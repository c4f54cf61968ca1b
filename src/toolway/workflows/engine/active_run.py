"""Workflow run that this process executes now, and the signal that wakes it."""

from __future__ import annotations

import asyncio

from toolway.types import Json


class Signal:
    """Event that one coroutine waits for. Cheaper than `asyncio.Event` with a timeout: no task."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self.notify()

    def clear(self) -> None:
        self._is_set = False

    def notify(self, _: object = None) -> None:
        """Wake the waiting coroutine, if any, without setting the signal."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout: float | None) -> None:
        """Wait until the signal is set or notified, at most `timeout` seconds."""
        if self._is_set:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout, self.notify) if timeout is not None else None
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()


class ActiveRun:
    """A workflow run that this process executes: its task, wake-up signal and lease number."""

    def __init__(self, id: str, asks: list[Json]) -> None:
        self.id = id
        self.asks = asks  # when it was taken
        self.wake = Signal()
        self.is_due_again = False  # a message has arrived, or its time
        self.is_taken_again = False  # under a new lease: it is loaded again once the old task has ended
        self.life = 0  # of the process when it loaded the run
        self.task: asyncio.Task[None] | None = None

    def clear(self) -> None:
        """Reset the wake-up signal. Read the messages of the run after this, so none is missed."""
        self.wake.clear()
        self.is_due_again = False
