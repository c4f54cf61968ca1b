"""Counters and histograms of calls and servers, in total and per minute, filled by an event sink in batches.

`/metrics`, the export to a collector and the dashboard read the same store, so a call is counted once. Updates are
cheap: plain integers under prebuilt keys. The number of series is bounded. Beyond the bound, calls to a tool are
counted under the tool `_other` of its server. Tool names that a client invented never create a series.

Metric names are in `telemetry/prometheus.py`. To add a metric: count it here, or in `gateway/admin/metrics.py` if it
is the current state of a component, and add its name to the table there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from toolway.events import (
    ApprovalChanged,
    CallFinished,
    Connected,
    Disconnected,
    Event,
    LoopResumed,
    LoopStalled,
    RunChanged,
    RunStepEnded,
)
from toolway.outcomes import OK, OK_CODE, error_code, outcome_of
from toolway.types import Json

#: Histogram bounds in seconds. From 0.01 on, the bounds of the OpenTelemetry conventions.
# fmt: off
HISTOGRAM_BOUNDS_S: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0
)
# fmt: on
#: Finer bounds, for percentiles that are exact to 12.5%: 0.1 ms to 13 minutes, each 25% above the last, and all bounds
#: of the histograms. So one search finds the bucket of both.
LATENCY_BOUNDS_S: Final = tuple(sorted({*(0.0001 * 1.25**step for step in range(72)), *HISTOGRAM_BOUNDS_S}))
_HISTOGRAM_BUCKETS: Final = (  # latency bucket → histogram bucket
    *(bisect_left(HISTOGRAM_BOUNDS_S, bound) for bound in LATENCY_BOUNDS_S),
    len(HISTOGRAM_BOUNDS_S),
)
HISTORY_MINUTES: Final = 30
MAX_SERVERS: Final = 1000
MAX_WORKFLOWS: Final = 500
_RUN_ENDS: Final = frozenset({"done", "failed", "undone", "cancelled", "stuck", "damaged"})
MAX_SERVERS_PER_MINUTE: Final = 20_000  # servers with counts per minute
MAX_TOOLS_PER_SERVER: Final = 500
MAX_SERIES: Final = 3000  # of all servers
MAX_OUTCOMES_PER_SERIES: Final = 20
OTHER: Final = "_other"  # no server has this name, and no tool name shown to models starts like this
NOT_FOUND: Final = "E-NOT-FOUND"  # code of a call to an unknown server or tool
_OK_KEY: Final = (OK.label, "")
_KNOWN_METHODS: Final = frozenset(
    {"resources/read", "prompts/get", "completion/complete", "tasks/get", "tasks/update", "tasks/cancel"}
)


class Metrics:
    """Event sink that counts calls, connections of servers and stalls of the event loop.

    The sink never blocks, and its memory is bounded. Finished calls arrive in batches, so reading `store` first
    counts those that are still waiting.
    """

    wants_attempts = False

    def __init__(self, store: MetricsStore | None = None) -> None:
        self._store = store if store is not None else MetricsStore()
        self.take_waiting: Callable[[], None] = lambda: None  # see `BatchSink`
        self.on_calls = self._store.add_all  # no wrapper: every call pays for it
        self.stalls = 0
        self.stalled_seconds = 0.0
        #: With several workers: returns the counters, stalls and stalled seconds of each other worker.
        self.other_stores: Callable[[], Iterable[tuple[MetricsStore, int, float]]] = tuple
        self.runs = RunMetrics()

    @property
    def store(self) -> MetricsStore:
        """Return the counters of all finished calls, including those still waiting in a batch."""
        self.take_waiting()
        return self._store

    def snapshot(self) -> Metrics:
        """Return a copy of all counters, so another thread can read them while calls continue.

        The copy includes the counters of the other workers, if there are any.
        """
        copy = Metrics(self.store.copy())
        copy.stalls, copy.stalled_seconds = self.stalls, self.stalled_seconds
        copy.runs = self.runs.copy()
        for store, stalls, stalled_seconds in self.other_stores():
            copy._store.merge(store)
            copy.stalls += stalls
            copy.stalled_seconds += stalled_seconds
        return copy

    def minutes(self) -> dict[str, MinuteStats]:
        """Return the counts of calls per minute, by server, summed over all workers."""
        own = self.store.minutes
        others = [store.minutes for store, _, _ in self.other_stores() if store.minutes]
        if not others:
            return own
        names = {name for minutes in (own, *others) for name in minutes}
        return {name: MinuteStats.merged(each[name] for each in (own, *others) if name in each) for name in names}

    def on_call(self, event: CallFinished) -> None:
        self.on_calls((event,))

    def on_event(self, event: Event) -> None:
        if isinstance(event, Connected):
            self._store.server_series(event.server).connects += 1
        elif isinstance(event, Disconnected):
            self._store.server_series(event.server).disconnects += 1
        elif isinstance(event, RunChanged | RunStepEnded):
            self.runs.add(event)
        elif isinstance(event, ApprovalChanged):
            approvals = self._store.server_series(event.server).approvals
            approvals[event.action] = approvals.get(event.action, 0) + 1
        elif isinstance(event, LoopStalled):
            self.stalls += 1
        elif isinstance(event, LoopResumed):
            self.stalled_seconds += event.seconds


class RunMetrics:
    """Counters for workflow runs and their steps. Beyond a limit, workflows are counted as `_other`."""

    def __init__(self) -> None:
        self.states: Counter[tuple[str, str]] = Counter()  # (workflow, state that a run reached)
        self.seconds: Counter[str] = Counter()  # of ended runs, by workflow
        self.steps: Counter[tuple[str, str]] = Counter()  # (workflow, outcome)
        self.step_seconds: Counter[str] = Counter()
        self._workflows: set[str] = set()

    def add(self, event: RunChanged | RunStepEnded) -> None:
        """Count a workflow run event: the run reached a state, or a step ended."""
        workflow = event.workflow
        if workflow not in self._workflows:
            if len(self._workflows) >= MAX_WORKFLOWS:
                workflow = OTHER
            self._workflows.add(workflow)
        if isinstance(event, RunStepEnded):
            self.steps[workflow, event.outcome] += 1
            self.step_seconds[workflow] += event.seconds  # type: ignore[assignment] # a Counter holds floats too
            return
        self.states[workflow, event.state] += 1
        if event.state in _RUN_ENDS:
            self.seconds[workflow] += event.seconds  # type: ignore[assignment] # as above

    def copy(self) -> RunMetrics:
        other = RunMetrics()
        other.states, other.seconds = self.states.copy(), self.seconds.copy()
        other.steps, other.step_seconds = self.steps.copy(), self.step_seconds.copy()
        return other


class MetricsStore:
    """Counters for calls by (server, method, tool), counters for each server, and its calls per minute."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, str, str], CallSeries] = {}
        self.servers: dict[str, ServerSeries] = {}
        self.minutes: dict[str, MinuteStats] = {}  # by server
        self.overflow = 0  # calls counted under `_other`, because there are too many series

    def add_all(self, calls: Sequence[CallFinished]) -> None:
        """Count finished calls: by tool, by server, and by server and minute."""
        all_series, servers, minutes = self.series, self.servers, self.minutes
        for event in calls:
            name, method, code, seconds = event.server, event.method, event.code, event.seconds
            bucket = bisect_left(LATENCY_BOUNDS_S, seconds)
            series = all_series.get((name, method, event.tool if method == "tools/call" else ""))
            if series is None or code == NOT_FOUND:
                series = self._find_series(event)
            series.add(event, _HISTOGRAM_BUCKETS[bucket])
            server = servers.get(name)
            if server is None:
                if code == NOT_FOUND:
                    continue  # the caller named an unknown server
                server = self.server_series(name)
            server.add(event)
            stats = minutes.get(name)
            if stats is None:
                if len(minutes) >= MAX_SERVERS_PER_MINUTE:
                    continue
                stats = minutes[name] = MinuteStats()
            stats.add(bucket, code != OK_CODE and event.failed, event.started_at + seconds)

    def server_series(self, name: str) -> ServerSeries:
        found = self.servers.get(name)
        if found is None:
            if len(self.servers) >= MAX_SERVERS:
                name = OTHER
            found = self.servers.setdefault(name, ServerSeries())
        return found

    def copy(self) -> MetricsStore:
        """Return a copy of the counters, without the counts per minute."""
        other = MetricsStore()
        other.series = {key: each.copy() for key, each in self.series.items()}
        other.servers = {name: each.copy() for name, each in self.servers.items()}
        other.overflow = self.overflow
        return other

    def merge(self, other: MetricsStore) -> None:
        """Add the counters of another metrics store to this one, without its counts per minute."""
        for key, series in other.series.items():
            self.series.setdefault(key, CallSeries()).merge(series)
        for name, server in other.servers.items():
            self.servers.setdefault(name, ServerSeries()).merge(server)
        self.overflow += other.overflow

    def to_json(self) -> Json:
        """Return all counters as JSON, for another process; without exemplars."""
        return {
            "series": [
                [*key, each.retries, each.unknown, each.outcomes_to_json()] for key, each in self.series.items()
            ],
            "servers": [
                [name, each.phases, each.sources, each.connects, each.disconnects, each.approvals]
                for name, each in self.servers.items()
            ],
            "minutes": {name: each.to_json() for name, each in self.minutes.items()},
            "overflow": self.overflow,
        }

    @classmethod
    def from_json(cls, data: Json) -> MetricsStore:
        """Return the store with the counters that `to_json` returned, for example in another process."""
        store = cls()
        for server, method, tool, retries, unknown, outcomes in data["series"]:
            series = store.series[(server, method, tool)] = CallSeries()
            series.retries, series.unknown = retries, unknown
            for label, code, buckets, seconds in outcomes:
                histogram = series.outcomes[label, code] = DurationHistogram()
                histogram.buckets, histogram.seconds = list(buckets), seconds
        for name, phases, sources, connects, disconnects, *more in data["servers"]:
            each = store.servers[name] = ServerSeries()
            each.approvals = dict(more[0]) if more else {}
            each.phases, each.sources, each.connects, each.disconnects = phases, sources, connects, disconnects
        store.minutes = {name: MinuteStats.from_json(minutes) for name, minutes in data["minutes"].items()}
        store.overflow = data["overflow"]
        return store

    def prune(self, configured: frozenset[str]) -> None:
        """Drop the counters of servers that are no longer configured."""
        for name in [name for name in self.servers if name not in configured and name not in ("", OTHER)]:
            del self.servers[name]
        for name in [name for name in self.minutes if name not in configured]:
            del self.minutes[name]
        for key in [key for key in self.series if key[0] not in configured and key[0] not in ("", OTHER)]:
            del self.series[key]

    def _find_series(self, event: CallFinished) -> CallSeries:
        """Return the counters for a new (server, method, tool), or for a tool that does not exist.

        Beyond the limits, and for unknown tools and methods, shared counters are returned.
        """
        server = event.server
        if event.method != "tools/call":
            return self._get_series(server, _known_method(event.method), "")
        if event.code == NOT_FOUND:
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
    """Counters of one server: seconds per call phase, connects, disconnects, calls not sent, approvals.

    A call is not sent if its result comes from the cache, a replay, or an identical call in flight.
    """

    __slots__ = ("approvals", "connects", "disconnects", "phases", "series_count", "sources")

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}  # seconds by phase; a fixed set of names
        self.sources: dict[str, int] = {}  # calls that were not sent, by the source of their result
        self.approvals: dict[str, int] = {}  # questions about calls, and answers, by what happened
        self.connects = 0
        self.disconnects = 0
        self.series_count = 0

    def add(self, event: CallFinished) -> None:
        phases, marks = self.phases, event.phase_marks
        if marks:
            current, since = marks[0]
            if marks[-1][1] != since:  # else all phases but the last took no time
                for phase, at in marks:
                    if at > since:
                        phases[current] = phases.get(current, 0.0) + at - since
                    current, since = phase, at
            current = marks[-1][0]
            phases[current] = phases.get(current, 0.0) + event.ended_at - since
        if event.source:
            self.sources[event.source] = self.sources.get(event.source, 0) + 1

    def merge(self, other: ServerSeries) -> None:
        for phase, seconds in other.phases.items():
            self.phases[phase] = self.phases.get(phase, 0.0) + seconds
        for source, count in other.sources.items():
            self.sources[source] = self.sources.get(source, 0) + count
        for action, count in other.approvals.items():
            self.approvals[action] = self.approvals.get(action, 0) + count
        self.connects += other.connects
        self.disconnects += other.disconnects

    def copy(self) -> ServerSeries:
        other = ServerSeries()
        other.phases, other.sources = dict(self.phases), dict(self.sources)
        other.connects, other.disconnects = self.connects, self.disconnects
        other.series_count = self.series_count
        other.approvals = dict(self.approvals)
        return other


