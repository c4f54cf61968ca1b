"""Numbers about calls, kept so that adding one costs little: plain integers under names that were made once.

How many names there are is bounded, whatever tools are called: beyond the bound a tool is counted with the others of
its server. Names that a client made up are never names of their own.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from toolway.events import CallFinished

#: Seconds. From 0.01 on, those of the conventions of OpenTelemetry.
BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
MOST_SERVERS: Final = 1000
MOST_TOOLS: Final = 500  # of one server
MOST_SERIES: Final = 3000  # of all
MOST_OUTCOMES: Final = 20  # of one series
OTHER: Final = "_other"  # no name of a tool that is shown to models begins so, and no server is called so
NOBODY: Final = "E-NOT-FOUND"  # the outcome of a call for what does not exist


class Exemplar:
    """One call that stands for those of its kind: where to find its trace."""

    __slots__ = ("at", "seconds", "span", "trace")

    def __init__(self, trace: str, span: str, seconds: float, at: float) -> None:
        self.trace = trace
        self.span = span
        self.seconds = seconds
        self.at = at


class Tally:
    """How long the calls took that came to the same."""

    __slots__ = ("buckets", "exemplars", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)  # each by itself
        self.seconds = 0.0
        self.exemplars: dict[int, Exemplar] = {}  # by bucket

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def copy(self) -> Tally:
        other = Tally()
        other.add(self)
        return other

    def add(self, other: Tally) -> None:
        self.buckets = [ours + theirs for ours, theirs in zip(self.buckets, other.buckets, strict=True)]
        self.seconds += other.seconds
        self.exemplars |= other.exemplars


class Series:
    """The calls of one tool, or of one method of a server that is no tool."""

    __slots__ = ("outcomes", "retries", "unknown")

    def __init__(self) -> None:
        self.outcomes: dict[str, Tally] = {}
        self.retries = 0
        self.unknown = 0  # calls of which nobody knows whether they were executed

    def add(self, fact: CallFinished) -> None:
        seconds = fact.seconds
        tally = self.outcomes.get(fact.outcome)
        if tally is None:
            outcome = fact.outcome if len(self.outcomes) < MOST_OUTCOMES else OTHER
            tally = self.outcomes.setdefault(outcome, Tally())
        bucket = bisect_left(BOUNDS, seconds)
        tally.buckets[bucket] += 1
        tally.seconds += seconds
        if fact.attempts > 1:
            self.retries += fact.attempts - 1
        if fact.executed == "unknown":
            self.unknown += 1
        if fact.span:
            tally.exemplars[bucket] = Exemplar(fact.trace, fact.span, seconds, fact.at + seconds)

    def all(self) -> Tally:
        """Whatever they came to."""
        found = Tally()
        for tally in self.outcomes.values():
            found.add(tally)
        return found

    def copy(self) -> Series:
        other = Series()
        other.outcomes = {outcome: tally.copy() for outcome, tally in self.outcomes.items()}
        other.retries, other.unknown = self.retries, self.unknown
        return other


class ServerSeries:
    """What calls to one server waited for, and where answers came from that it did not give."""

    __slots__ = ("connects", "losses", "phases", "sources", "tools")

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}  # seconds by phase; the phases are ours
        self.sources: dict[str, int] = {}
        self.connects = 0
        self.losses = 0
        self.tools = 0  # series of its own that it has

    def add(self, fact: CallFinished) -> None:
        phases, marks = self.phases, fact.marks
        if marks:
            waited, since = marks[0]
            for phase, at in marks:
                if at > since:
                    phases[waited] = phases.get(waited, 0.0) + at - since
                waited, since = phase, at
            phases[waited] = phases.get(waited, 0.0) + fact.end - since
        if fact.source:
            self.sources[fact.source] = self.sources.get(fact.source, 0) + 1

    def copy(self) -> ServerSeries:
        other = ServerSeries()
        other.phases, other.sources = dict(self.phases), dict(self.sources)
        other.connects, other.losses, other.tools = self.connects, self.losses, self.tools
        return other


class Book:
    """All series, by server, method and tool."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, str, str], Series] = {}
        self.servers: dict[str, ServerSeries] = {}
        self.folded = 0  # calls that were counted with others, because there are too many names

    def add(self, fact: CallFinished) -> None:
        method = fact.method
        series = self.series.get((fact.server, method, fact.tool if method == "tools/call" else ""))
        if series is None or fact.outcome == NOBODY:
            series = self._find(fact)
        series.add(fact)
        server = self.servers.get(fact.server)
        if server is None:
            if fact.outcome == NOBODY:
                return
            server = self.server(fact.server)
        server.add(fact)

    def server(self, name: str) -> ServerSeries:
        found = self.servers.get(name)
        if found is None:
            if len(self.servers) >= MOST_SERVERS:
                name = OTHER
            found = self.servers.setdefault(name, ServerSeries())
        return found

    def copy(self) -> Book:
        other = Book()
        other.series = {key: each.copy() for key, each in self.series.items()}
        other.servers = {name: each.copy() for name, each in self.servers.items()}
        other.folded = self.folded
        return other

    def forget(self, known: frozenset[str]) -> None:
        """Servers that are configured no more are counted no more."""
        for name in [name for name in self.servers if name not in known and name not in ("", OTHER)]:
            del self.servers[name]
        for key in [key for key in self.series if key[0] not in known and key[0] not in ("", OTHER)]:
            del self.series[key]

    def _find(self, fact: CallFinished) -> Series:
        """The series of a call whose name is new, or is nobody's."""
        server = fact.server
        if fact.method != "tools/call":
            return self._series(server, _known(fact.method), "")
        if fact.outcome == NOBODY:
            # A name that does not exist may be anything; so may that of its server.
            return self._series(server if server in self.servers else "", fact.method, "")
        owner = self.server(server)
        if owner.tools >= MOST_TOOLS or len(self.series) >= MOST_SERIES:
            self.folded += 1
            return self._series(server, fact.method, OTHER)
        owner.tools += 1
        return self._series(server, fact.method, fact.tool)

    def _series(self, server: str, method: str, tool: str) -> Series:
        if server not in self.servers and len(self.servers) >= MOST_SERVERS:
            server = OTHER
        key = (server, method, tool)
        found = self.series.get(key)
        if found is None:
            found = self.series[key] = Series()
        return found


_METHODS: Final = frozenset(
    {"resources/read", "prompts/get", "completion/complete", "tasks/get", "tasks/update", "tasks/cancel"}
)


def _known(method: str) -> str:
    return method if method in _METHODS else OTHER
