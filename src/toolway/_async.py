"""Asyncio helpers: waiting for several tasks, work in slices or in a thread, a light event, cheap timers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from toolway.errors import CallTimeout

T = TypeVar("T")


def run_at_once(steps: Generator[None, None, T]) -> T:
    """Run a generator that yields after each piece of work, without pausing; return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("T", end.value)


async def run_in_slices(steps: Generator[None, None, T]) -> T:
    """Run a generator that yields after each piece of work, letting other tasks run in between.

    Return its result.
    """
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("T", end.value)
        await asyncio.sleep(0)


async def gather_all(work: Iterable[Awaitable[None]]) -> None:
    """Wait for all awaitables, even if the caller is cancelled.

    Nothing is cancelled, so each awaitable must end by itself. Their exceptions are ignored.
    """
    gathered = asyncio.gather(*work, return_exceptions=True)
    try:
        await asyncio.shield(gathered)
    except asyncio.CancelledError:
        await gathered
        raise


async def wait_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait until all tasks have ended; a cancelled caller does not cancel the tasks.

    Their exceptions are ignored.
    """
    await asyncio.shield(asyncio.gather(*tasks, return_exceptions=True))


async def with_timeout(timeout: float | None, work: Awaitable[Any], subject: str) -> None:
    """Wait for `work`, at most `timeout` seconds; None means no limit.

    After that, `work` is cancelled and `CallTimeout` is raised, with `subject` in its message.
    """
    try:
        async with asyncio.timeout(timeout):
            await work
    except TimeoutError:
        raise CallTimeout(f"{subject} was not ready within {timeout:g} s", phase="start") from None


async def wait_until_settled(timeout: float | None, futures: Sequence[asyncio.Future[None]]) -> None:
    """Wait until all futures are done or `timeout` has passed, then cancel the rest."""
    if not futures:
        return
    try:
        await asyncio.wait(futures, timeout=timeout)
    finally:  # even after cancellation: otherwise they keep running and log unretrieved exceptions
        for future in futures:
            future.cancel()
            future.add_done_callback(_consume_exception)
    await asyncio.gather(*futures, return_exceptions=True)


def _consume_exception(done: asyncio.Future[None]) -> None:
    """Retrieve a future's exception, so asyncio does not log it."""
    if not done.cancelled():
        done.exception()


class SharedTask:
    """Runs one task at a time. Callers who want its work while it runs share its result."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work` as a task, or wait for the running one. Raises what the task raises.

        The task survives the cancellation of a waiter, because others may wait for it.
        """
        if self._task is None:
            self._task = asyncio.create_task(work())
            self._task.add_done_callback(self._on_done)
        await asyncio.shield(self._task)

    async def wait(self) -> None:
        """Wait until no task runs. Its exception is ignored."""
        while self._task is not None:
            await asyncio.wait({self._task})

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        _consume_exception(task)


# -------------------- flag
# Lightweight replacement for `asyncio.Event` that uses a tenth of its memory.
#
# An upstream has a dozen of them, most of which are never awaited, and there may be thousands of upstreams.


