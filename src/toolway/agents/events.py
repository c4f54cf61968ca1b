"""Events of agent runs, in order: text, calls, results, and questions.

After a crash, a run's loop is replayed, so its earlier events come again. Each event is only kept once.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Literal

import msgspec

MAX_EVENTS: Final = 10_000  # of one run
MAX_RUNS: Final = 200  # whose events are in memory


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of an agent run, such as a string, a tool call or a question.

    `kind` is `text` (a part of a text while it arrives), `answer` (a whole text), `call`, `result`, `asks` (a user
    must answer) or `end`.
    """

    kind: Literal["text", "answer", "call", "result", "asks", "end"]
    step: str = ""  # such as "model/2", "tool/2.1"
    text: str = ""
    tool: str = ""
    arguments: Any = None
    executed: str = ""  # of a result: "yes", "no" or "unknown"


class AgentEventLog:
    """Log of this process's agent run events, in memory and bounded.

    Args:
        streams: True if text is reported while it arrives.
    """

    def __init__(self, streams: bool = False) -> None:
        self.streams = streams
        self._events: dict[str, list[AgentEvent]] = {}
        self._known: dict[str, set[tuple[str, str]]] = {}
        self._changed = asyncio.Event()

    def add(self, run: str, event: AgentEvent) -> None:
        """Add an event of a run, unless it is known: a replay after a crash repeats earlier events."""
        events = self._events.get(run)
        if events is None:
            while len(self._events) >= MAX_RUNS:
                oldest = next(iter(self._events))
                del self._events[oldest], self._known[oldest]
            events = self._events[run] = []
            self._known[run] = set()
        key = (event.kind, event.step)
        if len(events) >= MAX_EVENTS or (event.kind != "text" and key in self._known[run]):
            return
        self._known[run].add(key)
        events.append(event)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def add_text(self, run: str, text: str) -> None:
        """Add an event for part of a model's text while it is still arriving."""
        if text:
            self.add(run, AgentEvent(kind="text", text=text))

    def after(self, run: str, count: int) -> list[AgentEvent]:
        """Return the events of an agent run without the first `count` ones."""
        return self._events.get(run, [])[count:]

    @property
    def changed(self) -> asyncio.Event:
        """Return an `asyncio.Event` that is set when the next event of any run is added to the log."""
        return self._changed
