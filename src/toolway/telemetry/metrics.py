"""Counters and histograms of calls and servers, filled by an event sink.

Updates are cheap: plain integers under prebuilt keys. The number of series is bounded. Beyond the bound, calls of a
tool are counted under the tool `_other` of its server. Tool names that a client invented never create a series.

Metric names are in `telemetry/prometheus.py`. To add a metric: count it here, or in `gateway/admin/metrics.py` if it is
the current state of a component, and add its name to the table there.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from toolway.events import CallFinished, Connected, Disconnected, Event, LoopResumed, LoopStalled

#: Histogram bounds in seconds. From 0.01 on, those of the OpenTelemetry conventions.
# fmt: off
HISTOGRAM_BOUNDS_S: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0
)
# fmt: on
MAX_SERVERS: Final = 1000
MAX_TOOLS_PER_SERVER: Final = 500
MAX_SERIES: Final = 3000  # of all servers
MAX_OUTCOMES_PER_SERIES: Final = 20
OTHER: Final = "_other"  # no server has this name, and no tool name shown to models starts like this
NOT_FOUND: Final = "E-NOT-FOUND"  # outcome of a call to an unknown server or tool
_KNOWN_METHODS: Final = frozenset(
    {"resources/read", "prompts/get", "completion/complete", "tasks/get", "tasks/update", "tasks/cancel"}
)


class Metrics:
    """Event sink that counts calls, connections of servers and stalls of the event loop.

    Never blocks; its memory is bounded.
    """

    wants_attempts = False

    def __init__(self) -> None:
        self.store = MetricsStore()
        self.on_call = self.store.add  # no wrapper: every call pays for it
        self.stalls = 0
        self.stalled_seconds = 0.0

    def snapshot(self) -> Metrics:
        """Return a copy of all counters, so that another thread can read them while calls go on."""
        copy = Metrics()
        copy.stalls, copy.stalled_seconds, copy.store = self.stalls, self.stalled_seconds, self.store.copy()
        return copy

    def on_event(self, event: Event) -> None:
        if isinstance(event, Connected):
            self.store.server_series(event.server).connects += 1
        elif isinstance(event, Disconnected):
            self.store.server_series(event.server).disconnects += 1
        elif isinstance(event, LoopStalled):
            self.stalls += 1
        elif isinstance(event, LoopResumed):
            self.stalled_seconds += event.seconds


class MetricsStore:
    """Counters of calls by (server, method, tool), and counters of each server."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, str, str], CallSeries] = {}
        self.servers: dict[str, ServerSeries] = {}
        self.overflow = 0  # calls counted under `_other`, because there are too many series

    def add(self, event: CallFinished) -> None:
        method = event.method
        series = self.series.get((event.server, method, event.tool if method == "tools/call" else ""))
        if series is None or event.outcome == NOT_FOUND:
            series = self._find_series(event)
        series.add(event)
        server = self.servers.get(event.server)
        if server is None:
            if event.outcome == NOT_FOUND:
                return
            server = self.server_series(event.server)
        server.add(event)

    def server_series(self, name: str) -> ServerSeries:
        found = self.servers.get(name)
        if found is None:
            if len(self.servers) >= MAX_SERVERS:
                name = OTHER
            found = self.servers.setdefault(name, ServerSeries())
        return found

    def copy(self) -> MetricsStore:
        other = MetricsStore()
        other.series = {key: each.copy() for key, each in self.series.items()}
        other.servers = {name: each.copy() for name, each in self.servers.items()}
        other.overflow = self.overflow
        return other

    def prune(self, configured: frozenset[str]) -> None:
        """Drop the counters of servers that are no longer configured."""
        for name in [name for name in self.servers if name not in configured and name not in ("", OTHER)]:
            del self.servers[name]
        for key in [key for key in self.series if key[0] not in configured and key[0] not in ("", OTHER)]:
            del self.series[key]

    def _find_series(self, event: CallFinished) -> CallSeries:
        """Return the counters for a call whose (server, method, tool) is new or does not exist.

        Beyond the limits, and for unknown tools and methods, shared counters are returned.
        """
        server = event.server
        if event.method != "tools/call":
            return self._get_series(server, _known_method(event.method), "")
        if event.outcome == NOT_FOUND:
            # An unknown tool name may be anything, and so may its server name.
            return self._get_series(server if server in self.servers else "", event.method, "")
        server_series = self.server_series(server)
        if server_series.series_count >= MAX_TOOLS_PER_SERVER or len(self.series) >= MAX_SERIES:
            self.overflow += 1
            return self._get_series(server, event.method, OTHER)
        server_series.series_count += 1
        return self._get_series(server, event.method, event.tool)

    def _get_series(self, server: str, method: str, tool: str) -> CallSeries:
        if server not in self.servers and len(self.servers) >= MAX_SERVERS:
            server = OTHER
        key = (server, method, tool)
        found = self.series.get(key)
        if found is None:
            found = self.series[key] = CallSeries()
        return found


