"""A gateway's recent activity: calls, state changes, alerts, and the load of each server.

Events arrive synchronously, so they are only stored here and formatted on request. Everything is kept in memory,
within limits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Generic, TypeVar

from toolway.config.masking import build_masker, create_mask
from toolway.config.schema import Server
from toolway.events import (
    AccessEvent,
    Alert,
    AlertResolved,
    ApprovalChanged,
    CallFinished,
    CatalogChanged,
    Connected,
    Disconnected,
    Event,
    HealthChanged,
    LoopResumed,
    LoopStalled,
    RunAction,
    RunChanged,
    ServerPaused,
    StateChanged,
)
from toolway.telemetry.metrics import Metrics, MinuteStats
from toolway.telemetry.recent_calls import RecentCalls
from toolway.types import Json

MAX_STATE_CHANGES: Final = 300  # state changes stored per server
MAX_ALERTS: Final = 200  # alerts; the oldest is dropped
Mask = Callable[[str], str]


class SecretMasks:
    """Functions that mask the secrets of each server, cached per server definition."""

    def __init__(self, servers: Callable[[], Mapping[str, Server]]) -> None:
        self._servers = servers
        self._mask_all = create_mask(servers)
        self._cache: dict[str, tuple[Server, Mask]] = {}

    def mask_for(self, name: str) -> Mask:
        server = self._servers().get(name)
        if server is None:
            return self._mask_all  # of a call that reached no server: it may name a secret of any
        cached = self._cache.get(name)
        if cached is None or cached[0] is not server:
            if len(self._cache) > 2 * len(self._servers()) + 100:
                self._cache.clear()  # drops entries of removed servers
            cached = self._cache[name] = (server, build_masker([server], self._servers().keys()))
        return cached[1]


class ActivityRecorder:
    """Event sink of the hub that stores recent calls, events and alerts.

    A separate sink, `metrics`, counts calls; the dashboard shows its counts per minute.
    """

    wants_attempts = False

    def __init__(
        self,
        servers: Callable[[], Mapping[str, Server]],
        metrics: Metrics | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Create an empty recorder of recent activity.

        `servers` returns the configured servers by name; their secrets are masked in all stored strings.
        """
        self._servers = servers
        self._metrics = metrics if metrics is not None else Metrics()
        self._now = now
        self._calls = RecentCalls()
        self.take_waiting: Callable[[], None] = lambda: None  # see `BatchSink`
        self.masks = SecretMasks(servers)
        self.events: EventLog[Json] = EventLog()
        self.timelines: dict[str, deque[Json]] = {}
        self.alerts: dict[str, Alert] = {}  # open alerts by name

    @property
    def calls(self) -> RecentCalls:
        """Return the recent calls, including finished ones that are still in a batch and not recorded yet."""
        self.take_waiting()
        return self._calls

    @property
    def minutes(self) -> dict[str, MinuteStats]:
        """Return how many calls each server had per minute."""
        store, servers = self._metrics.store, self._servers()
        if len(store.minutes) > 2 * len(servers) + 100:
            store.prune(frozenset(servers))
        return self._metrics.minutes()

    def on_call(self, event: CallFinished) -> None:
        self.on_calls((event,))

    def on_calls(self, calls: Sequence[CallFinished]) -> None:
        self._calls.on_calls(calls)

    def on_event(self, event: Event) -> None:
        if isinstance(event, StateChanged):
            timeline = self.timelines.get(event.server)
            if timeline is None:
                timeline = self.timelines[event.server] = deque(maxlen=MAX_STATE_CHANGES)
                self._drop_removed(self.timelines)
            why = self.masks.mask_for(event.server)(event.reason)
            timeline.append({"at": self._now(), "state": event.state, "why": why})
            self.add_event("state", event.server, why, state=event.state)
        elif isinstance(event, Connected):
            self.add_event("connection", event.server, f"connected, protocol {event.protocol or event.era}")
        elif isinstance(event, Disconnected):
            self.add_event(
                "connection", event.server, f"disconnected: {self.masks.mask_for(event.server)(event.reason)}"
            )
        elif isinstance(event, ServerPaused):
            self.add_event("pause", event.server, f"the server asked us to pause for {event.seconds:.0f} s")
        elif isinstance(event, HealthChanged):
            reason = self.masks.mask_for(event.server)(event.reason)
            self.add_event("health", event.server, "passed its health check" if event.ok else f"check failed: {reason}")
        elif isinstance(event, CatalogChanged):
            self.add_event("catalog", event.server, _describe_catalog_change(event))
        elif isinstance(event, Alert):
            self._add_alert(event)
        elif isinstance(event, AlertResolved):
            self.alerts.pop(event.key, None)
        elif isinstance(event, AccessEvent) and event.action == "throttled":
            self.add_event("alert", "", f"API key {event.principal_id} throttled: {event.reason}")
        elif isinstance(event, ApprovalChanged):
            self.add_event("approval", event.server, f"{event.tool}: {event.action} ({event.by} {event.id})")
        elif isinstance(event, RunChanged):
            self.add_event("run", event.server, f"{event.run}: {event.state}")
        elif isinstance(event, RunAction):
            self.add_event("run", event.server, f"{event.run}: {event.action} {event.step}".rstrip())
        elif isinstance(event, LoopStalled):
            self.add_event("loop", "", event.summary)
        elif isinstance(event, LoopResumed):
            self.add_event("loop", "", f"event loop resumed after {event.seconds:.1f} s")

    def _add_alert(self, alert: Alert) -> None:
        self.alerts.pop(alert.key, None)
        while len(self.alerts) >= MAX_ALERTS:
            del self.alerts[next(iter(self.alerts))]
        self.alerts[alert.key] = alert
        self.add_event("alert", alert.server, alert.message)

    def add_event(self, kind: str, server: str, text: str, **more: str) -> None:
        """Add an entry to the event log shown in the dashboard and `/admin/events`."""
        self.events.add({"at": self._now(), "kind": kind, "server": server, "text": text[:2000], **more})

    def recent_events(self, matches: Callable[[Json], bool], limit: int) -> list[Json]:
        """Return the newest events that `matches` accepts, with their numbers."""
        found: list[Json] = []
        for number, event in self.events.newest_first():
            if matches(event):
                found.append({"n": number, **event})
                if len(found) >= limit:
                    break
        return found

    def _drop_removed(self, entries: dict[str, deque[Json]]) -> None:
        servers = self._servers()
        if len(entries) > 2 * len(servers) + 100:
            for name in [name for name in entries if name not in servers]:
                del entries[name]


