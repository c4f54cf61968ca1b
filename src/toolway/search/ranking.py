"""Ranking of tools for one query: words (BM25F), related words, earlier calls, meaning. No I/O.

1. Each word of the query adds its rarity times its weight in the tool (`index.py`); related words add a smaller part.
2. Tools that the principal may not see are dropped, before the best are taken.
3. If there are vector scores, both scores become z-scores over visible tools and are added, 0.35 words + 0.65 meaning.
4. A tool gains a share of the mean score of the server's three best tools: related tools appear together.
5. At most three of five tools are of one server, unless the query names it or no other server has a near match.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from toolway.search.index import K1, Document, Index, Posting, find_fields
from toolway.search.learning import CallHistory
from toolway.search.related import Related
from toolway.search.results import Reason, ToolMatch
from toolway.search.word_scores import QueryPart, WeightCache, add_up, best_by_words
from toolway.search.words import name_key, split_name, split_words, stem

RELATED_WEIGHT: Final = 0.4  # of a related word, times the square of its likeness
REPEATED_WEIGHT: Final = 0.25  # added to a word for each repetition in the query
MAX_WORD_WEIGHT: Final = 1.5
WORDS_SHARE: Final = 0.35  # of the words in the fusion with meaning
SERVER_SHARE: Final = 0.15  # of the mean score of the server's best three tools
SERVER_TOP: Final = 3
NAME_SHARE: Final = 0.4  # added to a tool if all words of its name are in the query
CAP_RATIO: Final = 0.9  # score of another server's tool that replaces the fourth of one server, as a part of it
MAX_QUERY_WORDS: Final = 64
POOL: Final = 60  # tools that are considered for the server's share, at least; 6 per result
FULL_WEIGHT: Final = 1.7  # of a word that is in the name and the description of a tool
MIN_WORD_FIT: Final = 0.22  # a best match with a lower score by words does not fit well
MIN_MEANING_FIT: Final = 0.35  # the same, of its likeness by meaning
MIN_BONUS: Final = 0.005  # that is worth a reason


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query: its words with their weights, related words, and the normalized text if it is a tool's name."""

    text: str
    words: Mapping[str, float]  # stems of the query
    related: Mapping[str, tuple[float, str]]  # related stem → weight, word of the query
    key: str  # what all spellings of a name have in common, if the query is a name
    spelled: Mapping[str, str]  # stem → the word as the query spells it


@dataclass(slots=True)
class Ranked:
    """Ranking of tools for one search query: numbers of tools with their scores, best first."""

    query: Query
    numbers: list[int]
    scores: dict[int, float]  # between 0 and 1
    fits: bool
    learned: dict[int, float] = field(default_factory=dict)  # part of the score by words from earlier calls
    meaning: Mapping[int, float] | None = None  # likeness by meaning
    full: float = 1.0  # score by words of a tool in which all words have their full weight


def parse_query(text: str, related: Related | None) -> Query:
    """Split a query into words, and add the words that are related to them."""
    found = split_words(text, MAX_QUERY_WORDS)
    spelled = {stem(word): word for word in reversed(found)}
    words: dict[str, float] = {}
    for each in map(stem, found):
        words[each] = min(words[each] + REPEATED_WEIGHT, MAX_WORD_WEIGHT) if each in words else 1.0
    near: dict[str, tuple[float, str]] = {}
    for word in words if related is not None else ():
        for other, likeness in related(word) if related is not None else ():
            weight = RELATED_WEIGHT * likeness * likeness
            if other not in words and weight > near.get(other, (0.0, ""))[0]:
                near[other] = (weight, word)
    return Query(text, words, near, name_key(text), spelled)


