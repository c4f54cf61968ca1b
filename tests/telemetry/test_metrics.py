"""`/metrics`: parsed by a real parser, bounded, and protected."""

from __future__ import annotations

import asyncio
import json
import random
import string
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from tests.gateway.edge_lab import Edge, edge
from toolway.events import CallFinished, Connected, Disconnected
from toolway.telemetry.metrics import MAX_OUTCOMES_PER_SERIES, MAX_SERIES, MAX_TOOLS_PER_SERVER, OTHER, Metrics
from toolway.telemetry.prometheus import all_metrics, render_metrics

pytestmark = pytest.mark.anyio


def ended(server: str = "s", tool: str = "t", code: str = "ok", **facts: Any) -> CallFinished:
    facts = {"executed": "yes", "seconds": 0.015, "method": "tools/call", **facts}
    return CallFinished(server, name=f"{server}.{tool}", tool=tool, code=code, **facts)


def read(page: str) -> dict[str, Metric]:
    return {family.name: family for family in parse(page)}


def page(metrics: Metrics) -> dict[str, Metric]:
    return read(render_metrics(metrics, (), "")[0].decode())


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    """The sum of all samples of this name with these labels."""
    family = next(each for each in families.values() if any(sample.name == name for sample in each.samples))
    found = [s.value for s in family.samples if s.name == name and labels.items() <= s.labels.items()]
    assert found, (name, labels)
    return sum(found)


async def scraped(found: Edge, **more: Any) -> dict[str, Metric]:
    answer = await found.ask("GET", "/metrics", **more)
    assert answer.status == 200, answer.body
    return read(answer.body.decode())


@pytest.mark.promise("A9")
async def test_server_that_failed_its_last_check_is_not_up(tmp_path: Path) -> None:
    async with edge(tmp_path, metrics=Metrics()) as found:
        found.fakes["b"].set_mode("never;on=ping,server/discover")
        answer = await found.ask("POST", "/admin/health")
        checked = {each["server"]: each["ok"] for each in json.loads(answer.body)["servers"]}
        assert (checked["a"], checked["b"]) == (True, False)
        families = await scraped(found)
    assert value(families, "toolway_server_up", server="a") == 1
    assert value(families, "toolway_server_up", server="b") == 0
    assert value(families, "toolway_server_state", server="b", state="ready", transport="http") == 1


async def test_gateway_counts_calls_and_reports_its_state(tmp_path: Path) -> None:
    metrics = Metrics()
    async with edge(tmp_path, metrics=metrics) as found:
        found.hub.instrumentation.add_sink(metrics)
        for _ in range(3):
            await found.modern("tools/call", {"name": "a__echo", "arguments": {"text": "x"}})
        await found.modern("tools/call", {"name": "a__fail", "arguments": {}})
        found.fakes["b"].set_mode("status=503;on=echo;times=1")
        await found.modern("tools/call", {"name": "b__echo", "arguments": {"text": "x"}})
        families = await scraped(found)
    assert value(families, "toolway_calls_total", server="a", tool="echo", outcome="ok") == 3
    assert value(families, "toolway_calls_total", server="a", tool="fail", outcome="tool_error") == 1
    assert value(families, "toolway_call_retries_total", server="b", tool="echo") == 1
    assert value(families, "toolway_call_duration_seconds_count", server="a", tool="echo") == 3
    assert value(families, "toolway_call_duration_seconds_bucket", server="a", tool="echo", le="+Inf") == 3
    assert value(families, "toolway_call_duration_seconds_sum", server="a", tool="echo") > 0
    assert value(families, "toolway_call_phase_seconds_total", server="a", phase="server") > 0
    assert value(families, "toolway_server_up", server="a") == 1
    assert value(families, "toolway_server_state", server="b", state="ready", transport="http") == 1
    assert value(families, "toolway_server_tools", server="a") > 3
    assert value(families, "toolway_slots", server="a") == 128
    assert value(families, "toolway_slots_in_use", server="a") == 0
    assert value(families, "toolway_queue_waiting", server="a") == 0
    assert value(families, "toolway_gateway_connections") == 1
    assert value(families, "toolway_info") == 1
    assert families["process_resident_memory_bytes"].samples[0].value > 0
    assert set(families) >= {name for name in all_metrics() if name != "toolway_breaker_open"}


async def test_running_and_queued_calls_are_reported(tmp_path: Path) -> None:
    metrics = Metrics()
    async with edge(tmp_path, metrics=metrics) as found:
        found.hub.instrumentation.add_sink(metrics)
        slow = asyncio.create_task(found.modern("tools/call", {"name": "a__sleep", "arguments": {"seconds": 3}}))
        while not found.hub.calls.running():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        families = await scraped(found)
        assert value(families, "toolway_calls_running", server="a") == 1
        assert value(families, "toolway_slots_in_use", server="a") == 1
        await slow


async def test_open_breaker_is_reported(tmp_path: Path) -> None:
    metrics = Metrics()
    async with edge(tmp_path, metrics=metrics) as found:
        found.hub.servers.trip_breaker("b")
        found.hub.servers.trip_breaker("a", "echo")
        families = await scraped(found)
    assert value(families, "toolway_breaker_open", server="b", tool="") == 1
    assert value(families, "toolway_breaker_open", server="a", tool="echo") == 1


@pytest.mark.attack("held-21")
async def test_metrics_require_authentication(tmp_path: Path) -> None:
    async with edge(tmp_path, metrics=Metrics()) as found:
        scraper = found.keyring.create_key_sync("prometheus", ["/metrics"], False, 0.0)[0]
        plain = found.key()
        for token, status in ((None, 401), ("tw_wrong", 401), (plain, 403), (scraper, 200)):
            assert (await found.ask("GET", "/metrics", token=token)).status == status
        assert (await found.ask("POST", "/metrics")).status == 405
        assert (await found.ask("GET", "/metrics", fields={"Host": "evil.example"})).status == 421
        assert (await found.ask("GET", "/metrics", fields={"Origin": "https://evil.example"})).status == 403
        # A key for metrics opens nothing else.
        assert (await found.ask("GET", "/admin/servers", token=scraper)).status == 403
        assert await found.tools(token=scraper) == []