def _describe_catalog_change(fact: CatalogChanged) -> str:
    parts = [
        f"{len(names)} {word}"
        for names, word in ((fact.added, "added"), (fact.removed, "removed"), (fact.changed, "changed"))
        if names
    ]
    return f"{fact.kind}: {', '.join(parts) or 'reloaded'}"


# -- event log --------------------------------------------------------------------------------------------------------

MAX_EVENTS: Final = 2000  # events stored
MAX_EVENTS_PER_READ: Final = 200  # events per read; a reader that is more behind gets only the newest

T = TypeVar("T")


class EventLog(Generic[T]):
    """Bounded log of recent events, oldest first.

    Each event has a number. A reader passes the last number it has seen and gets the events after it.
    """

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._events: deque[tuple[int, T]] = deque(maxlen=max_events)
        self.last_number = 0  # the number of the newest

    def add(self, fact: T) -> None:
        self.last_number += 1
        self._events.append((self.last_number, fact))

    def after(self, number: int, limit: int = MAX_EVENTS_PER_READ) -> list[tuple[int, T]]:
        """Return the newest `limit` events whose number is above `number`, oldest first."""
        found = [each for each in islice(reversed(self._events), limit) if each[0] > number]
        return found[::-1]

    def newest_first(self) -> Iterator[tuple[int, T]]:
        return reversed(self._events)
