"""What `/admin` shows of calls, servers and events, and what an administrator can do about it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.gateway.edge_lab import Edge, edge
from toolway.events import CallFinished, Connected, StateChanged
from toolway.gateway.admin.activity import MAX_ALERTS, EventLog
from toolway.gateway.tool_filter import ToolFilter
from toolway.telemetry.metrics import MinuteStats, summarize_stats

pytestmark = pytest.mark.anyio


async def asked(found: Edge, path: str, method: str = "GET", body: Any = b"") -> Any:
    answer = await found.ask(method, f"/admin/{path}", body)
    return json.loads(answer.body) | {"status_code": answer.status}


async def test_call_details_include_phase_timings(tmp_path: Path):
    async with edge(tmp_path) as found:
        await found.call("a__echo", {"text": "hello", "api_key": "sk-abcdefghijklmnopqrstuvwxyz"})
        [call] = (await asked(found, "calls"))["calls"]
        assert (call["server"], call["tool"], call["outcome"], call["principal"]) == ("a", "echo", "ok", "local")
        whole = await asked(found, f"calls/{call['id']}")
        assert whole["arguments"]["text"] == "hello" and "sk-abc" not in json.dumps(whole)
        [attempt] = whole["attempt_details"]
        assert "server" in [phase["name"] for phase in attempt["phases"]]
        assert sum(phase["seconds"] for phase in attempt["phases"]) <= whole["seconds"] * 1.01
        assert (await asked(found, "calls/none"))["status_code"] == 404


async def test_calls_are_filtered_by_query(tmp_path: Path):
    async with edge(tmp_path) as found:
        token = found.key()
        await found.call("a__echo", {"text": "1"})
        await found.call("b__echo", {"text": "2"}, token=token)
        await asked(found, "call", "POST", {"server": "a", "tool": "nothing"})
        for query, count in (
            ("", 3),
            ("server=a", 2),
            ("status=ok", 2),
            ("status=failed", 1),
            ("status=E-NOT-FOUND", 1),
            ("principal=a%20key", 1),
            ("principal=local", 2),
            ("slow=100", 0),
            ("retried=1", 0),
            ("source=cache", 0),
            ("q=ECHO", 2),
            ("limit=1", 1),
        ):
            calls = (await asked(found, f"calls?{query}"))["calls"]
            assert len(calls) == count, (query, calls)
        for query in ("slow=x", "limit=x", "limit=-1"):
            assert (await asked(found, f"calls?{query}"))["status_code"] == 400, query


async def test_call_is_made_and_replayed(tmp_path: Path):
    async with edge(tmp_path) as found:
        body = {"server": "a", "tool": "echo", "arguments": {"text": "x"}}
        made = await asked(found, "call", "POST", body)
        assert made["result"]["content"] and found.calls("a") == 1
        assert (await asked(found, f"calls/{made['id']}"))["tool"] == "echo"
        again = await asked(found, f"calls/{made['id']}/replay", "POST", {"confirm": True})
        assert again["id"] != made["id"] and found.calls("a") == 2
        effect = (await asked(found, f"calls/{made['id']}"))["effect"]
        careless = await asked(found, f"calls/{made['id']}/replay", "POST", {})
        assert careless["status_code"] == (422 if effect == "unsafe" else 200)
        for wrong in ({}, {"server": "a", "tool": "echo", "arguments": []}, {**body, "timeout": 0}):
            assert (await asked(found, "call", "POST", wrong))["status_code"] == 400, wrong
        assert (await asked(found, "call", "POST", {**body, "tool": "nothing"}))["status_code"] == 404


async def test_overview_counts_calls(tmp_path: Path):
    async with edge(tmp_path) as found:
        for _ in range(3):
            await found.call("a__echo", {"text": "x"})
        overview = await asked(found, "overview")
        servers = {server["server"]: server for server in overview["servers"]}
        assert servers["a"]["minutes"]["calls"] == 3 and servers["b"]["minutes"]["calls"] == 0
        assert "cluster" not in overview  # the page has nothing to say of one
        assert overview["minutes"]["calls"] == 3 and overview["minutes"]["p95"] > 0
        assert servers["a"]["breaker"] == "closed" and servers["a"]["limit"] > 0


async def test_server_details_show_its_timeline_without_secrets(tmp_path: Path):
    async with edge(tmp_path) as found:
        await found.call("a__echo", {"text": "x"})
        detail = await asked(found, "servers/a/detail")
        assert [change["state"] for change in detail["timeline"]][-1] == "ready"
        assert detail["definition"]["url"].startswith("http://127.0.0.1") and detail["status"]["server"] == "a"
        assert any(event["kind"] == "connection" for event in detail["events"])
        assert (await asked(found, "servers/none/detail"))["status_code"] == 404


async def test_breaker_is_tripped_and_reset_by_an_administrator(tmp_path: Path):
    async with edge(tmp_path) as found:
        await found.call("a__echo", {"text": "x"})
        assert (await asked(found, "breakers/a/trip", "POST"))["opened"] == "a"
        [breaker] = (await asked(found, "breakers"))["breakers"]
        assert breaker["position"] == "open" and breaker["wait"] > 50
        refused = await found.call("a__echo", {"text": "x"})
        assert "circuit breaker is open" in json.dumps(refused)
        assert (await asked(found, "breakers/a/reset", "POST"))["closed"] == "a"
        assert "error" not in await found.call("a__echo", {"text": "x"})
        assert (await asked(found, "breakers/a/echo/trip", "POST"))["opened"] == "a.echo"
        assert (await asked(found, "breakers/a/echo/reset", "POST"))["closed"] == "a.echo"
        for path in ("breakers/none/trip", "breakers/a/nothing/trip"):
            assert (await asked(found, path, "POST"))["status_code"] == 404, path
        texts = [event["text"] for event in (await asked(found, "events?kind=change"))["events"]]
        assert texts[-1] == "circuit breaker of a opened by an administrator"


async def test_alerts_stay_until_resolved_and_are_bounded(tmp_path: Path):
    async with edge(tmp_path) as found:
        watch, state = found.gateway.activity, "failed"
        for _ in range(2):  # emitted twice, it is one alert
            found.hub.emit(StateChanged("a", "starting", state, "exit code 1"))
        unknown = CallFinished("a", "tools/call", "a.pay", "E-OUTCOME-UNKNOWN", "unknown", 1.0, "id1", "pay")
        found.hub.alert_detector.on_call(unknown)
        alerts = (await asked(found, "alerts"))["alerts"]
        assert [alert["kind"] for alert in alerts] == ["server-down", "outcome-unknown"]
        found.hub.emit(Connected("a", "modern", "2026-07-28"))
        [left] = (await asked(found, "alerts"))["alerts"]
        assert left["call"] == "id1" and left["hint"]
        assert (await asked(found, f"alerts/{left['name']}", "DELETE"))["resolved"] == left["name"]
        assert (await asked(found, f"alerts/{left['name']}", "DELETE"))["status_code"] == 404
        for number in range(MAX_ALERTS + 10):
            found.hub.alert_detector.on_call(replace(unknown, id=str(number)))
        assert len(watch.alerts) == MAX_ALERTS


async def test_server_is_disabled_and_enabled(tmp_path: Path):
    async with edge(tmp_path) as found:
        await asked(found, "servers/a/disable", "POST")
        assert (await asked(found, "servers/a"))["state"] == "disabled"
        await asked(found, "servers/a/enable", "POST")
        assert "error" not in await found.call("a__echo", {"text": "x"})


async def test_event_stream_shows_calls_and_events(tmp_path: Path):
    async with edge(tmp_path) as found, found.connected() as client:
        await client.send(found.request("GET", "/admin/events", fields={"Accept": "text/event-stream"}))
        assert (await client.head()).headers["content-type"] == "text/event-stream"
        chunks = client.chunks()
        assert b"event: hello" in await anext(chunks)
        await found.call("a__echo", {"text": "x"})
        found.gateway.activity.add_event("change", "a", "told")
        heard = b""
        async with asyncio.timeout(20):
            while b"event: calls" not in heard or b"told" not in heard:
                heard += await anext(chunks)
        assert b'"tool":"echo"' in heard


async def test_event_stream_does_not_delay_shutdown(tmp_path: Path):
    async with edge(tmp_path) as found, found.connected() as client:
        await client.send(found.request("GET", "/admin/events", fields={"Accept": "text/event-stream"}))
        await client.head()
        async with asyncio.timeout(10):
            await found.gateway.drain(asyncio.Event(), 0.0, 30.0)


async def test_tool_list_has_one_line_per_tool(tmp_path: Path):
    async with edge(tmp_path, toolsets={"both": ToolFilter(("a.*",))}) as found:
        await found.tools()
        tools = (await asked(found, "tool-list"))["tools"]
        assert {tool["server"] for tool in tools} == {"a", "b"} and all(tool["size"] > 0 for tool in tools)
        assert (await asked(found, "tools/a/echo"))["raw"]["inputSchema"]
        assert (await asked(found, "tools/a/nothing"))["status_code"] == 404
        [toolset] = (await asked(found, "toolsets"))["toolsets"]
        assert toolset["servers"] == ["a"] and toolset["path"] == "/mcp/both" and toolset["tools"] > 0


def test_percentiles_are_accurate_and_old_minutes_forgotten():
    pulse = MinuteStats()
    for index in range(1, 101):
        pulse.record(index / 1000, index > 90, 60.0)
    told = summarize_stats([pulse], 61.0)
    assert (told["calls"], told["errors"], told["per_minute"][-1]) == (100, 10, 100)
    for name, right in (("p50", 0.05), ("p95", 0.095), ("p99", 0.099)):
        assert abs(told[name] - right) / right < 0.13, name
    assert summarize_stats([pulse], 60.0 * 32)["calls"] == 0


def test_event_log_is_bounded_and_numbered():
    recent: EventLog[int] = EventLog(max_events=5)
    for value in range(10):
        recent.add(value)
    assert [value for _, value in recent.newest_first()] == [9, 8, 7, 6, 5]
    assert [value for _, value in recent.after(8)] == [8, 9] and recent.after(10) == []
