"""Notices an event loop that stands still, and says where.

Work that blocks the loop, anywhere in the program, stops every call, every deadline and every health check, and none of
them can say so. A thread can. It only looks and tells: it interrupts nothing and ends nothing, and a call costs it
nothing. The loop leaves a sign twice in a while; the thread wakes up when a sign is overdue.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from toolway.events import Event, LoopResumed, LoopStalled

_SIGNS: Final = 10  # that the loop leaves in the time of the limit
_FRAMES: Final = 20  # of the stack that are told
_UNSEEN: Final = "(not seen: the process was stopped, or something held the interpreter itself)"
_log = logging.getLogger(__name__)


class Watchdog:
    """Tells of a loop that has not turned for `limit` seconds; zero watches nothing. `tell` is called in the loop."""

    def __init__(
        self, tell: Callable[[Event], None], limit: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._limit = limit
        self._clock = clock
        self._sign = 0.0  # when the loop was last seen turning
        self._told = False  # it is known that it stands still
        self._idle = False  # it stands still because nobody runs it
        self._over = threading.Event()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch the loop that runs now."""
        if self._limit:
            self._loop = asyncio.get_running_loop()
            self._loop_thread = threading.get_ident()
            self._sign = self._clock()
            self._beat()
            threading.Thread(target=self._watch, name="toolway watchdog", daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()

    # -- in the loop --------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        now = self._clock()
        stood, self._sign = now - self._sign, now
        told, idle = self._told, self._idle
        self._told = self._idle = False
        if stood >= self._limit and not idle:
            if not told:
                self._tell(_stalled(stood, _UNSEEN))
            _log.warning("the event loop turns again, after %.1f s", stood)
            self._tell(LoopResumed("", stood))
        self._timer = self._loop.call_later(self._limit / _SIGNS, self._beat)

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        pause, asked = self._limit, self._clock()
        while not self._over.wait(pause) and not self._loop.is_closed():
            late = self._clock() - asked - pause > self._limit / 2
            pause, asked = self.look(late=late), self._clock()

    def look(self, *, late: bool = False) -> float:
        """Tell of a sign that is overdue; the seconds until the next look. `late` says that this thread itself did not
        run in time: then the loop may just not have had its chance yet."""
        overdue = self._clock() - self._sign - self._limit
        if overdue < 0:
            return -overdue
        if not self._loop.is_running():
            self._idle = True
        elif not self._told and not late:
            self._told = True
            fact = _stalled(overdue + self._limit, self._where())
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._tell, fact)
        return self._limit / _SIGNS

    def _where(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        return "".join(traceback.format_stack(frame, _FRAMES)) if frame is not None else _UNSEEN


def _stalled(seconds: float, where: str) -> LoopStalled:
    fact = LoopStalled("", seconds, where)
    _log.warning("%s It stands in:\n%s", fact.why, where)
    return fact
