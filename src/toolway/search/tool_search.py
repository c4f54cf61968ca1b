"""`ToolSearch`: the search of one hub over the tools that its catalog knows.

    search = ToolSearch(catalog)
    answer = await search.search_async("make an issue", limit=5, allowed=view.shows)

`search` is synchronous and starts no server. The index is built at the first search and follows the catalog: only the
segments of servers whose list changed are built again. `search_async` does the same and keeps the event loop free: it
builds large lists in a thread, searches many tools in a thread, and lets a vector source embed the query first.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from toolway._async import run_at_once, run_in_slices
from toolway.catalog.catalog import Catalog, Item, Tool
from toolway.search import ranking
from toolway.search.index import Entries, Index, Segment, build_segment, definition_hash
from toolway.search.learning import CallHistory
from toolway.search.related import Related, load_related_words
from toolway.search.results import SearchAnswer, SearchNotes, ToolMatch
from toolway.search.word_scores import WeightCache

THREAD_BUILD_TOOLS: Final = 50  # more new tools are indexed in a thread
SLICE_SERVERS: Final = 100  # servers whose lists are compared in one slice
THREAD_SEARCH_TOOLS: Final = 10_000  # more tools are searched in a thread, and the index of more is changed in one
THREAD_MEANING_TOOLS: Final = 2_000  # the same, by meaning: then every tool has a score
MAX_LIMIT: Final = 50
MAX_SPREAD: Final = 3  # numbers for each tool, of which all but one are of earlier lists; then all tools get new ones
NEAREST: Final = 5  # tools in an answer if nothing fits
MAX_QUERIES: Final = 10
MAX_QUERY_CHARS: Final = 4_000
MAX_ABOUT_CHARS: Final = 1_000  # of a server's description

Allowed: TypeAlias = Callable[[str, str], bool]  # server, tool


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Description of one server, and whether its tools can be called now, for the tool search."""

    about: str = ""  # title, description and instructions of the server
    is_down: bool = False  # a call would fail now; an idle server is not down
    held: int = 0  # tools that need review


S = TypeVar("S")


class LazyFacts(Mapping[str, ServerFacts], Generic[S]):
    """Mapping of server names to `ServerFacts`, which `facts_of` computes only when an item is read."""

    def __init__(self, servers: Mapping[str, S], facts_of: Callable[[S], ServerFacts]) -> None:
        self._servers = servers
        self._facts_of = facts_of

    def __getitem__(self, name: str) -> ServerFacts:
        return self._facts_of(self._servers[name])

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._servers))

    def __len__(self) -> int:
        return len(self._servers)


class _Changes(NamedTuple):
    """Difference between index and catalog: servers that must be indexed again, and servers to remove."""

    generation: int  # of the catalog
    before: Index  # that is changed
    changed: Sequence[tuple[str, str, tuple[Tool, ...], int]]  # server, its description, tools, first number
    removed: Sequence[str]
    sources: dict[str, Mapping[str, Item]]  # lists of all servers


class AllowedTools:
    """Fixed set of tools that a principal may see, for the argument `allowed` of a search.

    Their numbers are computed once per index.
    """

    def __init__(self, tools: Container[tuple[str, str]]) -> None:
        self._tools = tools  # (server, tool); never changed later
        self._numbers: tuple[Index, frozenset[int], frozenset[str]] | None = None

    def __call__(self, server: str, tool: str) -> bool:
        return (server, tool) in self._tools

    def numbers(self, index: Index) -> tuple[frozenset[int], frozenset[str]]:
        """Return the numbers of the allowed tools in a search index, and the names of their servers."""
        known = self._numbers
        if known is None or known[0] is not index:
            allowed = {key: number for key, number in index.numbers.items() if key in self._tools}
            known = self._numbers = (index, frozenset(allowed.values()), frozenset({server for server, _ in allowed}))
        return known[1], known[2]


class VectorSource(Protocol):
    """Embedding search: scores tools by the similarity of their meaning to a query (`ToolSearch.set_vectors`).

    The search calls `prepare` before each query of `search_async`, then `score`. Tools are passed as the same tuple
    object until a list changes, so a source can keep their matrix. A source caches vectors by `definition_hash`.
    """

    async def prepare(self, queries: Sequence[str], tools: Sequence[Tool]) -> None:
        """Embed the queries within a time limit, and start to embed new tools in the background."""

    def score(self, query: str, tools: Sequence[Tool]) -> Sequence[float | None] | None:
        """Return the cosine of the query and each tool, None for a tool that has no vector yet.

        Return None if the query has no vector: the search then ranks by words alone. Must not wait.
        """

    @property
    def problem(self) -> str:
        """Return why tools cannot be scored by meaning now, in a few words; "" if they can."""


