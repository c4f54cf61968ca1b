"""What a search finds: words, related words, names, steps, notes, a changed list, earlier calls and meaning."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.search.tools import WORK, catalog_of, definition, kinds, names, replace, search_of
from toolway.catalog.catalog import Tool
from toolway.search import tool_search
from toolway.search.index import Entries, Segment, build_segment, definition_hash
from toolway.search.learning import MAX_QUERIES, CallHistory
from toolway.search.tool_search import ServerFacts, ToolSearch
from toolway.search.words import name_key, split_stems, split_words, stem

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("word", ["create", "creates", "created", "creating", "creator"])
def test_word_endings_are_cut(word: str) -> None:
    assert stem(word) == "creat"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Please send me the e-mail", ["send", "e", "mail"]),
        ("查找 photos", ["查", "找", "photos"]),
        ("créer un café", ["creer", "un", "cafe"]),
        ("de\u200bl\u2060ete \U000e0041file", ["delete", "file"]),  # invisible characters inside words
        ("отправить письмо", ["отправить", "письмо"]),
    ],
)
def test_text_is_split_into_words(text: str, words: list[str]) -> None:
    assert split_words(text, 20) == words


def test_words_are_bounded() -> None:
    assert len(split_stems("word " * 1000, 64)) == 64
    assert len(split_words("x" * 5000, 5)[0]) == 40
    assert name_key("GitHub.create-Issue") == "githubcreateissue"


def test_best_tool_is_first_with_its_reasons() -> None:
    answer = search_of().search("make a new issue in the repository")
    assert names(answer)[0] == "github.create_issue" and answer.fits
    reasons = answer.matches[0].reasons
    assert {"issue", "repository"} <= {reason.text for reason in reasons}
    issue = next(reason for reason in reasons if reason.text == "issue")
    assert set(issue.fields) >= {"name", "description"} and 0 < issue.weight < 1
    scores = [match.score for match in answer.matches]
    assert scores == sorted(scores, reverse=True) and all(0 <= score <= 1 for score in scores)


def test_related_word_finds_a_tool() -> None:
    answer = search_of().search("remove a picture")
    assert names(answer)[0] == "photos.delete_image"
    assert {"remove≈delete", "picture≈image"} <= {reason.text for reason in answer.matches[0].reasons}


@pytest.mark.parametrize("limit", [1, 5])
def test_poor_match_is_marked_and_still_returns_tools(limit: int) -> None:
    answer = search_of().search("quantum chromodynamics lecture", limit=limit)
    assert not answer.fits and len(answer.matches) == limit
    assert not search_of().search("", limit=5).fits


def test_search_without_tools_returns_nothing() -> None:
    answer = search_of({}).search("anything")
    assert (answer.matches, answer.total_tools, answer.total_servers, answer.fits) == ((), 0, 0, False)


def test_steps_are_ranked_separately_and_interleaved() -> None:
    answer = search_of().search(["weather forecast", "send a message"], limit=4)
    assert names(answer)[:2] == ["weather.get_forecast", "mail.send"]
    assert [match.step for match in answer.matches[:2]] == [0, 1]


def test_search_can_be_limited_to_one_server() -> None:
    answer = search_of().search("create issue", server="jira")
    assert {match.tool.server for match in answer.matches} == {"jira"}
    assert (answer.total_tools, answer.total_servers) == (2, 1)
    assert search_of().search("create issue", server="nothing").matches == ()


def test_denied_tools_are_not_found_or_counted() -> None:
    answer = search_of().search("create issue", allowed=lambda server, tool: server != "github")
    assert names(answer)[0] == "jira.create_issue"
    assert "github" not in {match.tool.server for match in answer.matches}
    assert (answer.total_tools, answer.total_servers) == (8, 4)


def test_one_server_does_not_fill_results_unless_named() -> None:
    many = {f"report_{number}": "Build a sales report" for number in range(8)}
    some = {"sales_report": "Build a sales report"}
    search = search_of({"big": many, "small": some, "tiny": some, "little": some})
    found = [match.tool.server for match in search.search("sales report").matches]
    assert found.count("big") <= 3 and {"small", "tiny", "little"} & set(found)
    named = [match.tool.server for match in search.search("big sales report").matches]
    assert named.count("big") >= 4


@pytest.mark.parametrize("query", ["return the text", "nothing like this"])
def test_equal_tools_have_a_stable_order(query: str) -> None:
    echo = {"echo": "Return the given text"}
    orders = [("a", "b", "c"), ("c", "a", "b"), ("b", "c", "a")]
    found = [search_of(dict.fromkeys(order, echo)).search(query, limit=2) for order in orders]
    assert [names(answer) for answer in found] == [["a.echo", "b.echo"]] * 3


def test_notes_name_down_and_unlisted_servers_and_held_tools() -> None:
    catalog = catalog_of(WORK)
    catalog.add_server("late")
    facts = {**dict.fromkeys(WORK, ServerFacts()), "mail": ServerFacts(is_down=True, held=2), "late": ServerFacts()}
    search = ToolSearch(catalog, lambda: facts)
    notes = search.search("send").notes
    assert (notes.down, notes.not_listed, notes.held) == (("mail",), ("late",), 2)
    hidden = search.search("send", allowed=lambda server, tool: server == "github").notes
    assert (hidden.down, hidden.not_listed, hidden.held) == ((), (), 0)
    shown = search.search("send", allowed=lambda server, tool: False, allowed_server=lambda name: name == "late").notes
    assert shown.not_listed == ("late",)


def test_server_description_is_searched() -> None:
    servers = {"a": {"run": "Start it"}, "b": {"run": "Start it"}}
    facts = {"a": ServerFacts("Runs containers of Docker"), "b": ServerFacts("Runs queries of PostgreSQL")}
    search = search_of(servers, facts=lambda: facts)
    assert names(search.search("start a docker container"))[0] == "a.run"
    assert names(search.search("start a postgresql query"))[0] == "b.run"


def test_index_rebuilds_only_changed_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def build(server: str, about: str, tools: Sequence[Tool], base: int, entries: Entries) -> Segment:
        built.append(server)
        return build_segment(server, about, tools, base, entries)

    monkeypatch.setattr(tool_search, "build_segment", build)
    catalog = catalog_of(WORK)
    search = ToolSearch(catalog)
    assert built == []  # nothing is built before the first search
    search.search("forecast")
    assert sorted(built) == sorted(WORK)
    built.clear()
    replace(catalog, "weather", {"get_tides": "Tide tables of a harbour"})
    assert names(search.search("tide tables"))[0] == "weather.get_tides"
    assert "weather.get_forecast" not in names(search.search("weather forecast", limit=20))
    catalog.remove_server("jira")
    assert "jira.create_issue" not in names(search.search("create issue", limit=20))
    assert built == ["weather"]


async def test_large_lists_are_built_and_searched_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_search, "THREAD_BUILD_TOOLS", 3)
    monkeypatch.setattr(tool_search, "THREAD_SEARCH_TOOLS", 3)
    used: list[str] = []
    real = asyncio.to_thread

    async def to_thread(function, *args):
        used.append(function.__name__)
        return await real(function, *args)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    catalog = catalog_of(WORK)
    search = ToolSearch(catalog)
    first, second = await asyncio.gather(search.search_async("weather forecast"), search.search_async("send mail"))
    assert names(first)[0] == "weather.get_forecast" and names(second)[0] == "mail.send"
    assert used.count("build") == 1 and used.count("_search") == 2
    replace(catalog, "weather", {"get_tides": "Tide tables"})
    assert names(await search.search_async("tide tables"))[0] == "weather.get_tides"


# -- learning ----------------------------------------------------------------------------------------------------------


def test_call_after_search_lifts_tool_for_similar_queries() -> None:
    search = search_of()
    assert names(search.search("umbrella today"))[0] != "weather.get_forecast"
    search.record_call("do I need an umbrella", "ann", "weather", "get_forecast")
    answer = search.search("umbrella today", principal="ann")
    assert names(answer)[0] == "weather.get_forecast" and "history" in kinds(answer)
    assert names(search.search("create issue"))[0] in ("github.create_issue", "jira.create_issue")


def test_learning_resets_with_definition_and_can_be_disabled() -> None:
    search = search_of()
    search.record_call("umbrella", "ann", "weather", "get_forecast")
    replace(search._catalog, "weather", {"get_forecast": "Something else entirely"})
    assert "history" not in kinds(search.search("umbrella"))
    off = search_of(learn=False)
    off.record_call("umbrella", "ann", "weather", "get_forecast")
    assert "history" not in kinds(off.search("umbrella"))
    search.record_call("umbrella", "ann", "weather", "get_forecast")
    assert "history" in kinds(search.search("umbrella"))
    search.set_learning(False)
    assert "history" not in kinds(search.search("umbrella"))


def test_one_caller_has_bounded_influence_on_others() -> None:
    history, once = CallHistory(), CallHistory()
    once.record("umbrella", "eve", ("s", "t"), "hash")
    for _ in range(50):
        history.record("umbrella", "eve", ("s", "t"), "hash")
    assert list(history.weights("umbrella", "ann")) == list(once.weights("umbrella", "ann"))
    for number in range(10):
        history.record(f"umbrella number{number}", "eve", ("s", "t"), "hash")
    ((_, _, foreign),) = history.weights("umbrella", "ann")
    ((_, _, own),) = history.weights("umbrella", "eve")
    assert own / foreign == pytest.approx(11 / 3)


def test_history_keeps_newest_queries_and_can_be_stored() -> None:
    history = CallHistory()
    for number in range(MAX_QUERIES + 5):
        history.record(f"word{number}", "ann", ("s", "t"), "hash")
    assert list(history.weights("word0", "ann")) == []
    assert len(list(history.weights(f"word{MAX_QUERIES + 4}", "ann"))) == 1
    restored = CallHistory.from_json(history.to_json())
    assert restored.to_json() == history.to_json()
    assert CallHistory.from_json([["a"], "b", ["s", "t", "h", [["ann", 3], 5]]]).to_json() == []
    history.record("word", "ann", ("s", "t"), "another hash")
    assert list(history.weights(f"word{MAX_QUERIES + 4}", "ann")) == []
    history.forget(("s", "t"))
    assert len(history) == 0 and list(history.weights("word", "ann")) == []


# -- meaning -----------------------------------------------------------------------------------------------------------


class Vectors:
    """A vector source that knows one pair of a query and a tool."""

    def __init__(self, likes: dict[str, str]) -> None:
        self.likes = likes
        self.prepared: list[str] = []
        self.problem = ""

    async def prepare(self, queries: Sequence[str], tools: Sequence[Tool]) -> None:
        self.prepared += queries

    def score(self, query: str, tools: Sequence[Tool]) -> Sequence[float | None] | None:
        liked = self.likes.get(query)
        return None if liked is None else [0.9 if tool.qualified_name == liked else 0.1 for tool in tools]


async def test_meaning_is_combined_with_words_if_available() -> None:
    search = search_of()
    source = Vectors({"will it be wet": "weather.get_forecast"})
    search.set_vectors(source)
    answer = await search.search_async("will it be wet")
    assert names(answer)[0] == "weather.get_forecast" and "meaning" in kinds(answer) and answer.fits
    assert source.prepared == ["will it be wet"]
    source.problem = "the endpoint does not respond"
    other = await search.search_async("create issue")
    assert "meaning" not in kinds(other) and other.notes.meaning == "the endpoint does not respond"


def test_definition_hash_depends_only_on_definition() -> None:
    one = Tool("a", "t", definition("t", "text"))
    assert definition_hash(one) == definition_hash(Tool("b", "t", definition("t", "text"), stale=True))
    assert definition_hash(one) != definition_hash(Tool("a", "t", definition("t", "other text")))
