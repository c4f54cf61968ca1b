"""Learning from calls: the queries after which a tool was called successfully. No I/O.

The words of such queries add to the tool's score like a field of low weight. A principal has one vote per tool and
query. A tool keeps its newest 20 queries. They are forgotten when its definition changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from toolway.search.index import B
from toolway.search.words import split_stems

WEIGHT: Final = 0.1  # of the field of earlier queries; higher weights let tools that were never called sink
USUAL_WORDS: Final = 25.0  # of the earlier queries of a tool; more words lower the weight of each, as in other fields
MAX_QUERIES: Final = 20  # per tool
MAX_TOOLS: Final = 20_000  # with earlier queries; the one that learned least recently is forgotten first
MAX_FOREIGN_VOTES: Final = 3  # queries with a word that one principal contributes to the searches of another
MAX_QUERY_WORDS: Final = 40

ToolKey = tuple[str, str]  # server and tool


@dataclass(slots=True)
class _History:
    """Search queries after which one tool was called successfully, oldest first, by principal and words."""

    definition: str
    queries: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)  # (principal, words) → words


class CallHistory:
    """Search queries after which tools were called successfully, by tool and by word."""

    def __init__(self) -> None:
        self._tools: dict[ToolKey, _History] = {}
        self._by_word: dict[str, set[ToolKey]] = {}

    def __len__(self) -> int:
        return len(self._tools)

    def record(self, query: str, principal: str, key: ToolKey, definition: str) -> None:
        """Record that `principal` called a tool successfully after searching for `query`."""
        words = frozenset(split_stems(query, MAX_QUERY_WORDS))
        if words:
            self._add(words, principal, key, definition)

    def _add(self, words: frozenset[str], principal: str, key: ToolKey, definition: str) -> None:
        history = self._tools.pop(key, None)
        if history is None or history.definition != definition:
            self._forget_words(key, history)
            history = _History(definition)
        self._tools[key] = history  # last, as the tool that learned most recently
        vote = (principal, " ".join(sorted(words)))
        history.queries.pop(vote, None)
        history.queries[vote] = words
        for word in words:
            self._by_word.setdefault(word, set()).add(key)
        while len(history.queries) > MAX_QUERIES:
            self._drop(key, history, next(iter(history.queries)))
        if len(self._tools) > MAX_TOOLS:
            self.forget(next(iter(self._tools)))

    def forget(self, key: ToolKey) -> None:
        """Forget the search queries after which a tool was called, for example because its definition changed."""
        self._forget_words(key, self._tools.pop(key, None))

    def _forget_words(self, key: ToolKey, history: _History | None) -> None:
        if history is not None:
            for vote in list(history.queries):
                self._drop(key, history, vote)

    def _drop(self, key: ToolKey, history: _History, vote: tuple[str, str]) -> None:
        for word in history.queries.pop(vote):
            if not any(word in words for words in history.queries.values()):
                tools = self._by_word.get(word, set())
                tools.discard(key)
                if not tools:
                    self._by_word.pop(word, None)

    def weights(self, word: str, principal: str) -> Iterator[tuple[ToolKey, str, float]]:
        """Yield (tool, definition hash, weight) of each tool that was called after a query with `word`."""
        for key in tuple(self._by_word.get(word, ())):  # copies: a search in a thread must not see a set change
            history = self._tools.get(key)
            if history is None:
                continue
            votes: dict[str, int] = {}
            for (voter, _), words in list(history.queries.items()):
                if word in words:
                    votes[voter] = votes.get(voter, 0) + 1
            counted = sum(
                count if voter == principal else min(count, MAX_FOREIGN_VOTES) for voter, count in votes.items()
            )
            length = sum(map(len, list(history.queries.values())))
            yield key, history.definition, counted * WEIGHT / (1 - B + B * length / USUAL_WORDS)

    def update(self, newer: CallHistory) -> None:
        """Add all queries of the history `newer` to this one. They count as newer than those that are here already."""
        for key, history in newer._tools.items():
            for principal, words in history.queries:
                self._restore(words, principal, key, history.definition)

    # -- storage ------------------------------------------------------------------------------------------------------

    def to_json(self) -> list[list[Any]]:
        """Return all earlier queries for storage: server, tool, definition, [[principal, words], …]."""
        return [
            [*key, history.definition, [list(vote) for vote in history.queries]] for key, history in self._tools.items()
        ]

    @classmethod
    def from_json(cls, stored: Any) -> CallHistory:
        """Return the history that `to_json` stored. Entries of another form are skipped."""
        history = cls()
        for entry in stored if isinstance(stored, list) else ():
            match entry:
                case [str(server), str(tool), str(definition), list(votes)]:
                    for vote in votes[-MAX_QUERIES:]:
                        match vote:
                            case [str(principal), str(words)]:
                                history._restore(words, principal, (server, tool), definition)
        return history

    def _restore(self, words: str, principal: str, key: ToolKey, definition: str) -> None:
        """Add a stored search query of a principal to the history. Its words are stems already."""
        stems = frozenset(words.split()[:MAX_QUERY_WORDS])
        if stems:
            self._add(stems, principal, key, definition)