async def test_metrics_path_is_missing_if_disabled(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        assert (await found.ask("GET", "/metrics")).status == 404


def series_of(families: dict[str, Metric]) -> int:
    """Our own lines; the process adds a handful."""
    return sum(len(family.samples) for family in families.values())


def test_random_tool_names_create_few_series() -> None:
    metrics, dice = Metrics(), random.Random(1)
    for number in range(10_000):
        tool = "".join(dice.choices(string.printable, k=12))
        metrics.on_call(ended("s", tool, "ok" if number % 2 else "E-TIMEOUT"))
    families = page(metrics)
    tools = {sample.labels["tool"] for sample in families["toolway_calls"].samples}
    assert len(tools) == MAX_TOOLS_PER_SERVER + 1 and OTHER in tools
    assert value(families, "toolway_calls_total", server="s") == 10_000
    assert value(families, "toolway_calls_overflow_total") == value(families, "toolway_calls_total", tool=OTHER)
    assert series_of(families) < 25 * (MAX_TOOLS_PER_SERVER + 10)


def test_series_limit_applies_to_all_servers_together() -> None:
    metrics = Metrics()
    for server in range(50):
        for tool in range(200):
            metrics.on_call(ended(f"s{server}", f"t{tool}"))
    assert len(metrics.store.series) <= MAX_SERIES + 50  # and the others of each server
    assert sum(series.total().count for series in metrics.store.series.values()) == 10_000


async def test_unknown_names_create_no_series(tmp_path: Path) -> None:
    metrics = Metrics()
    async with edge(tmp_path, metrics=metrics) as found:
        found.hub.instrumentation.add_sink(metrics)
        for number in range(200):
            await found.modern("tools/call", {"name": f"made_up_{number}", "arguments": {}})
        for number in range(10_000):  # as if they had come so far as the hub
            metrics.on_call(ended(f"none{number}", f"made_up-{number}", "E-NOT-FOUND", executed="no"))
            metrics.on_call(ended("a", f"made_up-{number}", "E-NOT-FOUND", executed="no"))
        assert "made_up" not in (await found.ask("GET", "/metrics")).body.decode()
    assert len(metrics.store.series) <= 2


def test_uris_and_unknown_methods_are_not_labels() -> None:
    metrics = Metrics()
    for number in range(1000):
        metrics.on_call(ended(tool=f"file:///{number}", method="resources/read"))
        metrics.on_call(ended(tool="", method=f"made/up{number}"))
    assert set(metrics.store.series) == {("s", "resources/read", ""), ("s", OTHER, "")}


def test_outcomes_are_bounded() -> None:
    metrics = Metrics()
    for number in range(1000):
        metrics.on_call(ended(code=f"E-{number}"))
    (series,) = metrics.store.series.values()
    assert len(series.outcomes) == MAX_OUTCOMES_PER_SERIES + 1


def test_counters_of_removed_server_are_dropped() -> None:
    metrics = Metrics()
    metrics.on_call(ended("old"))
    metrics.on_call(ended("new"))
    metrics.on_event(Connected("old", "modern", "2026-07-28"))
    metrics.on_event(Disconnected("new", "it ended"))
    metrics.store.prune(frozenset({"new"}))
    families = page(metrics)
    assert {sample.labels["server"] for sample in families["toolway_calls"].samples} == {"new"}
    assert value(families, "toolway_server_disconnects_total", server="new") == 1


def test_unknown_outcome_is_counted() -> None:
    metrics = Metrics()
    metrics.on_call(ended(code="E-TIMEOUT", executed="unknown"))
    assert value(page(metrics), "toolway_calls_unknown_total", server="s", tool="t") == 1


def test_exemplars_link_bucket_to_trace() -> None:
    metrics, trace = Metrics(), "0af7651916cd43dd8448eb211c80319c"
    metrics.on_call(ended(seconds=0.3, trace_id=trace, span_id="b7ad6b7169203331", started_at=1_700_000_000.0))
    metrics.on_call(ended(seconds=0.3, trace_id="f" * 32))  # not recorded
    body, kind = render_metrics(metrics, (), "application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    families = {family.name: family for family in parse_openmetrics(body.decode())}
    found = [s for s in families["toolway_call_duration_seconds"].samples if s.exemplar]
    assert [(s.labels["le"], s.exemplar.labels["trace_id"], s.exemplar.value) for s in found] == [("0.5", trace, 0.3)]


def test_hostile_names_are_escaped() -> None:
    metrics = Metrics()
    hostile = 'a"} 1\nfake_metric{x="\\'
    metrics.on_call(ended(tool=hostile))
    families = page(metrics)
    assert "fake_metric" not in families
    assert {sample.labels["tool"] for sample in families["toolway_calls"].samples} == {hostile}


def test_buckets_are_cumulative() -> None:
    metrics = Metrics()
    for seconds in (0.0005, 0.001, 0.0011, 0.4, 1000.0):
        metrics.on_call(ended(seconds=seconds))
    buckets = {
        sample.labels["le"]: sample.value
        for sample in page(metrics)["toolway_call_duration_seconds"].samples
        if sample.name.endswith("_bucket")
    }
    assert (buckets["0.001"], buckets["0.002"], buckets["0.5"], buckets["300.0"], buckets["+Inf"]) == (2, 3, 4, 4, 5)
