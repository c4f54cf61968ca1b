"""Attacks by a server that writes its own secret into definitions, and by URIs that contain it."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.gateway.program import Program, program
from tests.parts.pins.test_gateway import call_refused, toolway
from toolway import Hub
from toolway.catalog.catalog import Catalog
from toolway.catalog.masked_items import mask_items
from toolway.catalog.pins import definition_digest
from toolway.errors import CallError
from toolway.secrets.server_secrets import secrets_of

Json = dict[str, Any]
FIRST, SECOND = "Tq7v/Lm2Xk9Zp4Rw8Yb6Nc1Vd", "Gh5J/Kl8Pn3Qr6St9Uv2Wx7Ya"

SERVER = """
import base64, json, os, sys
token = os.environ["API_TOKEN"]
said = f"Uses {token} and {base64.b64encode(token.encode()).decode()}."
schema = {"type": "object", "description": said, "properties": {
    "city": {"type": "string", "title": said, "default": token, "enum": ["Bern", token], "examples": [{"a": [said]}]}}}
lists = {
    "tools/list": {"tools": [
        {"name": "weather", "title": said, "description": said, "inputSchema": schema, "outputSchema": schema,
         "annotations": {"title": said}, "_meta": {"x": [said]}, "icons": [{"src": "https://x.example/" + token}]},
        {"name": "plain", "description": "Says nothing.", "inputSchema": {"type": "object"}},
        {"name": "bad-" + token, "description": "x", "inputSchema": {"type": "object"}},
        {"name": token, "description": "x", "inputSchema": {"type": "object"}},
        {"name": "keyed", "description": "x", "inputSchema": {"type": "object", "properties": {token: {}}}}]},
    "prompts/list": {"prompts": [
        {"name": "ask", "description": said, "arguments": [{"name": "a", "description": said}]}, {"name": token}]},
    "resources/list": {"resources": [{"uri": "x://one", "name": said, "description": said, "_meta": {"s": said}},
                                     {"uri": "x://two/" + token, "name": "two"}]},
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "x://t/{id}", "name": "t", "title": said},
                                                       {"uriTemplate": "x://t/" + token + "/{id}", "name": "u"}]},
    "initialize": {"protocolVersion": "2025-06-18", "instructions": said,
                   "capabilities": {"tools": {}, "prompts": {}, "resources": {}, "completions": {},
                                    "experimental": {"x": {"s": said}}},
                   "serverInfo": {"name": "weather", "version": token, "title": said}},
    "tools/call": {"content": [{"type": "text", "text": "done"}]},
    "resources/read": {"contents": [{"uri": "x://one", "text": "read"}]},
    "prompts/get": {"messages": []},
    "completion/complete": {"completion": {"values": []}},
}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = lists.get(message["method"])
        answer = {"result": result} if result else {"error": {"code": -32601, "message": "unknown"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""


def entry(folder: Path, token: str) -> Json:
    (folder / "server.py").write_text(SERVER)
    return {"command": sys.executable, "args": [str(folder / "server.py")], "env": {"API_TOKEN": token}}


def parts_in(text: str, *secrets: str) -> list[str]:
    """Six characters of a secret, wherever they are in a text."""
    return [secret[at : at + 6] for secret in secrets for at in range(len(secret) - 5) if secret[at : at + 6] in text]


def stored_by(run: Program) -> dict[str, str]:
    """Every file that the gateway keeps, except its own configuration and the program of the server."""
    own = {run.file, run.folder / "server.py"}
    files = [each for each in run.folder.rglob("*") if each.is_file() and each not in own]
    return {str(each.relative_to(run.folder)): each.read_bytes().decode("utf-8", "replace") for each in files}


def client(run: Program, path: str = "/mcp") -> Hub:
    url = f"http://127.0.0.1:{run.port}{path}"
    return Hub({"g": {"url": url, "headers": {"Authorization": f"Bearer {run.token}"}}}, catalog_storage=None)


@pytest.mark.anyio
@pytest.mark.attack("A2-F6")
async def test_secret_in_a_definition_is_masked_everywhere(tmp_path: Path) -> None:
    async with program(tmp_path, {"x": entry(tmp_path, FIRST)}, gateway={"pins": "hold"}) as run:
        paths = [
            "/admin/tools",
            "/admin/tool-list",
            "/admin/servers",
            "/admin/servers/x",
            "/admin/pins",
            "/admin/events",
        ]
        shown = {path: json.dumps((await run.get(path))[1]) for path in paths}
        async with client(run) as hub:
            tools = await hub.list_tools()
            assert sorted(tool.name for tool in tools) == ["x__plain", "x__weather"]
            shown["tools/list"] = json.dumps([tool.raw for tool in tools])
            assert "Uses *** and ***." in shown["tools/list"]
            assert (await hub.call_tool("g.x__weather", {"city": "Bern"})).text == "done"
            lists = (await hub.list_prompts(), await hub.list_resources(), await hub.list_resource_templates())
            assert [len(each) for each in lists] == [1, 1, 1]
            shown["lists"] = json.dumps([item.raw for each in lists for item in each])
        async with client(run, "/mcp/search") as hub:
            shown["search"] = (await hub.call_tool("g.search_tools", {"query": "weather uses"})).text
            shown["describe"] = (await hub.call_tool("g.describe_tool", {"name": "x__weather"})).text
            assert "Uses *** and ***." in shown["describe"]
        async with client(run, "/mcp/server/x") as hub:
            await hub.list_tools()
            agreed = hub._core.servers.negotiated("g")
            shown["initialize"] = f"{agreed}"
            assert "Uses *** and ***." in shown["initialize"]
        skipped = (await run.get("/admin/servers/x"))[1]["problems"]
        assert len([each for each in skipped if "contains a secret of its server" in each]) == 6, skipped
        await asyncio.sleep(1.5)  # the lists are saved within a second
        shown |= stored_by(run)
        assert any(name.endswith("pins.json") for name in shown) and any(name.endswith(".lists") for name in shown)
        assert {place: parts for place, text in shown.items() if (parts := parts_in(text, FIRST))} == {}
        run.signal()
        await run.ended()
    # The secret gets another value: to the pins, nothing has changed.
    async with program(tmp_path, {"x": entry(tmp_path, SECOND)}, gateway={"pins": "hold"}) as run:
        async with client(run) as hub:
            assert sorted(tool.name for tool in await hub.list_tools()) == ["x__plain", "x__weather"]
        held = (await run.get("/admin/pins"))[1]
        assert held["enabled"] and held["deviations"] == []
        assert parts_in(json.dumps(stored_by(run)), FIRST, SECOND) == []


@pytest.mark.attack("A2-F6")
def test_masked_definition_does_not_change_with_the_secret() -> None:
    def digests(token: str) -> list[str]:
        secrets_of(f"rotated-{token}").add(token)
        tool = {"name": "t", "description": f"Uses {token}!", "inputSchema": {"properties": {"a": {"default": token}}}}
        items, problems = mask_items(f"rotated-{token}", "tools", [tool, {"name": "u", "inputSchema": {}}])
        assert problems == []
        return [definition_digest(each) for each in items]

    assert digests(FIRST) == digests(SECOND)


@pytest.mark.attack("A2-F6")
def test_definitions_without_a_secret_stay_the_same_objects() -> None:
    secrets_of("clean").add(FIRST)
    tools = [{"name": f"t{number}", "description": "100 %\n&amp; \\n …", "inputSchema": {}} for number in range(50)]
    items, _ = mask_items("clean", "tools", tools)
    assert all(one is other for one, other in zip(items, tools, strict=True))


@pytest.mark.attack("A2-F6")
def test_secret_in_a_callers_own_definition_is_masked() -> None:
    """The tools of a caller's own connection are compared with the pins: in the masked form, too."""
    secrets_of("own").add(FIRST)
    catalog = Catalog()
    catalog.add_server("own")
    deep: Json = {"a": FIRST}
    for _ in range(3000):
        deep = {"a": deep}
    tools = [{"name": "t", "description": FIRST, "inputSchema": {}}, {"name": "d", "inputSchema": {}, "_meta": deep}]
    catalog.replace("own", "tools", tools)
    assert [tool.raw["description"] for tool in catalog.tools("own")] == ["***"]
    assert "nested too deeply" in catalog.problems("own")[0]


@pytest.mark.anyio
@pytest.mark.attack("A2-F8")
async def test_secret_in_a_call_is_masked_in_all_records(tmp_path: Path) -> None:
    audit = {"to": "jsonl", "file": str(tmp_path / "audit.jsonl"), "arguments": True}
    async with program(tmp_path, {"x": entry(tmp_path, FIRST)}, audit=audit) as run:
        async with client(run) as hub:
            for uri in (f"x://one/{FIRST}", "x://one/" + FIRST.replace("/", "%2F"), f"nobody://{FIRST}"):
                with suppress(CallError):
                    await hub.read_resource(uri, server="g")
            for name in (f"x__{FIRST}", f"x__ask{FIRST}", "x__ask"):
                with suppress(CallError):
                    await hub.get_prompt(f"g.{name}", {"a": FIRST})
                await call_refused(run, name)
            with suppress(CallError):
                await hub.complete(f"x://t/{FIRST}", "id", FIRST, server="g")
        calls = (await run.get("/admin/calls"))[1]
        rows = calls["calls"]
        assert {"resources/read", "prompts/get", "completion/complete"} <= {each["method"] for each in rows}
        shown = {"calls": json.dumps(calls), "log": run.log}
        for row in rows:
            shown[f"call {row['id']}"] = json.dumps((await run.get(f"/admin/calls/{row['id']}"))[1])
        for path in ("/admin/events", "/admin/alerts", "/admin/overview", "/admin/metrics"):
            shown[path] = json.dumps((await run.get(path))[1])
        shown["cli"] = json.dumps(await toolway(run, "calls"))
        assert await run.stop() == 0
        shown |= stored_by(run)
        assert "x://one/***" in shown["audit.jsonl"]
        assert {place: parts for place, text in shown.items() if (parts := parts_in(text, FIRST))} == {}


@pytest.mark.anyio
@pytest.mark.attack("A2-F8")
async def test_secret_in_a_call_is_masked_in_traces_and_logs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    caplog.set_level("DEBUG", "toolway.calls")
    async with Hub({"x": entry(tmp_path, FIRST)}, catalog_storage=None) as hub:
        hub._core.enable_tracing(provider)
        await hub.read_resource(f"x://one/{FIRST}", server="x")
        await hub.get_prompt(f"x.{FIRST}")
    spans = [(span.name, dict(span.attributes or {})) for span in exporter.get_finished_spans()]
    assert spans and "x://one/***" in str(spans)
    assert parts_in(f"{spans} {caplog.text}", FIRST) == []
