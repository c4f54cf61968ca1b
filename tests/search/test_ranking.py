"""The index and the fast ranking against plain ones, on random corpora that change."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Mapping
from operator import attrgetter

import pytest

from tests.search.tools import definition
from toolway.catalog.catalog import Catalog, Tool
from toolway.search import ranking, tool_search, word_scores
from toolway.search.index import FIELDS, K1, B, Index, Posting
from toolway.search.ranking import Query, parse_query, rank
from toolway.search.related import load_related_words
from toolway.search.tool_search import ServerFacts, ToolSearch
from toolway.search.word_scores import QueryPart, WeightCache, add_up, best_by_words
from toolway.search.words import split_name, split_stems

_WORDS = (
    "get list create delete update file folder image issue message mail user search weather city order price map "
    "query table branch commit photo video song book flight hotel invoice ticket server queue topic window page"
)
WORDS = _WORDS.split()
ABOUT = "Files and messages of a team"


def random_text(chance: random.Random, most: int) -> str:
    """Return words of which the first are far more frequent than the last."""
    return " ".join(WORDS[int(len(WORDS) * chance.random() ** 3)] for _ in range(chance.randint(0, most)))


def random_tools(chance: random.Random, count: int) -> list[dict[str, object]]:
    return [
        definition(
            f"{chance.choice(WORDS)}_{chance.choice(WORDS).capitalize()}{number}",
            random_text(chance, 20),
            **{f"{chance.choice(WORDS)}Id": random_text(chance, 8)},
        )
        for number in range(count)
    ]


def random_search(chance: random.Random) -> ToolSearch:
    """Return a search whose servers were added, changed and removed one after the other."""
    catalog = Catalog()
    facts = {"server1": ServerFacts(ABOUT)}
    search = ToolSearch(catalog, lambda: facts)
    for step in range(12):
        server = f"server{chance.randint(0, 5)}"
        catalog.add_server(server)
        catalog.replace(server, "tools", random_tools(chance, chance.choice((0, 1, 5, 60))))
        if step % 4 == 3:
            catalog.remove_server(f"server{chance.randint(0, 5)}")
        if chance.random() < 0.7:
            search.search("warm up")
    search.search("warm up")
    return search


def plain_weights(tool: Tool, about: str) -> dict[str, float]:
    """Return the BM25F weight of each word of a definition, without rarity."""
    properties = tool.raw["inputSchema"]["properties"]
    texts = (
        split_name(tool.name),
        split_name(tool.server),
        tool.description,
        " ".join(map(split_name, properties)),
        " ".join(each["description"] for each in properties.values()),
        about,
    )
    found: dict[str, float] = {}
    for field, text in zip(FIELDS, texts, strict=True):
        stems = split_stems(text, field.max_words)
        for word, count in Counter(stems).items():
            share = field.weight / (1 - B + B * len(stems) / field.usual_words)
            found[word] = found.get(word, 0.0) + share * min(count, 2)
    return {word: weight * (K1 + 1) / (weight + K1) for word, weight in found.items()}


@pytest.mark.parametrize("spread", [0, 3])
@pytest.mark.parametrize("seed", range(2))
def test_index_weights_are_right_after_any_changes(seed: int, spread: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_search, "MAX_SPREAD", spread)  # 0: every change renumbers all tools
    search = random_search(random.Random(seed))
    index = search._index
    expected: dict[str, dict[int, float]] = {}
    for number, document in index.documents.items():
        tool = document.tool
        assert index.numbers[tool.server, tool.name] == number < index.end
        assert search._catalog.find_tool(tool.server, tool.name) is tool
        for word, weight in plain_weights(tool, ABOUT if tool.server == "server1" else "").items():
            expected.setdefault(word, {})[number] = weight
    assert len(index) == len(index.numbers) == len(index.tools) == search._catalog.count_tools()
    assert index._postings.keys() == expected.keys()
    for word, weights in expected.items():
        posting = index.posting(word)
        assert posting is not None and posting.max_weight >= max(array("f", weights.values()))
        assert dict(posting.pairs()) == pytest.approx(weights, rel=1e-6)
        assert list(array("I", posting.numbers)) == sorted(weights) and posting.count == len(weights)
        assert posting.position(min(weights)) == 0 and posting.position(-1 % 2**32) == -1


def plain_scores(index: Index, query: Query) -> dict[int, float]:
    """Return the score of every tool that has a word of a query."""
    scores: dict[int, float] = {}
    weights = {**query.words, **{word: weight for word, (weight, _) in query.related.items()}}
    for word, weight in weights.items():
        posting = index.posting(word)
        for number, value in posting.pairs() if posting is not None else ():
            scores[number] = scores.get(number, 0.0) + weight * index.rarity(posting) * value
    return scores


@pytest.mark.parametrize("seed", range(12))
def test_fast_ranking_matches_plain_ranking(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    index = random_search(chance)._index
    related = load_related_words()
    pools: list[Mapping[int, float]] = []

    def keep(index: Index, query: Query, pool: Mapping[int, float]) -> Mapping[int, float]:
        pools.append(pool)
        return pool

    monkeypatch.setattr(ranking, "_add_name_coverage", keep)
    monkeypatch.setattr(ranking, "POOL", 6)
    monkeypatch.setattr(word_scores, "MIN_ENTRIES", 0)
    monkeypatch.setattr(word_scores, "FEW", seed % 3)
    monkeypatch.setattr(word_scores, "FREQUENT", chance.choice((4, 128, 10_000)))
    cache = WeightCache()
    for _ in range(40):
        query = parse_query(random_text(chance, 12) or "list", related)
        visible = (
            None if chance.random() < 0.5 else frozenset(each for each in index.documents if chance.random() < 0.3)
        )
        limit = chance.choice((1, 2, 5))
        named = {each for each in index.find_name(query.key) if visible is None or each in visible}
        rank(index, query, limit, visible=visible, cache=cache)
        pool = pools.pop()
        plain = plain_scores(index, query)
        scores = {each: score for each, score in plain.items() if visible is None or each in visible}
        assert {each: pool[each] for each in pool if each in scores} == pytest.approx(
            {each: scores[each] for each in pool if each in scores}
        )
        assert pool.keys() <= scores.keys() | named
        best = sorted((score for each, score in scores.items() if each not in named), reverse=True)
        count = max(0, max(6, 6 * limit) - len(named))
        assert sorted((pool[each] for each in pool.keys() - named), reverse=True) == pytest.approx(best[:count])


def random_posting(chance: random.Random, end: int) -> Posting:
    """Return the posting of a word that few or many tools have."""
    having = chance.sample(range(end), chance.choice((1, 20, end // 10, end // 2)))
    entries = [value for number in sorted(having) for value in (number, chance.uniform(0.01, 2.2))]
    return Posting(b"", b"", 0.0, 0).with_entries(entries)


@pytest.mark.parametrize("seed", range(6))
def test_best_of_many_tools_have_exact_plain_scores(seed: int) -> None:
    chance, cache = random.Random(seed), WeightCache()
    end = chance.choice((1500, 3001))
    postings = [random_posting(chance, end) for _ in range(30)]
    scopes = [frozenset(chance.sample(range(end), count)) for count in (0, 100, end // 3)]
    for _ in range(25):
        factors = chance.choice(((0.001, 0.01, 8.0), (1.0,), (0.2, 2.0, 5.0)))
        chosen = sorted(chance.sample(postings, chance.randint(2, 24)), key=attrgetter("count"))
        parts = [QueryPart(chance.choice(factors), each) for each in chosen]
        learned = {chance.randrange(end): chance.random() for _ in range(chance.choice((0, 0, 9)))}
        visible = chance.choice((None, *scopes))
        plain = add_up(parts, learned)
        found = best_by_words(end, parts, 60, learned, visible, {7}, cache)
        assert all(plain[number] == score for number, score in found.items())
        best, ours = (
            sorted([(-score, number) for number, score in scores.items() if visible is None or number in visible])[:60]
            for scores in (plain, found)
        )
        assert ours == best
        assert (7 in found) == (7 in plain) or (visible is not None and 7 not in visible)


@pytest.mark.parametrize("seed", range(3))
def test_meaning_of_hidden_tools_changes_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "POOL", 5)
    chance = random.Random(seed)
    index = random_search(chance)._index
    for _ in range(20):
        query = parse_query(random_text(chance, 6) or "list", load_related_words())
        visible = frozenset(each for each in index.documents if chance.random() < 0.4)
        near = {each: chance.random() for each in index.documents}
        far = {each: near[each] if each in visible else chance.uniform(-9, 9) for each in near}
        ours, theirs = (rank(index, query, 3, visible=visible, meaning=each) for each in (near, far))
        assert (ours.numbers, ours.scores, ours.fits) == (theirs.numbers, theirs.scores, theirs.fits)
        assert visible.issuperset(ours.numbers) and len(ours.numbers) == min(3, len(visible))
