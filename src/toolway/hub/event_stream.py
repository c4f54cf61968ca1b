"""Event streams for `hub.events()`, and the event loop watchdog.

Each subscriber has a bounded queue. A slow subscriber loses events, and is told how many, but never delays anything.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from toolway.events import Event, EventsMissed, LoopResumed, LoopStalled

Mask = Callable[[str], str]
MAX_BACKLOG: Final = 1000  # events per subscriber
#: Event fields that hold strings from servers. Not so the arguments of calls (`params`): they are as they were sent.
_TEXT_FIELDS: Final = frozenset({"reason", "message", "detail", "hint", "finding", "question", "data", "task"})


class _Subscription:
    def __init__(self, event_types: tuple[type[Event], ...]) -> None:
        self.event_types = event_types
        self.backlog: deque[Event] = deque()
        self.missed = 0
        self.available = asyncio.Event()
        self.closed = False

    def put(self, event: Event) -> None:
        if len(self.backlog) >= MAX_BACKLOG:
            self.backlog.popleft()
            self.missed += 1
        self.backlog.append(event)
        self.available.set()


class EventBroadcaster:
    """Delivers each event to every subscription to its type."""

    def __init__(self) -> None:
        self._subscriptions: set[_Subscription] = set()
        self._subscribed_types: dict[type[Event], bool] = {}
        self.on_subscriptions_changed: Callable[[], None] = lambda: None  # called when a subscription begins or ends

    def has_subscribers(self, event_type: type[Event]) -> bool:
        """Return True if any subscription wants events of this type."""
        known = self._subscribed_types.get(event_type)  # cached: needed at the end of every call
        if known is None:
            known = self._subscribed_types[event_type] = any(
                issubclass(event_type, subscription.event_types) for subscription in self._subscriptions
            )
        return known

    def emit(self, event: Event) -> None:
        for subscription in self._subscriptions:
            if isinstance(event, subscription.event_types):
                subscription.put(event)

    def close(self) -> None:
        for subscription in self._subscriptions:
            subscription.closed = True
            subscription.available.set()

    def subscribe(self, *event_types: type[Event], mask: Mask | None = None) -> AsyncIterator[Event]:
        """Iterate over events of these types (or all) from now until `close`.

        `mask` hides secrets in strings from servers. It runs when the subscriber takes an event, so it does not delay
        calls.
        """
        subscription = _Subscription(event_types or (Event,))
        self._subscriptions.add(subscription)
        self._subscribed_types = {}
        self.on_subscriptions_changed()
        return self._iterate(subscription, mask)

    async def _iterate(self, subscription: _Subscription, mask: Mask | None) -> AsyncIterator[Event]:
        try:
            while True:
                while subscription.backlog:
                    if subscription.missed:
                        missed, subscription.missed = subscription.missed, 0
                        yield EventsMissed("", missed)
                    event = subscription.backlog.popleft()
                    yield mask_event(event, mask) if mask is not None else event
                if subscription.closed:
                    return
                subscription.available.clear()
                await subscription.available.wait()
        finally:
            self._subscriptions.discard(subscription)
            self._subscribed_types = {}
            self.on_subscriptions_changed()


def mask_event(event: Event, mask: Mask) -> Event:
    """Return an event with the secrets in its strings masked, or the same object if it contains none."""
    found = {name: getattr(event, name) for name in event.__struct_fields__ if name in _TEXT_FIELDS}
    masked = {name: _mask_value(value, mask) for name, value in found.items() if value}
    changed = {name: value for name, value in masked.items() if value != found[name]}
    return msgspec.structs.replace(event, **changed) if changed else event


def _mask_value(value: Any, mask: Mask) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {name: _mask_value(each, mask) for name, each in value.items()}
    return [_mask_value(each, mask) for each in value] if isinstance(value, list) else value


# -------------------- watchdog
# Watchdog thread that detects a blocked event loop and reports its stack.
#
# Work that blocks the loop, anywhere in the program, stops every call, deadline and health check, and none of them can
# report it. A thread can. It only observes: it interrupts nothing and does not slow down calls. The loop sends regular
# heartbeats; the thread wakes up when one is overdue.


_BEATS_PER_THRESHOLD: Final = 10  # heartbeats per stall threshold
_BEATS_OF_PAUSE: Final = 5  # heartbeats without which the loop was paused: some are late on a busy machine
#: Rounds of the loop after a pause, and their shortest time. In these it accepts and reads what has arrived.
_ROUNDS_AFTER_PAUSE: Final = 10
_ROUND_S: Final = 0.005
_MAX_STACK_FRAMES: Final = 20  # reported frames of the stack
_NO_STACK: Final = "(no stack: the process was suspended, or something held the interpreter lock)"
_log = logging.getLogger(__name__)


class Watchdog:
    """Detects, in its own thread, that the event loop has been blocked for `stall_threshold` seconds.

    It reports through `emit`, which is called in the loop. A threshold of 0 disables the watchdog.
    """

    def __init__(
        self, emit: Callable[[Event], None], stall_threshold: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._emit = emit
        self._stall_threshold = stall_threshold
        self._clock = clock
        self._shortest_pause = _BEATS_OF_PAUSE * stall_threshold / _BEATS_PER_THRESHOLD
        self._last_beat = 0.0  # time of the last heartbeat
        self._reported = False  # the current stall is reported
        self._loop_stopped = False  # the loop was not running, so silence is not a stall
        self._stopped = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._round_timer: asyncio.TimerHandle | None = None  # during the rounds after a pause
        self._silent_since = 0.0  # loop time: the last heartbeat, or the one before the last pause during those rounds
        #: Loop time from which a request that is read may have arrived in a pause.
        self.calm_until = math.inf

    def start(self) -> None:
        """Start the watchdog thread, unless `stall_threshold` is 0. Call this in the event loop to watch."""
        if self._stall_threshold:
            self._loop = asyncio.get_running_loop()
            self._loop_thread = threading.get_ident()
            self._last_beat = self._clock()
            self._beat()
            threading.Thread(target=self._watch, name="toolway watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self.calm_until = math.inf
        for timer in (self._timer, self._round_timer):
            if timer is not None:
                timer.cancel()

    # -- in the loop --------------------------------------------------------------------------------------------------

    def pause_before(self, now: float) -> float:
        """Return how long the loop was blocked before the loop time `now`, or 0 if it was not.

        The pause includes the few rounds of the loop that follow it. A request read in those rounds may have arrived
        when the pause began, so its client may have been waiting since then.
        """
        return now - self._silent_since if now >= self.calm_until else 0.0

    def _beat(self) -> None:
        now = self._clock()
        silence, self._last_beat = now - self._last_beat, now
        if silence >= self._shortest_pause:
            self._silent_since, self.calm_until = self._loop.time() - silence, -math.inf
            if self._round_timer is not None:
                self._round_timer.cancel()
            self._start_rounds(_ROUNDS_AFTER_PAUSE)
        elif self._round_timer is None:
            self._note_calm()
        reported, was_stopped = self._reported, self._loop_stopped
        self._reported = self._loop_stopped = False
        if silence >= self._stall_threshold and not was_stopped:
            if not reported:
                self._emit(_report_stall(silence, _NO_STACK))
            _log.warning("the event loop runs again, after %.1f s", silence)
            self._emit(LoopResumed("", silence))
        self._timer = self._loop.call_later(self._stall_threshold / _BEATS_PER_THRESHOLD, self._beat)

    def _start_rounds(self, number: int) -> None:
        """Wait until the loop has run this many rounds, however long they take. Only then is the pause over."""
        if number:
            self._round_timer = self._loop.call_later(_ROUND_S, self._start_rounds, number - 1)
        else:
            self._round_timer = None
            self._note_calm()

    def _note_calm(self) -> None:
        self._silent_since = self._loop.time()
        self.calm_until = self._silent_since + self._shortest_pause

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        pause, checked_at = self._stall_threshold, self._clock()
        while not self._stopped.wait(pause) and not self._loop.is_closed():
            late = self._clock() - checked_at - pause > self._stall_threshold / 2
            pause, checked_at = self.check(late=late), self._clock()

    def check(self, *, late: bool = False) -> float:
        """Report a blocked event loop if its heartbeat is overdue, and return the seconds until the next check.

        `late` means that this thread itself ran late, perhaps because the process was suspended. In that case, report
        nothing.
        """
        overdue = self._clock() - self._last_beat - self._stall_threshold
        if overdue < 0:
            return -overdue
        if not self._loop.is_running():
            self._loop_stopped = True
        elif not self._reported and not late:
            self._reported = True
            event = _report_stall(overdue + self._stall_threshold, self._loop_stack())
            with suppress(RuntimeError):  # the loop is already closed
                self._loop.call_soon_threadsafe(self._emit, event)
        return self._stall_threshold / _BEATS_PER_THRESHOLD

    def _loop_stack(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        return "".join(traceback.format_stack(frame, _MAX_STACK_FRAMES)) if frame is not None else _NO_STACK


def _report_stall(seconds: float, stack: str) -> LoopStalled:
    event = LoopStalled("", seconds, stack)
    _log.warning("%s Stack:\n%s", event.summary, stack)
    return event
