"""Tests of the settings for search by meaning, and of a hub that uses them."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

import pytest

from toolway.config.loader import parse_config
from toolway.errors import ConfigError
from toolway.gateway.part_set import PartSet
from toolway.hub.core import HubCore
from toolway.network import PUBLIC_ONLY
from toolway.parts.search.meaning import UnavailableVectors, open_vectors
from toolway.parts.search.runtime import SearchRuntime
from toolway.parts.search.settings import SearchSettings, parse_search
from toolway.secrets import mask_secrets

pytestmark = pytest.mark.anyio

TOOLS = {
    "send_mail": "Send a message to somebody",
    "create_issue": "Create a ticket",
    "get_weather": "Forecast for a place",
}


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (None, SearchSettings()),
        ({"model": "minilm"}, SearchSettings(model="minilm")),
        (
            {"endpoint": "https://api.example/v1/embeddings", "model": "small", "key": "${KEY}", "dimensions": 384},
            SearchSettings(
                model="small", endpoint="https://api.example/v1/embeddings", key="sesame-1234", dimensions=384
            ),
        ),
        (
            {"endpoint": "http://127.0.0.1:11434/v1/embeddings", "model": "nomic", "learn": False},
            SearchSettings(model="nomic", endpoint="http://127.0.0.1:11434/v1/embeddings", learn=False),
        ),
    ],
)
def test_search_settings_are_parsed(block, expected):
    assert parse_search(block, {"KEY": "sesame-1234"}) == expected


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ({"model": "large"}, "the model is not on this machine"),
        ({"endpoint": "https://api.example/v1"}, "an endpoint needs a model"),
        ({"model": "minilm", "key": "x"}, "key and dimensions need an endpoint"),
        ({"dimensions": 5}, "key and dimensions need an endpoint"),
        ({"endpoint": "http://api.example/v1", "model": "m"}, "must begin with https"),
        ({"endpoint": "ftp://api.example/v1", "model": "m"}, "must begin with https"),
        ({"endpoint": "https://", "model": "m"}, "must begin with https"),
        ({"endpoint": "https://a.example", "model": "m", "dimensions": 5000}, "at most 4096"),
        ({"endpoint": "https://a.example", "model": "m", "dimensions": 0}, "at least 1"),
        ({"endpoint": "https://a.example", "model": "m", "key": "${command:cat key}"}, "output of a command"),
        ({"endpoint": "${keyring:where}", "model": "m"}, "cannot refer to a secret"),
        ({"modle": "minilm"}, "unknown key"),
    ],
)
def test_invalid_search_settings_are_rejected(block, reason):
    with pytest.raises(ConfigError, match=reason):
        parse_search(block, {})


def test_search_key_is_not_in_repr():
    settings = parse_search({"endpoint": "https://a.example", "model": "m", "key": "sesame-1234"}, {})
    assert "sesame" not in repr(settings)
    text = '{"mcpServers": {}, "toolway": {"search": {"endpoint": "https://a.example", "model": "m", "key": "x1"}}}'
    assert parse_config(text, "mcp.json", {}).gateway.parts["search"].key == "x1"


async def no_key() -> str:
    return ""


def no_store(identity: str):
    raise AssertionError("no store is opened")


def test_missing_numpy_leaves_search_by_words(monkeypatch):
    for name in [
        name for name in sys.modules if name.split(".")[0] == "numpy" or name == "toolway.parts.search.vectors"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)
    source = open_vectors(SearchSettings(model="minilm"), PUBLIC_ONLY, no_key, no_store)
    assert isinstance(source, UnavailableVectors)
    assert source.problem == "numpy is not installed: install toolway[search]"


def test_nothing_is_loaded_without_a_model():
    assert open_vectors(SearchSettings(), PUBLIC_ONLY, no_key, no_store) is None


async def new_hub(settings: SearchSettings) -> tuple[HubCore, SearchRuntime]:
    hub = HubCore({}, catalog_storage=None)
    parts = PartSet(hub, None)
    parts.start({"search": settings})
    await hub.__aenter__()
    definitions = [{"name": name, "description": text, "inputSchema": {}} for name, text in TOOLS.items()]
    hub.lists.catalog.add_server("work")
    hub.lists.catalog.replace("work", "tools", definitions)
    return hub, parts.runtime("search", SearchRuntime)


async def test_missing_model_costs_only_meaning(monkeypatch):
    pytest.importorskip("numpy", reason="numpy is not installed (toolway[search]): no vectors")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    hub, found = await new_hub(SearchSettings(model="minilm"))
    answer = await hub.tool_search.search_async("create an issue")
    assert answer.matches[0].tool.name == "create_issue"
    assert "the model is not installed" in answer.notes.meaning
    assert found.vectors is not None and found.vectors.problem == answer.notes.meaning
    await found.close()
    await hub.aclose()


@pytest.mark.promise("D11")
async def test_hub_searches_by_vectors_of_its_endpoint(tmp_path):
    pytest.importorskip("numpy", reason="numpy is not installed (toolway[search]): no vectors")
    from tests.parts.search.test_endpoint import Service
    from toolway.parts.search.vectors import ModelVectors

    service = Service()
    (tmp_path / "key").write_text("sesame-1234\n")
    block = {"endpoint": service.url, "model": "small", "key": f"${{file:{tmp_path}/key}}"}
    try:
        hub, found = await new_hub(parse_search(block, {}))
        await hub.tool_search.search_async("mail")
        source = found.vectors
        assert isinstance(source, ModelVectors)
        await source.wait_complete()
        answer = await hub.tool_search.search_async("mail")
        assert answer.notes.meaning == "" and source.embedded == (3, 3)
        assert {reason.kind for reason in answer.matches[0].reasons} >= {"meaning"}
        assert {headers["authorization"] for headers, _ in service.requests} == {"Bearer sesame-1234"}
        assert "sesame" not in mask_secrets("sesame-1234")

        found.apply(replace(parse_search(block, {}), learn=False))
        assert found.vectors is source  # another setting changed, the source stays
        found.apply(SearchSettings())
        assert found.vectors is None
        answer = await hub.tool_search.search_async("mail")
        assert all(reason.kind != "meaning" for match in answer.matches for reason in match.reasons)
        await found.close()
        await hub.aclose()
    finally:
        service.close()


async def test_missing_key_costs_only_meaning(tmp_path):
    pytest.importorskip("numpy", reason="numpy is not installed (toolway[search]): no vectors")
    block = {"endpoint": "http://127.0.0.1:9/v1", "model": "small", "key": f"${{file:{tmp_path}/none}}"}
    hub, found = await new_hub(parse_search(block, {}))
    answer = await hub.tool_search.search_async("create an issue")
    assert answer.matches[0].tool.name == "create_issue"
    assert "the key is not available" in answer.notes.meaning
    await found.close()
    await hub.aclose()


async def test_many_tools_are_ranked_by_meaning_in_a_thread(monkeypatch):
    pytest.importorskip("numpy", reason="numpy is not installed (toolway[search]): no vectors")
    from tests.parts.search.test_vectors import new_source

    hub, found = await new_hub(SearchSettings())
    source, _, _ = new_source()
    hub.tool_search.set_vectors(source)
    await hub.tool_search.search_async("mail")
    await source.wait_complete()
    threads = []
    score = source.score

    def recorded(query, tools):
        threads.append(threading.current_thread() is threading.main_thread())
        return score(query, tools)

    monkeypatch.setattr(source, "score", recorded)
    first = await hub.tool_search.search_async("mail")
    monkeypatch.setattr("toolway.search.tool_search.THREAD_MEANING_TOOLS", 2)
    second = await hub.tool_search.search_async("mail")
    assert threads == [True, False]
    assert [match.tool.name for match in first.matches] == [match.tool.name for match in second.matches]
    await source.close()
    await found.close()
    await hub.aclose()
