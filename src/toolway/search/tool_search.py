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
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from toolway.catalog.catalog import Catalog, Tool
from toolway.search import ranking
from toolway.search.index import Index, Segment, build_segment, definition_hash
from toolway.search.learning import CallHistory
from toolway.search.related import Related, load_related_words
from toolway.search.results import SearchAnswer, SearchNotes, ToolMatch

THREAD_BUILD_TOOLS: Final = 2_000  # more new tools are indexed in a thread
THREAD_SEARCH_TOOLS: Final = 20_000  # more tools are searched in a thread
THREAD_MEANING_TOOLS: Final = 2_000  # the same, by meaning: then every tool has a score
MAX_LIMIT: Final = 50
NEAREST: Final = 5  # tools in an answer if nothing fits
MAX_QUERIES: Final = 10
MAX_QUERY_CHARS: Final = 4_000
MAX_ABOUT_CHARS: Final = 1_000  # of the description of a server

Allowed: TypeAlias = Callable[[str, str], bool]  # server, tool


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts about one server that the search needs beside its list of tools."""

    about: str = ""  # title, description and instructions of the server
    is_down: bool = False  # a call would fail now; an idle server is not down
    held: int = 0  # tools that wait for an approval


class AllowedTools:
    """Fixed set of tools that a principal may see, for `allowed`. Its numbers are computed once per index."""

    def __init__(self, tools: Container[tuple[str, str]]) -> None:
        self._tools = tools  # (server, tool); never changed later
        self._numbers: tuple[Index, frozenset[int], frozenset[str]] | None = None

    def __call__(self, server: str, tool: str) -> bool:
        return (server, tool) in self._tools

    def numbers(self, index: Index) -> tuple[frozenset[int], frozenset[str]]:
        """Return the numbers of these tools in an index, and their servers."""
        known = self._numbers
        if known is None or known[0] is not index:
            tools = {number: document.tool for number, document in index.documents.items()}
            allowed = {number: tool for number, tool in tools.items() if (tool.server, tool.name) in self._tools}
            servers = frozenset(tool.server for tool in allowed.values())
            known = self._numbers = (index, frozenset(allowed), servers)
        return known[1], known[2]


class VectorSource(Protocol):
    """Gives the likeness of tools and a query by meaning, such as an embedding model (`ToolSearch.set_vectors`).

    The search calls `prepare` before each query of `search_async`, then `score`. Tools are passed as the same tuple
    object until a list changes, so that a source can keep their matrix. A source caches vectors by `definition_hash`.
    """

    async def prepare(self, queries: Sequence[str], tools: Sequence[Tool]) -> None:
        """Do what needs waiting, within the source's own time limit: embed the queries, start embedding the tools."""

    def score(self, query: str, tools: Sequence[Tool]) -> Sequence[float | None] | None:
        """Return the cosine of the query and each tool, None for a tool that has no vector yet.

        Return None if the query has no vector: the search then ranks by words alone. Must not wait.
        """

    @property
    def problem(self) -> str:
        """Return why the source gives no scores now, in a few words; "" if it does."""


