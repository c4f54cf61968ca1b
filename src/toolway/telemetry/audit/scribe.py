"""One thread that does one thing after the other, and tells the event loop when each is done.

Not an executor: the interpreter waits for the threads of those when it ends, and a disk may never answer.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
Done = Callable[[T | None, Exception | None], None]
_Job = Callable[[], None]


class Scribe:
    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def do(self, work: Callable[[], T], done: Done[T]) -> None:
        """Let `work` be done after all that was asked for before, and `done` be told in the loop."""

        def job() -> None:
            result, error = None, None
            try:
                result = work()
            except Exception as exc:
                error = exc
            with suppress(RuntimeError):  # the loop has ended, and nobody wants to know
                self._loop.call_soon_threadsafe(done, result, error)

        self._jobs.put(job)

    async def wait(self, work: Callable[[], T], longest: float) -> T:
        """The same for one who waits. Raises what `work` raises, and `TimeoutError`."""
        future: asyncio.Future[T] = self._loop.create_future()

        def done(result: T | None, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]  # there is one where there is no error

        self.do(work, done)
        async with asyncio.timeout(longest):
            return await future

    def end(self) -> None:
        """No more after what was asked for."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