def rank(
    index: Index,
    query: Query,
    limit: int,
    *,
    visible: Set[int] | None = None,
    cap: bool = True,
    history: CallHistory | None = None,
    numbers_by_key: Callable[[str, str, str], int | None] | None = None,
    principal: str = "",
    meaning: Mapping[int, float] | None = None,
    cache: WeightCache | None = None,
) -> Ranked:
    """Return the `limit` tools that fit a search query best, with their scores.

    Args:
        index: Index of the tools of all servers.
        query: The query, split into words.
        limit: Number of results.
        visible: Numbers of the tools that the principal may see; None: all. Hidden tools influence only the rarity
            of words.
        cap: Limit the results of one server.
        history: Earlier queries with successful calls.
        numbers_by_key: Returns the number of a tool by server, name and hash of its definition, for `history`.
        principal: Whose own earlier queries count in full.
        meaning: Likeness of each tool by meaning, by number; None ranks by words alone.
        cache: Weights of frequent words, from earlier searches.
    """
    learned: dict[int, float] = {}
    if history is not None and len(history) and numbers_by_key is not None:
        learned = _score_history(index, query, history, numbers_by_key, principal)
    named = {number for number in index.find_name(query.key) if visible is None or number in visible}
    parts, full = _weigh_query(index, query)
    count = max(POOL, 6 * limit)
    if meaning is None:
        scores = best_by_words(index.end, parts, count, learned, visible, named, cache or WeightCache())
        pool = _add_name_coverage(index, query, _take_best(index, scores, count, visible, named))
    else:
        scores, likeness, total = add_up(parts, learned), meaning, len(index)
        if visible is not None:  # before the z-scores: a hidden tool must not move those of visible tools
            scores = {number: score for number, score in scores.items() if number in visible}
            likeness, total = {number: score for number, score in meaning.items() if number in visible}, len(visible)
        pool = _take_best(index, fuse(scores, likeness, total), count, None, named)
    shared = _add_server_share(index, pool)
    documents = index.documents
    ranked = sorted([(each not in named, -score, documents[each].tool.server, each) for each, score in shared.items()])
    order = [each for *_, each in ranked]
    if cap:
        order = _cap_servers(index, query, order, shared, limit, named)
    chosen = order[:limit]
    display = _to_unit(shared, scores, meaning, full, named, chosen)
    best = chosen[0] if chosen else None
    fits = best is not None and (
        best in named
        or scores.get(best, 0.0) / full >= MIN_WORD_FIT
        or (meaning is not None and meaning.get(best, 0.0) >= MIN_MEANING_FIT)
    )
    return Ranked(query, chosen, display, fits, learned, meaning, full)


def _weigh_query(index: Index, query: Query) -> tuple[list[QueryPart], float]:
    """Return the query's words with their factors and postings, and the highest possible score, if all words match.

    Words with few tools are first.
    """
    full = 0.0
    parts = []
    posting_of, rarity_of = index.posting, index.rarity
    for word, weight in query.words.items():
        posting = posting_of(word)
        factor = weight * rarity_of(posting)
        full += factor * FULL_WEIGHT
        if posting is not None:
            parts.append(QueryPart(factor, posting))
    for word, (weight, _) in query.related.items():
        posting = posting_of(word)
        if posting is not None:
            parts.append(QueryPart(weight * rarity_of(posting), posting))
    parts.sort(key=attrgetter("posting.count"))
    return parts, full or 1.0


def _score_history(
    index: Index,
    query: Query,
    history: CallHistory,
    numbers_by_key: Callable[[str, str, str], int | None],
    principal: str,
) -> dict[int, float]:
    """Return, by tool number, the extra score of tools that were called after earlier queries with the same words."""
    learned: dict[int, float] = {}
    for word in query.words:
        posting: Posting | None = None
        rarity = 0.0
        for (server, tool), definition, weight in history.weights(word, principal):
            number = numbers_by_key(server, tool, definition)
            if number is None:
                continue
            if not rarity:
                posting = index.posting(word)
                rarity = index.rarity(posting)
            at = posting.position(number) if posting is not None else -1
            saturated = posting.weight(at) if posting is not None and at >= 0 else 0.0
            before = K1 * saturated / (K1 + 1 - saturated)  # the weight before saturation
            after = (before + weight) * (K1 + 1) / (before + weight + K1)
            learned[number] = learned.get(number, 0.0) + rarity * (after - saturated)
    return learned


