"""A log of recent tool searches: which found tool was called afterwards, and which searches led to no call.

It is kept in memory and bounded. No I/O: the time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

MAX_PRINCIPALS: Final = 1000  # with remembered searches
MAX_SEARCHES_PER_PRINCIPAL: Final = 8
MAX_UNMET: Final = 200  # different queries without a call
MAX_QUERY_CHARS: Final = 200  # of a remembered query

ToolKey = tuple[str, str]  # (server, tool)


class UnmetSearch(msgspec.Struct):
    """A search query after which the principal called none of the found tools."""

    query: str
    times: int = 0
    last_at: float = 0.0  # seconds since 1970
    fits: bool = True  # False if the answer said that nothing fits well
    found: tuple[str, ...] = ()  # names of the tools in the last answer


class _Search(msgspec.Struct):
    query: str
    tools: frozenset[ToolKey]
    fits: bool = True
    met: bool = False  # a tool of the answer was called


class SearchCounts(msgspec.Struct):
    """Counts of tool searches since the process started."""

    fits: int = 0  # searches with a result that fits
    nothing: int = 0  # searches whose answer said that nothing fits well
    calls: dict[str, int] = msgspec.field(default_factory=dict)  # calls by meta-tool: `call_tool` and `read_tool`
    rejected: int = 0  # calls through a meta-tool that were answered with an explanation and not sent


class SearchLog:
    """Recent searches of each principal, and queries that led to no call."""

    def __init__(self) -> None:
        self._recent: OrderedDict[str, deque[_Search]] = OrderedDict()  # by principal, the last active one at the end
        self._unmet: OrderedDict[str, UnmetSearch] = OrderedDict()  # by query, the newest at the end
        self.counts = SearchCounts()

    def add(
        self, principal: str, query: str, tools: Iterable[ToolKey], names: Iterable[str], *, fits: bool, now: float
    ) -> None:
        """Record a search and the tools that it found. It counts as unmet until the principal calls one of them."""
        query = query[:MAX_QUERY_CHARS]
        recent = self._recent.get(principal)
        if recent is None:
            if len(self._recent) >= MAX_PRINCIPALS:
                self._recent.popitem(last=False)
            recent = self._recent[principal] = deque(maxlen=MAX_SEARCHES_PER_PRINCIPAL)
        self._recent.move_to_end(principal)
        recent.append(_Search(query, frozenset(tools), fits))
        unmet = self._unmet.pop(query, None) or UnmetSearch(query)
        unmet.times += 1
        unmet.last_at, unmet.fits, unmet.found = now, fits, tuple(names)[:5]
        if len(self._unmet) >= MAX_UNMET:
            self._unmet.popitem(last=False)
        self._unmet[query] = unmet

    def open_query(self, principal: str, tool: ToolKey) -> str | None:
        """Return a principal's newest query that found this tool, or None if a found tool was called since.

        A query that the tool fits is preferred to one for which the tool was only the closest match.
        """
        recent = self._recent.get(principal)
        search = _newest(recent, tool) if recent is not None else None
        return search.query if search is not None and not search.met else None

    def on_call(self, principal: str, tool: ToolKey) -> None:
        """Record that a principal called a tool successfully, so the search that found it is no longer unmet."""
        search = _newest(self._recent.get(principal, ()), tool)
        if search is None or search.met:
            return
        search.met = True
        unmet = self._unmet.get(search.query)
        if unmet is not None:
            unmet.times -= 1
            if unmet.times <= 0:
                del self._unmet[search.query]

    def unmet(self) -> list[UnmetSearch]:
        """Return the queries that led to no call, most frequent first, then newest."""
        return sorted(self._unmet.values(), key=lambda each: (-each.times, -each.last_at))

    def forget(self, principal: str) -> None:
        """Drop the searches of a principal that no longer exists."""
        self._recent.pop(principal, None)


def _newest(recent: Sequence[_Search], tool: ToolKey) -> _Search | None:
    nearest = None
    for each in reversed(recent):
        if tool in each.tools:
            if each.fits:
                return each
            nearest = nearest or each
    return nearest
