"""Alarms: each ends the work of the task that set it when its time has come, unless that work is done before.

One timer of the loop serves all of them. Nearly every alarm is put out unheard, so setting one must cost next to
nothing, and a timer of the loop for each call does not. To whoever uses it, an alarm is `asyncio.timeout_at`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from types import TracebackType
from typing import Final

Pauses = Callable[[float], float]  # given the loop's time: seconds until then that do not count

SLACK: Final = 100  # alarms that were put out and are not swept away yet, whatever their share


class Alarm:
    """Raises `TimeoutError` when it has rung before the work within it was done."""

    __slots__ = ("_alarms", "_cancelling", "_granted", "_pauses", "rang", "task")

    def __init__(self, alarms: Alarms, task: asyncio.Task[object], pauses: Pauses | None) -> None:
        self._alarms = alarms
        self._cancelling = task.cancelling()
        self.task: asyncio.Task[object] | None = task  # whose work it ends; None when that is done
        self.rang = False
        self._pauses = pauses
        self._granted = 0.0

    def more_time(self, now: float) -> float:
        """Seconds that do not count, beyond those that were allowed for already."""
        if self._pauses is None:
            return 0.0
        more = self._pauses(now) - self._granted
        self._granted += more
        return more

    def __enter__(self) -> None:
        """It is set already."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        task, self.task = self.task, None
        if not self.rang:
            self._alarms.put_out()
        # Where somebody else has cancelled the task too, his word counts.
        elif task is not None and task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error


class Alarms:
    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[tuple[float, int, Alarm]] = []  # a heap; what was put out stays in it for a while
        self._serial = count()
        self._out = 0  # how many of them were put out
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0

    def at(self, when: float, pauses: Pauses | None = None) -> Alarm:
        """Set an alarm for the loop's time `when`, to be used with `with` at once. It rings later by the time that
        `pauses` says does not count."""
        # Which loop is running costs a system call to find out, and it is nearly always the same one.
        task = asyncio.current_task(self._loop) if self._loop is not None else None
        if task is None:
            task = self._move()
        alarm = Alarm(self, task, pauses)
        heappush(self._waiting, (when, next(self._serial), alarm))
        if self._timer is None or when < self._rings_at:
            self._wind_up()
        return alarm

    def __len__(self) -> int:
        return len(self._waiting)

    def _move(self) -> asyncio.Task[object]:
        """To the loop of the running task. What was left in a loop that has ended rings no more."""
        task = asyncio.current_task()
        assert task is not None, "only a task can be cancelled"
        self._loop, self._waiting, self._out, self._timer = task.get_loop(), [], 0, None
        return task

    def put_out(self) -> None:
        """One more of the alarms is not needed."""
        self._out += 1
        if self._out > SLACK and 2 * self._out > len(self._waiting):
            self._waiting = [each for each in self._waiting if each[2].task is not None]
            heapify(self._waiting)
            self._out = 0

    def _wind_up(self) -> None:
        """Have the timer ring for the first of the alarms."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and self._loop is not None:
            self._rings_at = self._waiting[0][0]
            self._timer = self._loop.call_at(self._rings_at, self._ring)

    def _ring(self) -> None:
        assert self._loop is not None
        now = max(self._rings_at, self._loop.time())
        while self._waiting and self._waiting[0][0] <= now:
            alarm = heappop(self._waiting)[2]
            if alarm.task is None:
                self._out -= 1
            elif (more := alarm.more_time(now)) > 0:
                heappush(self._waiting, (now + more, next(self._serial), alarm))
            else:
                alarm.rang = True
                alarm.task.cancel()
        self._timer = None
        self._wind_up()