def fuse(words: Mapping[int, float], meaning: Mapping[int, float], total: int) -> dict[int, float]:
    """Return one score per tool: the weighted sum of its z-scores by words and by meaning, over `total` tools.

    A tool without a score by words has 0; one without a score by meaning has the mean.
    """
    word_mean, word_spread = _moments(words.values(), total)
    meaning_mean, meaning_spread = _moments(meaning.values(), len(meaning))
    fused = {}
    for number in meaning.keys() | words.keys():
        by_words = (words.get(number, 0.0) - word_mean) / word_spread
        by_meaning = (meaning.get(number, meaning_mean) - meaning_mean) / meaning_spread
        fused[number] = WORDS_SHARE * by_words + (1 - WORDS_SHARE) * by_meaning
    return fused


def _moments(values: Iterable[float], count: int) -> tuple[float, float]:
    """Return mean and standard deviation of `count` numbers: `values`, and zeros for the rest."""
    total = squares = 0.0
    for value in values:
        total += value
        squares += value * value
    mean = total / max(count, 1)
    return mean, math.sqrt(max(squares / max(count, 1) - mean * mean, 0.0)) or 1.0


def _take_best(
    index: Index, scores: Mapping[int, float], count: int, visible: Set[int] | None, named: Set[int]
) -> dict[int, float]:
    """Return the scores of the best `count` visible tools, by number. The tools in `named` are always included.

    Of tools with equal scores, the first one wins, by the name of its server. Their numbers alone depend on which
    server responded first, so the same search could have another answer after a restart or at another node.
    """
    pool = {number: scores.get(number, 0.0) for number in named}
    if visible is not None:
        scores = {number: score for number, score in scores.items() if number in visible}
    if len(scores) > 2 * count:
        line = heapq.nlargest(count, scores.values())[-1]
        scores = {number: score for number, score in scores.items() if score >= line}
    documents = index.documents
    best = sorted(
        [(-score, documents[number].tool.server, number) for number, score in scores.items() if number not in named]
    )
    for score, _, number in best[: max(0, count - len(pool))]:
        pool[number] = -score
    return pool


def _add_name_coverage(index: Index, query: Query, pool: Mapping[int, float]) -> dict[int, float]:
    """Return the scores, each raised if the query contains words of the tool's name.

    The raise grows with the share of the name's words that are in the query. Related words count in part.
    """
    documents = index.documents
    weights = {**query.words, **{word: weight for word, (weight, _) in query.related.items()}}
    raised = {}
    for number, score in pool.items():
        stems = documents[number].name_stems
        covered = 0.0
        for each in stems:
            if each in weights:
                covered += weights[each]
        if covered:
            score *= 1 + NAME_SHARE * min(1.0, covered / len(stems))
        raised[number] = score
    return raised


def _add_server_share(index: Index, pool: Mapping[int, float]) -> dict[int, float]:
    """Return the scores, each raised by a share of its server's three best."""
    documents, by_server = index.documents, dict[str, list[int]]()
    for number in pool:
        server = documents[number].tool.server
        if server in by_server:
            by_server[server].append(number)
        else:
            by_server[server] = [number]
    shared = {}
    for numbers in by_server.values():
        if len(numbers) == 1:
            score = pool[numbers[0]]
            shared[numbers[0]] = score + SERVER_SHARE * score / SERVER_TOP
        else:
            best = sorted([pool[number] for number in numbers], reverse=True)[:SERVER_TOP]
            share = SERVER_SHARE * sum(best) / SERVER_TOP
            for number in numbers:
                shared[number] = pool[number] + share
    return shared


def _names_server(index: Index, query: Query, server: str) -> bool:
    """Return True if the query has all words of a server's name."""
    stems = index.segments[server].name_stems
    return bool(stems) and stems <= query.words.keys()


def _cap_servers(
    index: Index, query: Query, order: Sequence[int], scores: Mapping[int, float], limit: int, first: Set[int]
) -> list[int]:
    """Return the first `limit` tools of `order`, with at most three of five results from one server.

    Another tool of that server is replaced by the next tool of another server that has `CAP_RATIO` of its score. So one
    server cannot fill an answer, and a server that alone fits is not cut. Servers that the query names, and tools whose
    name is the query (`first`), are not limited.
    """
    most = max(1, math.ceil(limit * 3 / 5))
    counts: dict[str, int] = {}
    waiting, result = list(order), list[int]()
    while waiting and len(result) < limit:
        number = waiting[0]
        server = index.documents[number].tool.server
        if counts.get(server, 0) >= most and number not in first and not _names_server(index, query, server):
            enough = scores[number] * CAP_RATIO
            number = next(
                (
                    each
                    for each in waiting
                    if scores[each] >= enough and counts.get(index.documents[each].tool.server, 0) < most
                ),
                number,
            )
            server = index.documents[number].tool.server
        waiting.remove(number)
        counts[server] = counts.get(server, 0) + 1
        result.append(number)
    return result