class ToolSearch:
    """Search over the tools of a catalog: by words, by earlier calls, and by embeddings if they are configured.

    Args:
        catalog: The catalog whose tools are searched. Denied tools are not in it.
        facts: Returns the facts about each server by name. None: nothing is known about them.
        related: Table of related words; None loads the package's table at the first search.
        learn: Learn from `record_call`. False ignores it.
        hash_definition: Returns the hash of a tool's definition, as it is passed to `record_call`.
    """

    def __init__(
        self,
        catalog: Catalog,
        facts: Callable[[], Mapping[str, ServerFacts]] | None = None,
        *,
        related: Related | None = None,
        learn: bool = True,
        hash_definition: Callable[[Tool], str] = definition_hash,
    ) -> None:
        self._catalog = catalog
        self._hash_definition = hash_definition
        self._facts = facts
        self._related = related
        self._index = Index()
        self._generation = -1
        self._sources: dict[str, Mapping[str, Item]] = {}  # lists of the catalog that were indexed, by server
        self._hashes: dict[tuple[str, str], tuple[Tool, str]] = {}  # of tools that have a history
        self._vectors: VectorSource | None = None
        self._building: asyncio.Task[None] | None = None
        self._weights = WeightCache()
        self._learn = learn
        self._history = CallHistory()
        self.history_version = 0  # grows when something is learned or forgotten

    # -- search -------------------------------------------------------------------------------------------------------

    def search(
        self,
        queries: str | Sequence[str],
        *,
        limit: int = 5,
        allowed: Allowed | None = None,
        server: str | None = None,
        principal: str | None = None,
        allowed_server: Callable[[str], bool] | None = None,
    ) -> SearchAnswer:
        """Return the tools that fit a query best. Starts no server and waits for nothing.

        Args:
            queries: A query, or a list with one query per step of a task. Steps are ranked alone and interleaved.
            limit: Number of matches, at most 50.
            allowed: Return True if the principal may see a tool (server, tool). It is asked before the best are taken,
                so a tool that it denies changes nothing in the answer. None: all tools.
            server: Search only the tools of this server.
            principal: Who asks. Their own earlier calls count in full.
            allowed_server: Return True if the principal may see a server's name in the notes. None: if one of its tools
                is allowed, or if `allowed` is None.

        Returns:
            The matches, best first. Never empty if there is an allowed tool: if nothing fits, `fits` is False and the
            matches are the nearest tools, or the first ones.
        """
        self._update()
        return self._search(
            self._index, _clean(queries), limit, allowed, server, principal or "", allowed_server, self._get_facts()
        )

    async def search_async(
        self,
        queries: str | Sequence[str],
        *,
        limit: int = 5,
        allowed: Allowed | None = None,
        server: str | None = None,
        principal: str | None = None,
        allowed_server: Callable[[str], bool] | None = None,
        with_details: bool = True,
    ) -> SearchAnswer:
        """Search as `search` does, without blocking the event loop, and by meaning if embeddings are configured.

        Without details, matches have no reasons, and the notes say nothing about servers. That takes half the time.
        With more than 10,000 tools the ranking runs in a thread, and `allowed` is called there.
        """
        await self.prepare()
        asked, facts = _clean(queries), dict(self._get_facts()) if with_details else {}
        if self._vectors is not None:
            await self._vectors.prepare(asked, self._index.tools)
        index, who = self._index, principal or ""
        if len(index) > (THREAD_SEARCH_TOOLS if self._vectors is None else THREAD_MEANING_TOOLS):
            return await asyncio.to_thread(
                self._search, index, asked, limit, allowed, server, who, allowed_server, facts, with_details
            )
        return self._search(index, asked, limit, allowed, server, who, allowed_server, facts, with_details)

    async def prepare(self) -> None:
        """Update the index to the current catalog: in a thread if many tools are new, else at once."""
        while self._generation != self._catalog.generation:
            if self._building is None:
                if self._related is not None and self._has_small_changes():
                    self._update()
                    return
                self._building = asyncio.create_task(self._build_in_thread())
            await asyncio.shield(self._building)

    # -- learning and meaning -----------------------------------------------------------------------------------------

    def record_call(
        self, query: str, principal: str | None, server: str, tool: str, definition: str | None = None
    ) -> None:
        """Record that a tool was called successfully after a search for `query`. Only successful calls count.

        Args:
            query: The query that found the tool, or one of its steps.
            principal: Who called. One vote per principal, tool and query.
            server: Server of the tool.
            tool: Name of the tool.
            definition: Hash of the definition (`hash_definition`) at the call; None computes it from the catalog.
        """
        if not self._learn:
            return
        if definition is None:
            known = self._catalog.find_tool(server, tool)
            if known is None:
                return
            definition = self._hash_definition(known)
        self._history.record(query[:MAX_QUERY_CHARS], principal or "", (server, tool), definition)
        self.history_version += 1

    def set_learning(self, learn: bool) -> None:
        """Switch learning from successful calls on or off. Off also deletes the call history."""
        self._learn = learn
        if not learn:
            self._history = CallHistory()
            self.history_version += 1

    def restore_history(self, stored: CallHistory) -> None:
        """Add the call history of an earlier run, if learning is on. Calls recorded since the start count as newer."""
        if self._learn:
            stored.update(self._history)
            self._history = stored

    def history_to_json(self) -> list[object]:
        """Return the call history as JSON, for storage."""
        return list(self._history.to_json())

    def set_vectors(self, source: VectorSource | None) -> None:
        """Use the scores of an embedding model from now on. None ranks by words alone."""
        self._vectors = source

    # -- index --------------------------------------------------------------------------------------------------------

    def _get_facts(self) -> Mapping[str, ServerFacts]:
        return self._facts() if self._facts is not None else {}

    def _update(self) -> None:
        if self._generation != self._catalog.generation:
            changes = run_at_once(self._changes())
            self._install(_build(changes), changes)

    def _has_small_changes(self) -> bool:
        """Return True if the index is not large, and few tools of few servers must be indexed."""
        servers = self._catalog.servers()
        if len(servers) > SLICE_SERVERS or len(self._index) > THREAD_SEARCH_TOOLS:
            return False
        facts, new = self._get_facts(), 0
        for server in servers:
            source, segment = self._catalog.tools_of(server), self._index.segments.get(server)
            is_same = segment is not None and segment.about == _about(facts, server)
            if not is_same or self._sources.get(server) is not source:
                new += len(source)
        return new <= THREAD_BUILD_TOOLS

    def _changes(self) -> Generator[None, None, _Changes]:
        """Return which servers must be indexed again, and which must be removed.

        A server that is indexed again gets new numbers for its tools. This generator yields between slices of work, so
        that the event loop can run, and then returns the changes.
        """
        generation, facts = self._catalog.generation, self._get_facts()
        changed: list[tuple[str, str, tuple[Tool, ...], int]] = []
        index = self._index if self._index.end <= MAX_SPREAD * (len(self._index) + 1000) else Index()
        segments, number, sources = index.segments, index.end, dict[str, Mapping[str, Item]]()
        for place, server in enumerate(self._catalog.servers(), 1):
            if place % SLICE_SERVERS == 0:
                yield
            source = self._catalog.tools_of(server)
            if not source:
                continue
            sources[server] = source
            about = _about(facts, server)
            old = segments.get(server)
            if old is not None and old.about == about and self._sources.get(server) is source:
                continue
            tools = cast("tuple[Tool, ...]", tuple(source.values()))
            if old is None or old.about != about or not _are_same(old, tools):
                changed.append((server, about, tools, number))
                number += len(tools)
        removed = [server for server in segments if server not in sources]
        return _Changes(generation, index, changed, removed, sources)

    async def _build_in_thread(self) -> None:
        def build(changes: _Changes) -> Index:
            self._related = self._related or load_related_words()
            index = _build(changes)
            if len(index) <= THREAD_SEARCH_TOOLS:  # else searches compute them, in a thread
                self._weights.prepare(index)
            return index

        try:
            changes = await run_in_slices(self._changes())
            index = await asyncio.to_thread(build, changes)
            replaced = [*vars(self._index).values()]
            self._install(index, changes)
            del changes
            while replaced:  # to free one of them takes milliseconds if there are many tools
                replaced.pop()
                await asyncio.sleep(0)
        finally:
            self._building = None

    def _install(self, index: Index, changes: _Changes) -> None:
        if changes.generation < self._generation:
            return  # a search that did not wait has built a newer one
        self._index, self._generation, self._sources = index, changes.generation, changes.sources
        self._hashes = {key: known for key, known in self._hashes.items() if key in index.numbers}

    def _number_of(self, index: Index, server: str, tool: str, definition: str) -> int | None:
        """Return the number of a tool in an index; None if the tool is missing or its definition has another hash."""
        number = index.numbers.get((server, tool))
        if number is None:
            return None
        known, found = self._hashes.get((server, tool)), index.documents[number].tool
        if known is None or known[0] is not found:
            known = self._hashes[server, tool] = (found, self._hash_definition(found))
        return number if known[1] == definition else None

    # -- ranking ------------------------------------------------------------------------------------------------------

    def _search(
        self,
        index: Index,
        queries: Sequence[str],
        limit: int,
        allowed: Allowed | None,
        server: str | None,
        principal: str,
        allowed_server: Callable[[str], bool] | None,
        facts: Mapping[str, ServerFacts],
        with_reasons: bool = True,
    ) -> SearchAnswer:
        limit = max(1, min(limit, MAX_LIMIT))
        related = self._related = self._related or load_related_words()
        visible = _visible(index, allowed, server)
        lists: list[list[ToolMatch]] = []
        fits = False
        for step, text in enumerate(queries):
            ranked = ranking.rank(
                index,
                ranking.parse_query(text, related),
                limit,
                visible=visible,
                cap=server is None,
                history=self._history if self._learn else None,
                numbers_by_key=partial(self._number_of, index),
                principal=principal,
                meaning=self._meaning(index, text),
                cache=self._weights,
            )
            fits = fits or ranked.fits
            lists.append(ranking.to_matches(index, ranked, step, with_reasons=with_reasons))
        matches = lists[0] if len(lists) == 1 else ranking.interleave(lists, limit)
        numbers = index.documents.keys() if visible is None else visible
        if not fits and len(matches) < min(limit, NEAREST, len(numbers)):
            first = sorted([(index.documents[number].tool.server, number) for number in numbers])
            matches = _fill(matches, (index.documents[number].tool for _, number in first), min(limit, NEAREST))
        servers: Set[str]
        if visible is None:
            servers = index.segments.keys()
        elif server is None and isinstance(allowed, AllowedTools):
            servers = allowed.numbers(index)[1]
        else:
            servers = {index.documents[each].tool.server for each in visible}
        notes = self._notes(facts, allowed_server or (lambda name: allowed is None or name in servers))
        return SearchAnswer(tuple(matches), len(numbers), len(servers), fits, notes)

    def _meaning(self, index: Index, text: str) -> dict[int, float] | None:
        """Return the score of each tool by its meaning for the query `text`.

        None without vectors to compare.
        """
        if self._vectors is None:
            return None
        scores = self._vectors.score(text, index.tools)
        if scores is None or len(scores) != len(index):
            return None
        found = {number: score for number, score in zip(index.documents, scores, strict=True) if score is not None}
        return found or None

    def _notes(self, facts: Mapping[str, ServerFacts], shown: Callable[[str], bool]) -> SearchNotes:
        down, missing, held = [], [], 0
        has_list = self._catalog.has_list
        for name, each in facts.items():
            is_listed = has_list(name, "tools")
            if (each.is_down or each.held or not is_listed) and shown(name):
                held += each.held
                if each.is_down:
                    down.append(name)
                if not is_listed:
                    missing.append(name)
        return SearchNotes(
            tuple(down), tuple(missing), held, self._vectors.problem if self._vectors is not None else ""
        )


