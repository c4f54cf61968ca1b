"""Tests of the vector source: tools in the background, queries within their time, failures that cost only meaning."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

np = pytest.importorskip("numpy", reason="numpy is not installed (toolway[search]): no vectors")

from toolway.catalog.catalog import Tool  # noqa: E402
from toolway.parts.search.vector_store import EmbeddingError  # noqa: E402
from toolway.parts.search.vectors import BATCH, ModelVectors, describe_tool, to_unit_length  # noqa: E402

pytestmark = pytest.mark.anyio

WORDS = ("mail", "issue", "weather", "file")


def make_tools(*names: str) -> tuple[Tool, ...]:
    return tuple(Tool("work", name, {"name": name, "description": "", "inputSchema": {}}) for name in names)


class CountingEmbedder:
    """Embedder whose vector counts the words above, so likeness can be foreseen."""

    def __init__(self, width: int = 0) -> None:
        self.asked: list[str] = []
        self.failure = ""
        self.gate: asyncio.Event | None = None
        self.width = width or len(WORDS) + 1

    @property
    def identity(self) -> str:
        return "counting"

    async def embed(self, texts: Sequence[str], timeout: float):
        self.asked += texts
        if self.gate is not None:
            await self.gate.wait()
        if self.failure:
            raise EmbeddingError(self.failure)
        counts = [[float(text.count(word)) for word in WORDS] + [0.01] for text in texts]
        return [to_unit_length((each + [0.0] * self.width)[: self.width]) for each in counts]

    async def close(self) -> None: ...


class MemoryStore:
    def __init__(self) -> None:
        self.vectors: dict[bytes, bytes] = {}

    async def load(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        return {key: self.vectors[key] for key in keys if key in self.vectors}

    async def save(self, vectors: Mapping[bytes, bytes], wanted: Sequence[bytes]) -> None:
        self.vectors.update(vectors)


async def never(seconds: float) -> None:
    await asyncio.Event().wait()


def new_source(
    embedder=None, store=None, query_timeout=30.0, sleep=never
) -> tuple[ModelVectors, CountingEmbedder, MemoryStore]:
    embedder, store = embedder or CountingEmbedder(), store or MemoryStore()
    return ModelVectors(embedder, store, query_timeout=query_timeout, sleep=sleep), embedder, store


async def scores(source: ModelVectors, query: str, tools) -> list[float | None] | None:
    await source.prepare([query], tools)
    found = source.score(query, tools)
    return None if found is None else list(found)


async def test_nearest_tool_has_highest_score():
    source, _, _ = new_source()
    tools = make_tools("send_mail", "create_issue", "get_weather")
    await source.prepare([], tools)
    await source.wait_complete()
    found = await scores(source, "an issue about issue", tools)
    assert found is not None and found.index(max(found)) == 1  # type: ignore[type-var]
    assert found[1] == pytest.approx(1, abs=1e-3)
    assert source.problem == "" and source.embedded == (3, 3)
    await source.close()


async def test_tool_is_scored_by_nearest_sentence_of_query():
    source, embedder, _ = new_source()
    tools = make_tools("send_mail", "create_issue", "get_weather")
    await source.prepare([], tools)
    await source.wait_complete()
    embedder.asked.clear()
    query = "Send a mail. Then make an issue! Why?"
    found = await scores(source, query, tools)
    assert embedder.asked == [query, "Send a mail.", "Then make an issue!"]  # "Why?" is too short to mean anything
    assert found is not None and [round(score or 0, 1) for score in found[:2]] == [1.0, 1.0]
    assert found[2] is not None and found[2] < 0.1
    embedder.asked.clear()
    steps = ["Send a mail. Look at the weather.", "Make an issue. Look at the weather."]
    await source.prepare(steps, tools)
    assert embedder.asked == steps  # a list has been split by its writer
    await source.close()


async def test_each_text_is_embedded_once_even_after_restart():
    source, embedder, store = new_source()
    tools = make_tools(*(f"mail_{number}" for number in range(BATCH * 2 + 5)))
    await source.prepare(["mail"], tools)
    await source.wait_complete()
    await source.prepare(["mail"], tools)
    assert sorted(embedder.asked) == sorted([*map(describe_tool, tools), "mail"])
    await source.close()

    source, embedder, _ = new_source(store=store)
    await source.prepare([], tools)
    await source.wait_complete()
    assert embedder.asked == []
    found = await scores(source, "mail", tools)
    assert found is not None and all(score is not None and score > 0.99 for score in found)
    await source.close()


async def test_changed_list_embeds_only_new_tools():
    source, embedder, _ = new_source()
    tools = make_tools("send_mail", "create_issue")
    await source.prepare([], tools)
    await source.wait_complete()
    embedder.asked.clear()
    more = (*make_tools("get_weather"), tools[1])
    await source.prepare([], more)
    await source.wait_complete()
    assert embedder.asked == [describe_tool(more[0])]
    found = await scores(source, "weather", more)
    assert found is not None and found[0] > 0.99 > found[1]  # type: ignore[operator]
    assert source.score("weather", tools) is None  # scores of another list would belong to other tools
    await source.close()


async def test_tool_without_vector_has_no_score():
    source, _, store = new_source()
    tools = make_tools("send_mail")
    await source.prepare([], tools)
    await source.wait_complete()
    await source.close()

    source, embedder, _ = new_source(store=store)
    more = (*tools, *make_tools("create_issue"))
    source._queries["mail"] = to_unit_length([1.0, 0, 0, 0, 0])[None]
    embedder.gate = asyncio.Event()
    found = await scores(source, "mail", more)
    assert found is not None and found[0] == pytest.approx(1, abs=1e-3) and found[1] is None
    assert source.embedded == (1, 2)
    await source.close()


async def test_slow_query_is_ranked_by_words():
    source, embedder, _ = new_source(query_timeout=0.01)
    tools = make_tools("send_mail")
    await source.prepare([], tools)
    await source.wait_complete()
    embedder.gate = asyncio.Event()
    assert await scores(source, "mail", tools) is None
    embedder.gate.set()
    assert await scores(source, "mail", tools) is not None
    await source.close()


async def test_failed_query_has_reason_and_next_one_works():
    source, embedder, _ = new_source()
    tools = make_tools("send_mail")
    await source.prepare([], tools)
    await source.wait_complete()
    embedder.failure = "the service is down"
    assert await scores(source, "mail", tools) is None
    assert source.problem == "the service is down"
    embedder.failure = ""
    assert await scores(source, "mail", tools) is not None
    assert source.problem == ""
    await source.close()


async def test_failed_tools_are_retried():
    again, waited = asyncio.Event(), asyncio.Event()
    delays: list[float] = []

    async def sleep(seconds: float) -> None:
        delays.append(seconds)
        waited.set()
        await again.wait()

    source, embedder, _ = new_source(sleep=sleep)
    embedder.failure = "the service is down"
    tools = make_tools("send_mail")
    await source.prepare([], tools)
    await waited.wait()
    assert source.problem == "the service is down" and source.score("mail", tools) is None
    embedder.failure = ""
    again.set()
    await source.wait_complete()
    assert delays == [5.0] and source.problem == ""
    await source.close()


async def test_new_list_does_not_wait_for_old_retry():
    source, embedder, _ = new_source()
    embedder.failure = "the service is down"
    await source.prepare([], make_tools("send_mail"))
    embedder.failure = ""
    tools = make_tools("create_issue")
    await source.prepare([], tools)
    await source.wait_complete()
    assert await scores(source, "issue", tools) is not None
    await source.close()


async def test_stored_vectors_of_another_width_are_replaced():
    source, _, store = new_source()
    tools = make_tools("send_mail", "create_issue")
    await source.prepare([], tools)
    await source.wait_complete()
    await source.close()
    for key in list(store.vectors)[:1]:
        store.vectors[key] = b"\0\1"  # damaged
    source, _, _ = new_source(CountingEmbedder(width=5), store)
    await source.prepare([], tools)
    await source.wait_complete()
    found = await scores(source, "mail", tools)
    assert found is not None and len(found) == 2 and None not in found
    await source.close()


async def test_service_that_changes_its_model_starts_over():
    again, waited = asyncio.Event(), asyncio.Event()

    async def sleep(seconds: float) -> None:
        waited.set()
        await again.wait()

    source, embedder, _ = new_source(sleep=sleep)
    tools = make_tools("send_mail", "create_issue")
    assert await scores(source, "mail", tools) is None or source.embedded == (2, 2)
    await source.wait_complete()
    embedder.width = 8
    assert await scores(source, "issue", tools) is None  # of another length than the vectors of the tools
    more = (*tools, *make_tools("get_weather"))
    await source.prepare([], more)
    await waited.wait()
    assert source.problem == "the service answered vectors of different lengths"
    again.set()
    await source.wait_complete()
    found = await scores(source, "weather", more)
    assert found is not None and found[2] == max(each for each in found if each is not None)
    await source.close()


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [1.0, float("nan")], [float("inf")], ["a"], [[1.0]], None])
def test_invalid_vector_is_rejected(values):
    with pytest.raises(EmbeddingError):
        to_unit_length(values)


def test_long_description_is_cut():
    tool = Tool("work", "send", {"name": "send", "description": "mail " * 100_000, "inputSchema": {}})
    assert len(describe_tool(tool)) == 2_000
