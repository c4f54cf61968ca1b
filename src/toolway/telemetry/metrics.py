"""Metrics: hears of every call and counts. What the numbers are called is in `exposition.py`."""

from __future__ import annotations

from toolway.events import Connected, Event, LoopResumed, LoopStalled, Lost
from toolway.telemetry.series import Book


class Metrics:
    """A sink of facts. Nothing here waits, and nothing grows without bound."""

    wants_steps = False

    def __init__(self) -> None:
        self.book = Book()
        self.on_call = self.book.add  # without a step in between: every call pays for it
        self.stalls = 0
        self.stalled = 0.0  # seconds

    def snapshot(self) -> Metrics:
        """All numbers as they are now, for somebody who takes his time with them."""
        copy = Metrics()
        copy.stalls, copy.stalled, copy.book = self.stalls, self.stalled, self.book.copy()
        return copy

    def on_event(self, fact: Event) -> None:
        if isinstance(fact, Connected):
            self.book.server(fact.server).connects += 1
        elif isinstance(fact, Lost):
            self.book.server(fact.server).losses += 1
        elif isinstance(fact, LoopStalled):
            self.stalls += 1
        elif isinstance(fact, LoopResumed):
            self.stalled += fact.seconds