def _about(facts: Mapping[str, ServerFacts], server: str) -> str:
    """Return the description of a server for the index, cut to a maximum length; "" if there is none."""
    known = facts.get(server)
    return known.about[:MAX_ABOUT_CHARS] if known is not None else ""


def _build(changes: _Changes) -> Index:
    """Return a new index, in which the changed servers are indexed again."""
    entries: Entries = defaultdict(list)
    segments = [build_segment(*each, entries) for each in changes.changed]
    return changes.before.with_segments(segments, entries, changes.removed)


def _are_same(segment: Segment, tools: Sequence[Tool]) -> bool:
    """Return True if the index of a server was built from exactly these tool objects."""
    return len(segment.documents) == len(tools) and all(
        document.tool is tool for document, tool in zip(segment.documents, tools, strict=True)
    )


def _clean(queries: str | Sequence[str]) -> list[str]:
    """Return search queries as a list, limited in number and length; [""] if there is none."""
    texts = [queries] if isinstance(queries, str) else list(queries)[:MAX_QUERIES]
    return [text[:MAX_QUERY_CHARS] for text in texts] or [""]


def _visible(index: Index, allowed: Allowed | None, server: str | None) -> Set[int] | None:
    """Return the numbers of the tools that the principal may see, of one server or of all. None means all tools."""
    numbers: Iterable[int] = index.documents
    if server is not None:
        segment = index.segments.get(server)
        numbers = segment.numbers if segment is not None else ()
    elif allowed is None:
        return None
    if allowed is None:
        return set(numbers)
    if server is None and isinstance(allowed, AllowedTools):
        return allowed.numbers(index)[0]
    documents = index.documents
    return {number for number in numbers if allowed((tool := documents[number].tool).server, tool.name)}


def _fill(matches: list[ToolMatch], tools: Iterable[Tool], count: int) -> list[ToolMatch]:
    """Fill up the matches of a search with visible tools of score 0: a search never returns an empty list."""
    known = {(match.tool.server, match.tool.name) for match in matches}
    further = (ToolMatch(tool, 0.0) for tool in tools if (tool.server, tool.name) not in known)
    return [*matches, *itertools.islice(further, count - len(matches))]
