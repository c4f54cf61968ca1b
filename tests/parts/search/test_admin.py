"""What operators see of the tool search: ranking with reasons, tokens, searches without a call, metrics, advice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.edge_lab import Edge, edge
from toolway.config.server_entry import parse_entry
from toolway.doctor.entry_checks import CheckTarget
from toolway.doctor.run import run_checks
from toolway.gateway.tool_filter import ToolFilter
from toolway.parts.search.runtime import SearchRuntime
from toolway.parts.search.search_log import MAX_PRINCIPALS, MAX_SEARCHES_PER_PRINCIPAL, MAX_UNMET, SearchLog
from toolway.parts.search.settings import SearchSettings
from toolway.search.tokens import MANY_TOOLS, estimate_tokens, search_advice
from toolway.telemetry.metrics import Metrics
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio
Json = dict[str, Any]


async def read(found: Edge, path: str) -> Json:
    answer = await found.ask("GET", f"/admin/{path}")
    assert answer.status == 200, answer
    document: Json = json.loads(answer.body)
    return document


async def test_ranking_shows_scores_and_reasons(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        answer = await read(found, "search?query=sum%20of%20two%20numbers&limit=3")
        assert [each["tool"] for each in answer["tools"]][:2] == ["add", "add"] and answer["fits"] is True
        first = answer["tools"][0]
        assert 0 < first["score"] <= 1 and "sum" in {reason["text"] for reason in first["reasons"]}
        only = await read(found, "search?query=sum&server=b")
        assert {each["server"] for each in only["tools"]} == {"b"}
        assert (await read(found, "search"))["fits"] is False


async def test_missing_search_model_is_a_note_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy", reason="numpy is not installed (toolway[search]): no vectors")
    monkeypatch.setattr("toolway.parts.search.minilm.PACKAGE", "toolway_search_not_installed")
    async with edge(tmp_path) as found:
        none = {"model": "", "problem": "", "embedded": 0, "tools": 0}
        assert json.loads((await found.ask("GET", "/admin")).body)["search"] == none
        found.gateway.parts.runtime("search", SearchRuntime).apply(SearchSettings(model="minilm"))
        answer = await read(found, "search?query=sum%20of%20two%20numbers&limit=3")
        assert answer["tools"][0]["tool"] == "add" and "the model is not installed" in answer["problem"]
        status = json.loads((await found.ask("GET", "/admin")).body)["search"]
        assert status["model"] == "minilm" and "install toolway[search]" in status["problem"]
        assert status["embedded"] == 0 < status["tools"]
        reply = await found.call("search_tools", {"query": "sum of numbers"}, path="/mcp/search")
        assert "Only words were compared" in json.dumps(reply)


async def test_token_costs_and_unmet_searches_are_reported(tmp_path: Path) -> None:
    toolsets = {"few": ToolFilter(("a.add",)), "found": ToolFilter(("*",), search=True, show=("a.add",))}
    async with edge(tmp_path, toolsets=toolsets) as found:
        answer = await read(found, "tokens")
        cost = {each["path"]: each for each in answer["endpoints"]}
        assert cost["/mcp"]["tools"] == len(found.hub.lists.catalog.tools()) and cost["/mcp/search"]["tools"] == 4
        assert (cost["/mcp/few"]["tools"], cost["/mcp/found"]["tools"]) == (1, 5)
        assert cost["/mcp/search"]["tokens"] + cost["/mcp/few"]["tokens"] == cost["/mcp/found"]["tokens"]
        assert sum(each["tokens"] for each in answer["servers"]) == pytest.approx(cost["/mcp"]["tokens"], abs=2)
        for query in ("sum of numbers", "brew coffee", "brew coffee"):
            await found.call("search_tools", {"query": query}, path="/mcp/search")
        await found.call("call_tool", {"name": "a__add", "arguments": {"a": 1, "b": 2}}, path="/mcp/search")
        searches = await read(found, "searches")
        assert [(each["query"], each["times"]) for each in searches["unmet"]] == [("brew coffee", 2)]
        assert searches["calls"] == {"call_tool": 1} and searches["fits"] + searches["nothing"] == 3


async def test_metrics_count_searches_with_bounded_labels(tmp_path: Path) -> None:
    async with edge(tmp_path, metrics=Metrics()) as found:
        await found.call("search_tools", {"query": "sum of numbers"}, path="/mcp/search")
        await found.call("call_tool", {"name": "a__add", "arguments": {"a": 1, "b": 2}}, path="/mcp/search")
        await found.call("call_tool", {"name": "a__add", "arguments": {"a": "x"}}, path="/mcp/search")
        text = (await found.ask("GET", "/metrics")).body.decode()
        assert 'toolway_searches_total{outcome="fits"} 1.0' in text
        assert 'toolway_search_calls_total{meta_tool="call_tool"} 2.0' in text
        assert "toolway_search_calls_rejected_total 1.0" in text and "toolway_searches_unmet 0.0" in text
        assert 'toolway_calls_total{code="",method="tools/call",outcome="ok",server="a",tool="add"} 1.0' in text
        assert 'toolway_endpoint_tokens{endpoint="/mcp/search"}' in text and 'toolway_server_tokens{server="a"}' in text


def test_search_advice_starts_above_60_tools_or_20000_tokens() -> None:
    assert search_advice(MANY_TOOLS, 20_000) == ""
    assert search_advice(504, 117_221) == (
        "504 tools are 117k tokens; clients without tool search should use /mcp/search"
    )
    assert search_advice(61, 500).startswith("61 tools are 500 tokens") and search_advice(2, 20_001)
    assert estimate_tokens([{"name": "x" * 42, "annotations": {"title": "never sent"}}]) == 12


async def test_doctor_recommends_search_for_many_tools() -> None:
    targets = [CheckTarget(name, parse_entry(fake_server(tools=40)), "mcp.json") for name in ("one", "two")]
    report = await run_checks(targets, {"PATH": "/usr/bin:/bin"}, check_machine=False)
    [total] = [each for each in report.subjects if each.name == "all servers"]
    assert "tools are" in total.checks[0].message and total.checks[0].copy.endswith("toolway connect CLIENT --search")
    report = await run_checks(targets[:1], {"PATH": "/usr/bin:/bin"}, check_machine=False)
    assert not any(each.name == "all servers" for each in report.subjects)


def test_search_log_is_bounded() -> None:
    log = SearchLog()
    for number in range(MAX_PRINCIPALS + 50):
        log.add(f"p{number}", f"query {number}", [("s", "t")], ["s__t"], fits=True, now=float(number))
    assert len(log.unmet()) == MAX_UNMET and log.open_query("p0", ("s", "t")) is None
    last = f"p{MAX_PRINCIPALS + 49}"
    assert log.open_query(last, ("s", "t")) == f"query {MAX_PRINCIPALS + 49}"
    log.on_call(last, ("s", "t"))
    assert log.open_query(last, ("s", "t")) is None and len(log.unmet()) == MAX_UNMET - 1
    for number in range(MAX_SEARCHES_PER_PRINCIPAL):
        log.add(last, f"later {number}", [("s", "other")], ["s__other"], fits=False, now=0.0)
    log.on_call(last, ("s", "t"))  # the search that found it is forgotten
    log.forget(last)
    assert log.open_query(last, ("s", "other")) is None