def _known_method(method: str) -> str:
    return method if method in _KNOWN_METHODS else OTHER


class ServerSeries:
    """Counters of one server: seconds per call phase, connects, disconnects, calls not sent.

    A call is not sent if its result is from the cache, a replay or an identical call in flight.
    """

    __slots__ = ("connects", "disconnects", "phases", "series_count", "sources")

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}  # seconds by phase; a fixed set of names
        self.sources: dict[str, int] = {}  # calls that were not sent, by the source of their result
        self.connects = 0
        self.disconnects = 0
        self.series_count = 0

    def add(self, event: CallFinished) -> None:
        phases, marks = self.phases, event.phase_marks
        if marks:
            current, since = marks[0]
            for phase, at in marks:
                if at > since:
                    phases[current] = phases.get(current, 0.0) + at - since
                current, since = phase, at
            phases[current] = phases.get(current, 0.0) + event.ended_at - since
        if event.source:
            self.sources[event.source] = self.sources.get(event.source, 0) + 1

    def copy(self) -> ServerSeries:
        other = ServerSeries()
        other.phases, other.sources = dict(self.phases), dict(self.sources)
        other.connects, other.disconnects = self.connects, self.disconnects
        other.series_count = self.series_count
        return other


class CallSeries:
    """Counters of one tool, or of one MCP method of a server that is not a tool call.

    Holds a duration histogram per outcome, the retries, and the calls with unknown outcome.
    """

    __slots__ = ("outcomes", "retries", "unknown")

    def __init__(self) -> None:
        self.outcomes: dict[str, DurationHistogram] = {}
        self.retries = 0
        self.unknown = 0  # calls that may or may not have been executed

    def add(self, event: CallFinished) -> None:
        seconds = event.seconds
        histogram = self.outcomes.get(event.outcome)
        if histogram is None:
            outcome = event.outcome if len(self.outcomes) < MAX_OUTCOMES_PER_SERIES else OTHER
            histogram = self.outcomes.setdefault(outcome, DurationHistogram())
        bucket = bisect_left(HISTOGRAM_BOUNDS_S, seconds)
        histogram.buckets[bucket] += 1
        histogram.seconds += seconds
        if event.attempts > 1:
            self.retries += event.attempts - 1
        if event.executed == "unknown":
            self.unknown += 1
        if event.span_id:
            histogram.exemplars[bucket] = Exemplar(event.trace_id, event.span_id, seconds, event.started_at + seconds)

    def total(self) -> DurationHistogram:
        """Return one duration histogram that sums up the histograms of all outcomes."""
        total = DurationHistogram()
        for histogram in self.outcomes.values():
            total.merge(histogram)
        return total

    def copy(self) -> CallSeries:
        other = CallSeries()
        other.outcomes = {outcome: histogram.copy() for outcome, histogram in self.outcomes.items()}
        other.retries, other.unknown = self.retries, self.unknown
        return other


class DurationHistogram:
    """Histogram of the durations of calls with the same outcome."""

    __slots__ = ("buckets", "exemplars", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(HISTOGRAM_BOUNDS_S) + 1)  # not cumulative
        self.seconds = 0.0
        self.exemplars: dict[int, Exemplar] = {}  # by bucket

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def copy(self) -> DurationHistogram:
        other = DurationHistogram()
        other.merge(self)
        return other

    def merge(self, other: DurationHistogram) -> None:
        self.buckets = [ours + theirs for ours, theirs in zip(self.buckets, other.buckets, strict=True)]
        self.seconds += other.seconds
        self.exemplars |= other.exemplars


class Exemplar:
    """Example call of a histogram bucket: duration, end time, trace id and span id."""

    __slots__ = ("at", "seconds", "span", "trace")

    def __init__(self, trace: str, span: str, seconds: float, at: float) -> None:
        self.trace = trace
        self.span = span
        self.seconds = seconds
        self.at = at