class LightEvent:
    """Like `asyncio.Event`, but cheaper: it only collects waiters once a task waits."""

    __slots__ = ("_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._waiters: set[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        """Set the event and wake all tasks that wait for it."""
        self._set = True
        for each in self._waiters or ():
            if not each.done():
                each.set_result(None)

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> None:
        """Wait until the event is set; return at once if it is."""
        if self._set:
            return
        if self._waiters is None:
            self._waiters = set()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._forget(waiter)

    def future(self) -> asyncio.Future[None]:
        """Return a future that is done when the event is set, for code that waits without a task.

        Cancel it when you no longer need it.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._set:
            waiter.set_result(None)
            return waiter
        if self._waiters is None:
            self._waiters = set()
        self._waiters.add(waiter)
        waiter.add_done_callback(self._forget)
        return waiter

    def _forget(self, waiter: asyncio.Future[None]) -> None:
        if self._waiters is not None:
            self._waiters.discard(waiter)
            if not self._waiters:
                self._waiters = None


class Interrupted(Exception):
    """Raised by `wait_unless` if the event was set before the awaited work was done."""


async def wait_unless(event: LightEvent, work: Coroutine[Any, Any, T]) -> T:
    """Await `work` and return its result, unless `event` is set first.

    If the event is set first, `work` is cancelled and `Interrupted` is raised.
    """
    loop = asyncio.get_running_loop()
    task, interrupt = loop.create_task(work), event.future()
    try:
        both: tuple[asyncio.Future[Any], ...] = (task, interrupt)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Interrupted
    finally:
        interrupt.cancel()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# -------------------- aside
# Blocking work in a daemon thread that never delays the exit of the interpreter.


def run_in_daemon_thread(work: Callable[..., T], *args: Any) -> asyncio.Future[T]:
    """Run `work` in a daemon thread and return a future of its result.

    The thread never delays interpreter exit.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(value: T | None, failure: Exception | None) -> None:
        if future.done():
            return
        if failure is not None:
            future.set_exception(failure)
        else:
            future.set_result(cast(T, value))

    def run() -> None:
        value, failure = None, None
        try:
            value = work(*args)
        except Exception as exc:
            failure = exc
        with contextlib.suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(deliver, value, failure)

    threading.Thread(target=run, name="toolway-dial", daemon=True).start()
    return future


# -- timers ------------------------------------------------------------------------------------------------------------

PausedSeconds = Callable[[float], float]  # loop time -> seconds until then that do not count
MAX_CANCELLED: Final = 100  # cancelled timers that may stay in the heap, regardless of their share


class Timer:
    """Context manager that raises `TimeoutError` when time runs out before its block is done.

    It cancels the work of its task at the deadline, like `asyncio.timeout_at`.
    """

    __slots__ = ("_cancelling", "_granted_seconds", "_paused_seconds", "_timers", "expired", "task")

    def __init__(self, timers: Timers, task: asyncio.Task[object], paused_seconds: PausedSeconds | None) -> None:
        self._timers = timers
        self._cancelling = task.cancelling()
        self.task: asyncio.Task[object] | None = task  # to be cancelled; None when its work is done
        self.expired = False
        self._paused_seconds = paused_seconds
        self._granted_seconds = 0.0

    def extra_time(self, now: float) -> float:
        """Return the pause time, in seconds, not yet granted to the timer, and mark it as granted."""
        if self._paused_seconds is None:
            return 0.0
        extra = self._paused_seconds(now) - self._granted_seconds
        self._granted_seconds += extra
        return extra

    def __enter__(self) -> None:
        """Do nothing: the timer is already running."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        task, self.task = self.task, None
        self._paused_seconds = None  # it belongs to the call, which the heap must not keep
        if not self.expired:
            self._timers.count_cancelled()
        # If the task was also cancelled from elsewhere, that cancellation wins.
        elif task is not None and task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error


class Timers:
    """All timers of one event loop, kept in a heap and served by a single timer of the loop.

    Nearly every timer is cancelled before it expires, so starting one must cost almost nothing; a loop timer per call
    costs more.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heap: list[tuple[float, int, Timer]] = []  # a heap; cancelled timers stay in it for a while
        self._serial = count()
        self._cancelled = 0  # cancelled timers in the heap
        self._loop_timer: asyncio.TimerHandle | None = None
        self._fires_at = 0.0

    def start(self, when: float, paused_seconds: PausedSeconds | None = None) -> Timer:
        """Start a timer for the event loop time `when`. Enter it with `with` at once.

        Expiry is delayed by the seconds that `paused_seconds` returns.
        """
        # Finding the running loop costs a system call, and it is nearly always the same loop.
        task = asyncio.current_task(self._loop) if self._loop is not None else None
        if task is None:
            task = self._switch_loop()
        timer = Timer(self, task, paused_seconds)
        heappush(self._heap, (when, next(self._serial), timer))
        if self._loop_timer is None or when < self._fires_at:
            self._schedule()
        return timer

    def __len__(self) -> int:
        return len(self._heap)

    def _switch_loop(self) -> asyncio.Task[object]:
        """Switch to the event loop of the running task; drop the timers of the previous, ended loop."""
        task = asyncio.current_task()
        assert task is not None, "only a task can be cancelled"
        self._loop, self._heap, self._cancelled, self._loop_timer = task.get_loop(), [], 0, None
        return task

    def count_cancelled(self) -> None:
        """Count a timer that ended before it expired.

        If the heap holds too many of these, rebuild the heap without them.
        """
        self._cancelled += 1
        if self._cancelled > MAX_CANCELLED and 2 * self._cancelled > len(self._heap):
            self._heap = [each for each in self._heap if each[2].task is not None]
            heapify(self._heap)
            self._cancelled = 0

    def _schedule(self) -> None:
        """Schedule the single event-loop timer for the earliest expiry in the heap."""
        if self._loop_timer is not None:
            self._loop_timer.cancel()
            self._loop_timer = None
        if self._heap and self._loop is not None:
            self._fires_at = self._heap[0][0]
            self._loop_timer = self._loop.call_at(self._fires_at, self._fire)

    def _fire(self) -> None:
        assert self._loop is not None
        now = max(self._fires_at, self._loop.time())
        while self._heap and self._heap[0][0] <= now:
            timer = heappop(self._heap)[2]
            if timer.task is None:
                self._cancelled -= 1
            elif (extra := timer.extra_time(now)) > 0:
                heappush(self._heap, (now + extra, next(self._serial), timer))
            else:
                timer.expired = True
                timer.task.cancel()
        self._loop_timer = None
        self._schedule()


def settle_future(future: asyncio.Future[None], error: Exception | None) -> None:
    """Complete a future with an error, or with the result None, unless it is done already.

    An error is not logged if nothing awaits the future.
    """
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # so an error without a waiter is not logged
