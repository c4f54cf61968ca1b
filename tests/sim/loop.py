"""An event loop with its own clock: time stands still while anything can run, and jumps when nothing can.

There is nothing else in it that could differ between two runs: no sockets, no threads, no wall clock. Futures and tasks
are hashed by the order in which they were made, so sets of them are walked in the same order every time.
"""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")
SPINS: Final = 100_000  # turns of the loop without time passing: something waits by running


class Deadlock(RuntimeError):
    """Nothing can run, and nothing ever will. Says what every task waits for."""


class Spinning(RuntimeError):
    """Tasks run and run, and time does not pass."""


class VirtualLoop(asyncio.BaseEventLoop):
    _scheduled: list[asyncio.TimerHandle]
    _selector: _Nothing

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self._now = start
        self._selector = _Nothing(self)
        self._serial = itertools.count()
        self.complaints: list[str] = []  # uncaught exceptions
        self.set_exception_handler(self._complain)
        self.set_task_factory(_task)

    def time(self) -> float:
        return self._now

    def jump(self) -> None:
        """To the next timer, exactly, so what was set for the same time happens at the same time."""
        self._now = max(self._now, self._scheduled[0].when())

    def serial(self) -> int:
        return next(self._serial)

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(self)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        raise RuntimeError("a thread would make its own time")

    def _complain(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _process_events(self, _: list[Any]) -> None:
        """Nothing to do: no selector reports events."""

    def _write_to_self(self) -> None:
        """Nothing to do: no selector sleeps."""


class _Nothing:
    """In place of a selector: instead of waiting, time passes."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._spins = 0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock(_dump(self._loop))
        if timeout > 0:
            self._loop.jump()
            self._spins = 0
        self._spins += 1
        if self._spins > SPINS:
            self._spins = 0  # for whoever cleans up
            raise Spinning(_dump(self._loop))
        return []


class _Future(asyncio.Future[Any]):
    def __init__(self, loop: VirtualLoop) -> None:
        self._place = loop.serial()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._place


class _Task(asyncio.Task[Any]):
    def __init__(self, coro: Any, *, loop: VirtualLoop, **options: Any) -> None:
        self._place = loop.serial()  # first, because asyncio puts new tasks into a set
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._place


def _task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    assert isinstance(loop, VirtualLoop)
    return _Task(coro, loop=loop, **options)


def _dump(loop: VirtualLoop) -> str:
    text = io.StringIO()
    print(f"at {loop.time():g} s of virtual time:", file=text)
    for task in sorted(asyncio.all_tasks(loop), key=hash):
        task.print_stack(file=text)
    return text.getvalue()


def run(main: Coroutine[Any, Any, T], loop: VirtualLoop | None = None) -> T:
    """Run `main` to its end in virtual time. Raises `Deadlock` and `Spinning`."""
    chosen = loop if loop is not None else VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: chosen) as runner:
        return runner.run(main)