class CallSeries:
    """Counters of one tool, or of one of a server's other MCP methods.

    Holds a duration histogram per outcome, the retries, and the calls with unknown outcome.
    """

    __slots__ = ("outcomes", "retries", "unknown")

    def __init__(self) -> None:
        self.outcomes: dict[tuple[str, str], DurationHistogram] = {}  # by label of the outcome and error code
        self.retries = 0
        self.unknown = 0  # calls that may or may not have run

    def add(self, event: CallFinished, bucket: int) -> None:
        """Count a finished call. `bucket` is the histogram bucket of its duration."""
        seconds = event.seconds
        code = event.code
        key = _OK_KEY if code == OK_CODE else (outcome_of(code, event.executed).label, error_code(code))
        histogram = self.outcomes.get(key)
        if histogram is None:
            if len(self.outcomes) >= MAX_OUTCOMES_PER_SERIES:
                key = (key[0], OTHER)
            histogram = self.outcomes.setdefault(key, DurationHistogram())
        histogram.buckets[bucket] += 1
        histogram.seconds += seconds
        if event.attempts > 1:
            self.retries += event.attempts - 1
        if event.executed == "unknown":
            self.unknown += 1
        if event.span_id:
            histogram.exemplars[bucket] = Exemplar(event.trace_id, event.span_id, seconds, event.started_at + seconds)

    def total(self) -> DurationHistogram:
        """Return one duration histogram that adds up the histograms of all outcomes."""
        total = DurationHistogram()
        for histogram in self.outcomes.values():
            total.merge(histogram)
        return total

    def merge(self, other: CallSeries) -> None:
        for key, histogram in other.outcomes.items():
            self.outcomes.setdefault(key, DurationHistogram()).merge(histogram)
        self.retries += other.retries
        self.unknown += other.unknown

    def outcomes_to_json(self) -> list[list[object]]:
        return [[*key, each.buckets, each.seconds] for key, each in self.outcomes.items()]

    def copy(self) -> CallSeries:
        other = CallSeries()
        other.outcomes = {key: histogram.copy() for key, histogram in self.outcomes.items()}
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
    """An example call for a histogram bucket: duration, end time, trace id, and span id."""

    __slots__ = ("at", "seconds", "span", "trace")

    def __init__(self, trace: str, span: str, seconds: float, at: float) -> None:
        self.trace = trace
        self.span = span
        self.seconds = seconds
        self.at = at