class ToolSearch:
    """Search over the tools of a catalog, by words, by meaning if there is a vector source, and by earlier calls.

    Args:
        catalog: The catalog whose tools are searched. Denied tools are not in it.
        facts: Returns the facts about each server by name. None: nothing is known about them.
        related: Table of related words; None loads that of the package at the first search.
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
        self._next_number = 0
        self._all_tools: tuple[Tool, ...] = ()
        self._hashes: dict[int, str] = {}  # by number of the tool; filled when a tool has a history
        self._numbers: dict[tuple[str, str], int] = {}
        self._vectors: VectorSource | None = None
        self._building: asyncio.Task[None] | None = None
        self._learn = learn
        self._history = CallHistory()

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
        facts = self._facts() if self._facts is not None else {}
        self._update(facts)
        return self._search(
            self._index, _clean(queries), limit, allowed, server, principal or "", allowed_server, facts
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
    ) -> SearchAnswer:
        """Return the same as `search` without holding the event loop; embed the query first, if there is a source.

        With more than 20,000 tools the ranking, and with it `allowed`, runs in a thread.
        """
        await self.prepare()
        asked, facts = _clean(queries), self._facts() if self._facts is not None else {}
        if self._vectors is not None:
            await self._vectors.prepare(asked, self._all_tools)
        index, who = self._index, principal or ""
        if len(index) > (THREAD_SEARCH_TOOLS if self._vectors is None else THREAD_MEANING_TOOLS):
            return await asyncio.to_thread(
                self._search, index, asked, limit, allowed, server, who, allowed_server, facts
            )
        return self._search(index, asked, limit, allowed, server, who, allowed_server, facts)

    async def prepare(self) -> None:
        """Bring the index up to date: in a thread if many tools are new, else at once."""
        while self._generation != self._catalog.generation:
            if self._building is None:
                facts = self._facts() if self._facts is not None else {}
                generation, changed, removed = self._changes(facts)
                if sum(len(tools) for _, _, tools in changed) <= THREAD_BUILD_TOOLS:
                    self._install(self._build(changed, removed), generation)
                    return
                self._building = asyncio.create_task(self._build_in_thread(changed, removed, generation))
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

    def set_learning(self, learn: bool) -> None:
        """Switch learning from calls on or off. Off also forgets what was learned."""
        self._learn = learn
        if not learn:
            self._history = CallHistory()

    def set_vectors(self, source: VectorSource | None) -> None:
        """Use the scores of an embedding model from now on. None ranks by words alone."""
        self._vectors = source

    # -- index --------------------------------------------------------------------------------------------------------

    def _update(self, facts: Mapping[str, ServerFacts]) -> None:
        if self._generation != self._catalog.generation:
            generation, changed, removed = self._changes(facts)
            self._install(self._build(changed, removed), generation)

    def _changes(
        self, facts: Mapping[str, ServerFacts]
    ) -> tuple[int, list[tuple[str, str, tuple[Tool, ...]]], list[str]]:
        """Return the generation of the catalog, the servers whose segment must be built, and those that are gone."""
        by_server: dict[str, list[Tool]] = {}
        for tool in self._catalog.tools():
            by_server.setdefault(tool.server, []).append(tool)
        changed = []
        for server, tools in by_server.items():
            about = facts[server].about[:MAX_ABOUT_CHARS] if server in facts else ""
            old = self._index.segments.get(server)
            same = old is not None and old.about == about and len(old.documents) == len(tools)
            if not same or any(a.tool is not b for a, b in zip(old.documents, tools, strict=True)):  # type: ignore[union-attr]
                changed.append((server, about, tuple(tools)))
        removed = [server for server in self._index.segments if server not in by_server]
        return self._catalog.generation, changed, removed

    def _build(self, changed: Iterable[tuple[str, str, tuple[Tool, ...]]], removed: Iterable[str]) -> Index:
        """Return the index with new segments of the changed servers."""
        segments: list[Segment] = []
        for server, about, tools in changed:
            segments.append(build_segment(server, about, tools, self._next_number))
            self._next_number += len(tools)
        return self._index.with_segments(segments, removed)

    async def _build_in_thread(
        self, changed: list[tuple[str, str, tuple[Tool, ...]]], removed: list[str], generation: int
    ) -> None:
        try:
            self._install(await asyncio.to_thread(self._build, changed, removed), generation)
        finally:
            self._building = None

    def _install(self, index: Index, generation: int) -> None:
        self._index, self._generation = index, generation
        documents = index.documents
        self._all_tools = tuple(document.tool for document in documents.values())
        self._numbers = {(document.tool.server, document.tool.name): number for number, document in documents.items()}
        self._hashes = {number: known for number, known in self._hashes.items() if number in documents}

    def _number_of(self, server: str, tool: str, definition: str) -> int | None:
        """Return the number of a tool if its definition still has this hash."""
        number = self._numbers.get((server, tool))
        if number is None:
            return None
        known = self._hashes.get(number)
        if known is None:
            document = self._index.documents.get(number)
            if document is None:
                return None
            known = self._hashes[number] = self._hash_definition(document.tool)
        return number if known == definition else None

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
                numbers_by_key=self._number_of,
                principal=principal,
                meaning=self._meaning(index, text),
            )
            fits = fits or ranked.fits
            lists.append(ranking.to_matches(index, ranked, step))
        matches = lists[0] if len(lists) == 1 else ranking.interleave(lists, limit)
        numbers = index.documents.keys() if visible is None else visible
        if not fits and len(matches) < min(limit, NEAREST, len(numbers)):
            matches = _fill(matches, (index.documents[number].tool for number in sorted(numbers)), min(limit, NEAREST))
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
        """Return the likeness of each tool by meaning, or None if the source has none for this query."""
        if self._vectors is None:
            return None
        scores = self._vectors.score(text, self._all_tools)
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


def _clean(queries: str | Sequence[str]) -> list[str]:
    """Return the queries as a bounded list of bounded texts; an empty one if there is none."""
    texts = [queries] if isinstance(queries, str) else list(queries)[:MAX_QUERIES]
    return [text[:MAX_QUERY_CHARS] for text in texts] or [""]


def _visible(index: Index, allowed: Allowed | None, server: str | None) -> Set[int] | None:
    """Return the numbers of the tools that the principal may see, of one server or of all. None means all tools."""
    numbers: Iterable[int] = index.documents
    if server is not None:
        segment = index.segments.get(server)
        numbers = range(segment.base, segment.base + len(segment.documents)) if segment is not None else ()
    elif allowed is None:
        return None
    if allowed is None:
        return set(numbers)
    if server is None and isinstance(allowed, AllowedTools):
        return allowed.numbers(index)[0]
    documents = index.documents
    return {number for number in numbers if allowed((tool := documents[number].tool).server, tool.name)}


def _fill(matches: list[ToolMatch], tools: Iterable[Tool], count: int) -> list[ToolMatch]:
    """Return matches with further tools of score 0, so that an answer never ends in nothing."""
    known = {(match.tool.server, match.tool.name) for match in matches}
    further = (ToolMatch(tool, 0.0) for tool in tools if (tool.server, tool.name) not in known)
    return [*matches, *itertools.islice(further, count - len(matches))]
