"""The published scores of the tool search cannot fall unnoticed (`make search-score` prints all of them)."""

from __future__ import annotations

import pytest

from bench.search import pack_related
from bench.search.ours import Searched, rank_ours
from bench.search.sets import load, load_sets, score_queries, score_tasks
from toolway.search.related import RelatedWords, load_related_words
from toolway.search.tokens import CHARS_PER_TOKEN

SETS = load_sets()
SEAL_STEP = 4  # a quarter of its 1,000 queries, against all of its 4,076 tools


@pytest.mark.parametrize(("name", "floor"), [("live", 0.39), ("meta", 0.656), ("multi", 0.68), ("golden", 0.84)])
def test_the_needed_tools_are_among_the_first_five(name: str, floor: float) -> None:
    chosen = SETS[name]
    _, recall, _ = score_queries(rank_ours(chosen), chosen.queries)
    assert recall >= floor


def test_the_needed_tools_of_a_large_set_are_among_the_first_five() -> None:
    queries = SETS["seal"].queries[::SEAL_STEP]
    _, recall, _ = score_queries(Searched(SETS["seal"].tools).rank(queries), queries)
    assert recall >= 0.88


def test_an_agents_own_searches_find_the_tools_of_its_task() -> None:
    found = rank_ours(SETS["agents"])
    assert score_tasks(found, SETS["agents"], 5) >= 0.63


def test_earlier_calls_help_their_tools_and_cost_the_rest_little() -> None:
    meta = SETS["meta"]
    used = frozenset(tool["id"] for number, tool in enumerate(meta.tools) if number % 3 == 0)
    parts = [
        [query for query in meta.queries if (query["relevant"][0][0] in used) is wanted] for wanted in (True, False)
    ]
    searched = Searched(meta.tools)
    before = [score_queries(searched.rank(queries), queries)[1] for queries in parts]
    searched.learn(load("metatool")["dev"], 10, used)
    after = [score_queries(searched.rank(queries), queries)[1] for queries in parts]
    assert after[0] >= before[0] + 0.03
    assert after[1] >= before[1] - 0.015


def test_the_table_of_related_words_is_that_of_the_data() -> None:
    assert RelatedWords(pack_related.packed())("photo") == load_related_words()("photo")
    table = load("related-words")
    assert all(load_related_words()(word) for word in table)
    assert load_related_words()("no-such-word") == ()


def test_estimated_tokens_are_near_the_counted_ones() -> None:
    tools = load("tokens-504")["tools"]
    counted = sum(tool["o200k"] for tool in tools)
    assert sum(tool["chars"] for tool in tools) / CHARS_PER_TOKEN == pytest.approx(counted, rel=0.02)
    errors = sorted(abs(tool["chars"] / CHARS_PER_TOKEN / tool["o200k"] - 1) for tool in tools)
    assert errors[len(errors) // 2] < 0.06 and errors[int(len(errors) * 0.9)] < 0.12