# -- counts per minute -------------------------------------------------------------------------------------------------
# Memory does not grow with the number of calls. Pure: the time is an argument.


class _MinuteCounts:
    __slots__ = ("calls", "errors", "latencies", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls = 0
        self.errors = 0
        self.latencies: dict[int, int] = {}  # bucket of `LATENCY_BOUNDS_S` → number of calls


class MinuteStats:
    """One server's calls, errors, and latencies per minute."""

    __slots__ = ("_minutes",)

    def __init__(self) -> None:
        self._minutes: deque[_MinuteCounts] = deque(maxlen=HISTORY_MINUTES)

    def record(self, seconds: float, failed: bool, now: float) -> None:
        """Count one call of this duration that ended at the time `now` (seconds since 1970)."""
        self.add(bisect_left(LATENCY_BOUNDS_S, seconds), failed, now)

    def add(self, bucket: int, failed: bool, now: float) -> None:
        """Count one call whose duration is in this bucket of `LATENCY_BOUNDS_S`."""
        number, minutes = int(now // 60), self._minutes
        if not minutes or minutes[-1].number < number:
            minutes.append(_MinuteCounts(number))
        minute = minutes[-1]
        minute.calls += 1
        minute.errors += failed
        minute.latencies[bucket] = minute.latencies.get(bucket, 0) + 1

    @classmethod
    def merged(cls, stats: Iterable[MinuteStats]) -> MinuteStats:
        """Return the counts of one server per minute, summed over several worker processes."""
        minutes: dict[int, _MinuteCounts] = {}
        for minute in (minute for each in stats for minute in each._minutes):
            total = minutes.setdefault(minute.number, _MinuteCounts(minute.number))
            total.calls += minute.calls
            total.errors += minute.errors
            for bucket, count in minute.latencies.items():
                total.latencies[bucket] = total.latencies.get(bucket, 0) + count
        result = cls()
        result._minutes.extend(minutes[number] for number in sorted(minutes))
        return result

    def to_json(self) -> list[list[object]]:
        return [[each.number, each.calls, each.errors, list(each.latencies.items())] for each in self._minutes]

    @classmethod
    def from_json(cls, data: Iterable[Sequence[Any]]) -> MinuteStats:
        stats = cls()
        for number, calls, errors, latencies in data:
            minute = _MinuteCounts(number)
            minute.calls, minute.errors, minute.latencies = calls, errors, dict(latencies)
            stats._minutes.append(minute)
        return stats

    def recent_minutes(self, now: float) -> list[_MinuteCounts]:
        """Return the counts of each minute with calls, for the last `HISTORY_MINUTES` minutes."""
        oldest = int(now // 60) - HISTORY_MINUTES
        return [minute for minute in self._minutes if minute.number > oldest]


def summarize_stats(stats: Iterable[MinuteStats], now: float) -> Json:
    """Merge the statistics of several servers into one JSON summary."""
    minutes = [minute for each in stats for minute in each.recent_minutes(now)]
    last = int(now // 60)
    calls, errors = [0] * HISTORY_MINUTES, [0] * HISTORY_MINUTES
    latencies = [0] * (len(LATENCY_BOUNDS_S) + 1)
    for minute in minutes:
        position = minute.number - last + HISTORY_MINUTES - 1
        if 0 <= position < HISTORY_MINUTES:
            calls[position] += minute.calls
            errors[position] += minute.errors
            for index, count in minute.latencies.items():
                latencies[index] += count
    return {
        "calls": sum(calls),
        "errors": sum(errors),
        "per_minute": calls,
        "errors_per_minute": errors,
        **{name: latency_percentile(latencies, share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))},
    }


def latency_percentile(latencies: list[int], quantile: float) -> float | None:
    """Return the latency in seconds at a quantile such as 0.95, or None if there were no calls.

    `latencies` counts the calls per bucket of `LATENCY_BOUNDS_S`. The result is the middle of the bucket that
    contains the quantile.
    """
    target, seen = quantile * sum(latencies), 0
    if not target:
        return None
    for index, count in enumerate(latencies):
        seen += count
        if seen >= target:
            upper = LATENCY_BOUNDS_S[min(index, len(LATENCY_BOUNDS_S) - 1)]
            return (LATENCY_BOUNDS_S[index - 1] + upper) / 2 if 0 < index < len(LATENCY_BOUNDS_S) else upper / 1.125
    return None