def _to_unit(
    shared: Mapping[int, float],
    scores: Mapping[int, float],
    meaning: Mapping[int, float] | None,
    full: float,
    named: Set[int],
    chosen: Sequence[int],
) -> dict[int, float]:
    """Return the scores of the chosen tools scaled to the range from 0 to 1, in the same order."""
    if meaning is None:
        unit = {number: min(1.0, shared[number] / (full * (1 + SERVER_SHARE))) for number in chosen}
    else:
        best = max((shared[number] for number in chosen), default=1.0)
        top = next((number for number in chosen if shared[number] == best), None)
        scale = min(1.0, max(scores.get(top, 0.0) / full, meaning.get(top, 0.0))) if top is not None else 0.0
        unit = {number: max(0.0, scale * shared[number] / best) if best > 0 else 0.0 for number in chosen}
    return {number: 1.0 if number in named else value for number, value in unit.items()}


def explain(index: Index, ranked: Ranked, number: int) -> tuple[Reason, ...]:
    """Return the reasons for the score of a tool, the most important first."""
    query, scale = ranked.query, 1 / (ranked.full * (1 + SERVER_SHARE))
    reasons = []
    if number in index.find_name(query.key):
        reasons.append(Reason("name", query.text.strip(), ("name",), 1.0))
    found: list[Reason] = []
    fields = find_fields(index, number)
    for word, weight, source in (
        *((word, weight, "") for word, weight in query.words.items()),
        *((word, weight, source) for word, (weight, source) in query.related.items()),
    ):
        posting = index.posting(word) if word in fields else None
        at = posting.position(number) if posting is not None else -1
        if posting is not None and at >= 0:
            value = weight * index.rarity(posting) * posting.weight(at) * scale
            shown = query.spelled.get(word, word)
            if source:
                shown = f"{query.spelled[source]}≈{_spelling(index.documents[number], word)}"
            found.append(Reason("related" if source else "word", shown, fields.get(word, ()), value))
    reasons += sorted(found, key=lambda reason: -reason.weight)
    if number in ranked.learned:
        reasons.append(Reason("history", "called after such a query", (), ranked.learned[number] * scale))
    rest = ranked.scores[number] - sum(reason.weight for reason in reasons)
    if ranked.meaning is None and rest >= MIN_BONUS:
        reasons.append(Reason("bonus", "words of its name, other tools of its server", (), rest))
    if ranked.meaning is not None and number in ranked.meaning:
        reasons.append(Reason("meaning", "", (), ranked.meaning[number]))
    return tuple(reasons)


def _spelling(document: Document, word: str) -> str:
    """Return the first word of a tool's name or description that has this stem, for display."""
    text = f"{split_name(document.tool.name)} {document.tool.description[:500]}"
    return next((each for each in split_words(text, 100) if stem(each) == word), word)


def to_matches(index: Index, ranked: Ranked, step: int = 0, *, with_reasons: bool = True) -> list[ToolMatch]:
    """Return the results of a ranking as `ToolMatch`es, with the reasons for their scores if these are wanted."""
    return [
        ToolMatch(
            index.documents[number].tool,
            ranked.scores[number],
            explain(index, ranked, number) if with_reasons else (),
            step,
        )
        for number in ranked.numbers
    ]


def interleave(lists: Sequence[Sequence[ToolMatch]], limit: int) -> list[ToolMatch]:
    """Merge the matches of several queries, the best of each query in turn, up to `limit`. Each tool appears once."""
    merged: dict[tuple[str, str], ToolMatch] = {}
    for place in range(max(map(len, lists), default=0)):
        for found in lists:
            if place < len(found) and len(merged) < limit:
                merged.setdefault((found[place].tool.server, found[place].tool.name), found[place])
    return list(merged.values())[:limit]
