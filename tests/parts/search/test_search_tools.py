"""Tool search at a gateway: meta-tools find and call the tools of all servers, for clients of both eras."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from tests.gateway.bridge_lab import EVERYTHING, MODES, OLD_WORDS, Lab, lab, pipe_entry, text, until, until_async
from tests.gateway.full_server import TASKS_KEY, FullHttp
from toolway.config.server_entry import parse_entry
from toolway.events import CallFinished, Event
from toolway.gateway.gateway import Gateway
from toolway.gateway.gateway_options import LiveSettings
from toolway.gateway.mcp.context import RequestContext
from toolway.gateway.principals import LOCAL_ADMIN, FileApiKeyStore, Principal
from toolway.gateway.tool_filter import ToolFilter
from toolway.hub.core import HubCore
from toolway.parts.search.meta_tools import META_TOOLS
from toolway.parts.search.runtime import SearchRuntime
from toolway.testing import fake_server
from toolway.types import Call, CallResult, ToolResult

pytestmark = [pytest.mark.anyio, OLD_WORDS]
Json = dict[str, Any]
BOTH_ERAS = pytest.mark.parametrize("era", ["modern", "legacy"])
NAMES = ["search_tools", "describe_tool", "read_tool", "call_tool"]


@asynccontextmanager
async def two_servers(**more: Any) -> AsyncIterator[Lab]:
    """A gateway in front of `new` (modern) and `old` (legacy), each with the same tools."""
    entries: dict[str, Json] = more.pop("entries", {})
    async with AsyncExitStack() as stack:
        fakes = {name: FullHttp(era, "http") for name, era in (("new", "modern"), ("old", "legacy"))}
        for fake in fakes.values():
            await stack.enter_async_context(fake)
        servers = {name: {"url": fake.url, **entries.get(name, {})} for name, fake in fakes.items()}
        servers |= {name: entry for name, entry in entries.items() if name not in servers}
        found = await stack.enter_async_context(lab(servers, **more))
        found.fakes.update(fakes)
        yield found


def structured(result: Any) -> Json:
    found = result.structured_content
    assert isinstance(found, dict), result
    return found


# -- lists ------------------------------------------------------------------------------------------------------------


@BOTH_ERAS
async def test_search_endpoint_lists_meta_tools_and_announces_search(era: str) -> None:
    async with two_servers() as found, found.client(era, "search") as client:
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == NAMES
        hints = [tool.annotations or types.ToolAnnotations() for tool in listed]
        assert [each.read_only_hint for each in hints] == [True, True, True, None] and hints[3].destructive_hint
        async with found.raw("search") as raw:
            said = (await raw.ask("server/discover") if era == "modern" else await raw.initialize()).result
        assert said["capabilities"]["experimental"] == {"toolway/search": {"tools": NAMES}}
        assert said["instructions"].endswith("Servers: new, old.")
        assert "new__echo" in {tool.name for tool in (await _list(found, era)).tools}  # /mcp stays as it is


async def _list(found: Lab, era: str) -> Any:
    async with found.client(era, "") as client:
        return await client.list_tools()


async def test_meta_tool_definitions_cost_at_most_350_tokens() -> None:
    encoded = json.dumps(list(META_TOOLS.values()), separators=(",", ":"))
    assert len(encoded) / 4.4 <= 350


@BOTH_ERAS
async def test_toolset_lists_shown_tools_and_search_finds_the_rest(era: str) -> None:
    toolsets = {
        "work": ToolFilter(("*", "!old.*"), {"new.add": "sum"}, {"new.add": "Adds up."}, None, True, ("new.echo",))
    }
    async with two_servers(toolsets=toolsets) as found, found.client(era, "work") as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == [*NAMES, "new__echo"]
        answer = await client.call_tool("search_tools", {"query": "sum of two numbers", "limit": 20})
        names = [tool["name"] for tool in structured(answer)["tools"]]
        assert names[0] == "sum" and not any(name.startswith("old__") for name in names)
        assert "sum(a?: number, b?: number, nonce?: string) reads: Adds up." in text(answer).splitlines()
        assert text(await client.call_tool("call_tool", {"name": "sum", "arguments": {"a": 1, "b": 2}})) == "3"
        assert text(await client.call_tool("new__echo", {"text": "shown"})) == "shown"
        assert text(await client.call_tool("sum", {"a": 2, "b": 2})) == "4"  # hidden, and callable by its own name
        refused = await client.call_tool("call_tool", {"name": "old__add", "arguments": {"a": 1, "b": 2}})
        assert refused.is_error and "Unknown tool: old__add" in text(refused)
        assert found.fakes["old"].stats.calls == {}


async def test_search_key_uses_search_everywhere_but_single_servers(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "tw_the-token-of-this-machine")
    token, _ = keyring.create_key_sync("a model", ("some",), False, 0.0, None, True)
    plain, _ = keyring.create_key_sync("a user", ("some",), False, 0.0)
    toolsets = {"some": ToolFilter(("new.add", "new.echo"))}
    async with two_servers(keyring=keyring, toolsets=toolsets) as found:
        for endpoint in ("", "some", "search"):
            async with found.client("modern", endpoint, token) as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == NAMES
                answer = structured(await client.call_tool("search_tools", {"query": "elicit a name", "limit": 20}))
                assert {tool["name"] for tool in answer["tools"]} == {"new__add", "new__echo"}
                assert (answer["totalTools"], answer["totalServers"]) == (2, 1)
        async with found.client("modern", "", plain) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["new__echo", "new__add"]
        async with found.client("modern", "search", plain) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == NAMES


async def test_lists_do_not_change_after_a_search_or_call() -> None:
    async with two_servers() as found, found.raw("search") as raw:
        before = (await raw.ask("tools/list")).result["tools"]
        await raw.call("search_tools", {"query": "echo"})
        await raw.call("call_tool", {"name": "new__change_tools"})
        await until(lambda: found.hub.lists.catalog.find_tool("new", "extra_1") is not None)
        assert (await raw.ask("tools/list")).result["tools"] == before
        found_tools = (await raw.call("search_tools", {"query": "extra_1"})).result["structuredContent"]["tools"]
        assert found_tools[0]["name"] == "new__extra_1"


# -- search -----------------------------------------------------------------------------------------------------------


@BOTH_ERAS
async def test_search_answers_with_typed_lines_and_equal_data(era: str) -> None:
    async with two_servers() as found, found.client(era, "search") as client:
        answer = await client.call_tool("search_tools", {"query": "return the sum of two numbers"})
        lines, data = text(answer).splitlines(), structured(answer)
        line = "new__add(a?: number, b?: number, nonce?: string) reads: Return the sum of two numbers."
        assert line in lines[:2] and len(data["tools"]) == 5 and data["fits"] is True
        assert lines[-1].startswith(f"5 of {data['totalTools']} tools of 2 servers.")
        first = next(tool for tool in data["tools"] if tool["name"] == "new__add")
        assert first["arguments"] == {"a?": "number", "b?": "number", "nonce?": "string"}
        assert first["effect"] == "reads" and first["description"] == "Return the sum of two numbers."
        steps = structured(await client.call_tool("search_tools", {"query": ["sum of numbers", "exit code"]}))
        assert {"new__add", "new__crash"} <= {tool["name"] for tool in steps["tools"]}
        one = structured(await client.call_tool("search_tools", {"query": "sum", "server": "old", "limit": 1}))
        assert [tool["name"] for tool in one["tools"]] == ["old__add"]


async def test_search_without_a_match_shows_nearest_tools_and_servers() -> None:
    async with two_servers() as found, found.raw("search") as raw:
        result = (await raw.call("search_tools", {"query": "zzyzx qqfoo"})).result
        said = result["content"][0]["text"]
        assert said.startswith("Nothing fits well. The nearest:") and "Servers: new, old." in said
        assert len(result["structuredContent"]["tools"]) == 5 and result["structuredContent"]["fits"] is False
        wrong_arguments: list[Json] = [{}, {"query": []}, {"query": "x", "limit": 0}, {"query": "x", "serve": "y"}]
        for wrong in (*wrong_arguments, {"query": 7}):
            refused = (await raw.call("search_tools", wrong)).result
            assert refused["isError"] and "search_tools: " in refused["content"][0]["text"]
        unknown = (await raw.call("search_tools", {"query": "x", "server": "none"})).result
        assert "the servers are: new, old" in unknown["content"][0]["text"]


async def test_search_reports_down_servers_and_starts_none(tmp_path: Path) -> None:
    entries = {
        "broken": {"command": sys.executable, "args": ["-c", "raise SystemExit(3)"]},
        "lazy": {**fake_server(), "lazy": True},
    }
    async with two_servers(entries=entries, ready=False) as found, found.raw("search") as raw:
        await found.hub.servers.wait_ready("new", timeout=60)
        said, result = "", {}
        while "1 server down" not in said:  # the broken server is started again from time to time
            await until(lambda: found.hub.servers.state("broken") == "down")
            result = (await raw.call("search_tools", {"query": "echo"})).result
            said = result["content"][0]["text"]
        assert "1 server down: broken." in said and "1 server not listed yet: lazy." in said
        assert result["structuredContent"]["notes"] == [
            "1 server down: broken.",
            "1 server not listed yet: lazy.",
        ]
        assert found.hub.servers.state("lazy") == "idle"
        answer = (await raw.call("call_tool", {"name": "lazy__echo", "arguments": {"text": "up"}})).result
        assert answer["content"][0]["text"] == "up" and found.hub.servers.state("lazy") == "ready"


class _AddIsHeld:
    """Pins with which the definition of `add` is on hold."""

    def start_server(self, server: str, identity: str) -> None: ...

    def review(self, server: str, kind: str, items: Mapping[str, Json]) -> dict[str, object]:
        return {name: "changed" for name in items if (kind, name) == ("tools", "add")}

    def digest(self, server: str, kind: str, name: str, definition: Json) -> str:
        return ""

    def is_usable(self, server: str, kind: str, name: str, digest: str) -> bool:
        return True


async def test_tool_on_hold_is_neither_found_nor_callable() -> None:
    async with two_servers() as found, found.raw("search") as raw:
        first = (await raw.call("search_tools", {"query": "sum of two numbers"})).result["structuredContent"]
        assert first["tools"][0]["name"].endswith("__add") and "notes" not in first
        found.hub.lists.catalog.pins = _AddIsHeld()
        found.hub.lists.catalog.review_again("new")
        result = (await raw.call("search_tools", {"query": "new add"})).result
        assert result["structuredContent"]["notes"] == ["1 tool waiting for an administrator's review."]
        assert "new__add" not in result["content"][0]["text"]
        answer = await raw.call("call_tool", {"name": "new__add", "arguments": {"a": 1, "b": 2}})
        assert "error" in answer.last or answer.result["isError"]
        assert found.fakes["new"].stats.calls.get("add", 0) == 0
        found.hub.lists.catalog.pins = None
        found.hub.lists.catalog.review_again("new")
        again = (await raw.call("search_tools", {"query": "new add"})).result["structuredContent"]
        assert again["tools"][0]["name"] == "new__add" and "notes" not in again


async def test_tools_of_a_down_server_are_found_and_marked(tmp_path: Path) -> None:
    once = f'test -e {tmp_path}/started && exit 3; touch {tmp_path}/started; exec "$@"'
    entry = pipe_entry("modern")
    entry = {"command": "/bin/sh", "args": ["-c", once, "sh", entry["command"], *entry["args"]]}
    async with lab({"full": entry}) as found, found.raw("search") as raw:
        assert (await raw.call("call_tool", {"name": "full__crash"})).error["data"]["code"]

        async def is_marked() -> bool:
            result = (await raw.call("search_tools", {"query": "sum of two numbers"})).result
            first = result["structuredContent"]["tools"][0]
            assert first["name"] == "full__add"
            return first.get("down") is True and "reads, its server is down: " in result["content"][0]["text"]

        await until_async(is_marked)  # between its restarts


async def test_nothing_outside_a_keys_scopes_is_in_any_answer() -> None:
    """300 random views of 12 servers: names of hidden tools and servers are in no answer, not even in a note."""
    random = Random(18)
    words = ("alpha", "beta", "gamma", "delta", "omega", "sigma")
    servers = {f"{word}-{number}": {"url": "http://127.0.0.1:9/", "lazy": True} for word in words for number in (1, 2)}
    hub = HubCore({name: parse_entry(entry) for name, entry in servers.items()}, catalog_storage=None)
    async with hub:
        for server in list(servers)[:10]:  # two have no list yet
            raw = [
                {"name": f"{verb}_{server.replace('-', '')}", "description": f"{verb} it", "inputSchema": {}}
                for verb in ("read", "send", "drop")
            ]
            hub.lists.catalog.replace(server, "tools", raw)
        toolsets: dict[str, ToolFilter] = {}
        gateway = Gateway(hub, b"k" * 32, None, settings=LiveSettings(lambda: toolsets))
        dispatch = gateway._dispatcher.dispatch
        every = [*servers, *(tool.name for tool in hub.lists.catalog.tools())]
        for number in range(300):
            patterns = tuple(f"{random.choice(list(servers))}.{random.choice(('*', 'read_*'))}" for _ in range(3))
            toolsets["own"] = ToolFilter(patterns)
            principal = Principal(f"k{number}", "a key", "key:k", access=("own",), search=True)
            gateway.router.refresh_views()
            view = gateway.router.view_for(principal, random.choice(("", "own", "search")))
            assert view is not None
            shown = {*view.servers(), *(tool.name for tool in view.items("tools").values())}
            query = random.choice((*words, "send", "zzyzx"))
            other = random.choice(hub.lists.catalog.tools())
            for name, arguments in (
                ("search_tools", {"query": query, "limit": 20}),
                ("describe_tool", {"name": list(view.items("tools")) or ["none"]}),
                ("call_tool", {"name": f"{other.server}.none_{number}"}),
            ):
                context = RequestContext(principal, view, "search", "modern")
                answer = await dispatch(context, "tools/call", {"name": name, "arguments": arguments})
                said = json.dumps(answer).replace(f"{other.server}.none_{number}", "")
                assert {each for each in every if f"{each}" in said} <= shown, (patterns, name, said)


# -- describe ----------------------------------------------------------------------------------------------------------


@BOTH_ERAS
async def test_describe_tool_returns_definitions_as_listed(era: str) -> None:
    async with two_servers() as found, found.client(era, "search") as client:
        answer = await client.call_tool("describe_tool", {"name": ["new__add", "old.echo", "absent"]})
        listed = {tool.name: tool for tool in (await _list(found, era)).tools}
        described = {tool["name"]: tool for tool in structured(answer)["tools"]}
        assert described.keys() == {"new__add", "old__echo"} and structured(answer)["unknown"] == ["absent"]
        assert described["new__add"]["inputSchema"] == listed["new__add"].input_schema
        assert "Unknown tool: absent. Find its name with search_tools." in text(answer)
        assert (await client.call_tool("describe_tool", {"name": "absent"})).is_error


# -- calls ------------------------------------------------------------------------------------------------------------


@BOTH_ERAS
async def test_call_tool_result_equals_the_direct_result(era: str) -> None:
    async with two_servers() as found, found.raw("search") as raw:
        if era == "legacy":
            await raw.initialize()
        send = raw.ask if era == "modern" else raw.request
        for name, arguments in (("unknown_fields", {}), ("add", {"a": 1, "b": 2.5}), ("fail", {"text": "no"})):
            direct = await send("tools/call", {"name": f"new__{name}", "arguments": arguments})
            through = await send(
                "tools/call", {"name": "call_tool", "arguments": {"name": f"new__{name}", "arguments": arguments}}
            )
            assert json.dumps(direct.result) == json.dumps(through.result)


@BOTH_ERAS
async def test_events_and_servers_see_the_real_tool(era: str) -> None:
    events: list[Event] = []

    class Sink:
        wants_attempts = False

        def on_event(self, event: Event) -> None:
            events.append(event)

        def on_call(self, event: CallFinished) -> None:
            events.append(event)

    async with two_servers() as found, found.client(era, "search") as client:
        found.hub.instrumentation.add_sink(Sink())
        await client.call_tool("read_tool", {"name": "new__add", "arguments": {"a": 1, "b": 1}})
        await client.call_tool("call_tool", {"name": "old.echo", "arguments": {"text": "x"}})
        calls = [(each.server, each.tool) for each in events if isinstance(each, CallFinished)]
        assert calls == [("new", "add"), ("old", "echo")]
        assert found.fakes["new"].stats.calls == {"add": 1} and found.fakes["old"].stats.calls == {"echo": 1}


@BOTH_ERAS
async def test_wrong_arguments_get_the_schema_and_are_not_sent(era: str) -> None:
    async with two_servers() as found, found.client(era, "search") as client:
        for arguments in ({"a": "one", "b": 2}, "a=1"):
            answer = await client.call_tool("call_tool", {"name": "new__add", "arguments": arguments})
            assert answer.is_error and "Not sent. Schema of new__add: {" in text(answer)
            assert structured(answer)["inputSchema"]["properties"]["a"] == {"type": "number"}
        first = await client.call_tool("call_tool", {"name": "new__add", "arguments": {"a": "one", "b": 2}})
        assert "$.a is a string, expected a number" in text(first)
        [violation] = structured(first)["violations"]
        assert violation["path"] == "$.a" and structured(first)["executed"] == "no"
        flat = await client.call_tool("call_tool", {"name": "new__add", "a": 1, "b": 2})
        assert flat.is_error and "put the arguments of new__add into `arguments`" in text(flat)
        assert found.fakes["new"].stats.calls == {}


@BOTH_ERAS
async def test_read_tool_rejects_tools_with_side_effects(era: str) -> None:
    async with two_servers() as found, found.client(era, "search") as client:
        refused = await client.call_tool("read_tool", {"name": "new__counter"})
        assert refused.is_error and "Use call_tool" in text(refused) and found.fakes["new"].stats.calls == {}
        assert text(await client.call_tool("read_tool", {"name": "new__echo", "arguments": {"text": "r"}})) == "r"
        assert not (await client.call_tool("call_tool", {"name": "new__counter"})).is_error
        for name in NAMES:
            for way in ("call_tool", "read_tool"):
                nested = await client.call_tool(way, {"name": name, "arguments": {}})
                assert nested.is_error and "call it directly" in text(nested)
        for wrong in ({}, {"name": 7}):
            assert (await client.call_tool("call_tool", wrong)).is_error
        unknown = await client.call_tool("call_tool", {"name": "new__ad"})
        assert unknown.is_error and "new__add(" in text(unknown)


@BOTH_ERAS
async def test_denied_tool_is_neither_found_nor_callable(era: str) -> None:
    entries = {"new": {"tools": {"deny": ["add"]}}}
    async with two_servers(entries=entries) as found, found.client(era, "search") as client:
        names = structured(await client.call_tool("search_tools", {"query": "add", "server": "new", "limit": 20}))
        assert "new__add" not in {tool["name"] for tool in names["tools"]}
        assert (await client.call_tool("describe_tool", {"name": "new__add"})).is_error
        for name in ("new__add", "new.add"):
            with pytest.raises(MCPError) as caught:
                await client.call_tool("call_tool", {"name": name, "arguments": {"a": 1, "b": 2}})
            data: Any = caught.value.error.data
            assert (data["code"], data["executed"]) == ("E-TOOL-DENIED", "no")
        assert found.fakes["new"].stats.calls == {}


@pytest.mark.parametrize("server", ["new", "old"])
@BOTH_ERAS
async def test_input_progress_and_headers_work_through_call_tool(era: str, server: str) -> None:
    heard: list[float] = []

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async with two_servers() as found, found.client(era, "search", elicitation_callback=elicit) as client:
        answer = await client.call_tool("call_tool", {"name": f"{server}__elicit", "arguments": {"rounds": 2}})
        assert text(answer).count("Ada") == 2
        await client.call_tool(
            "call_tool",
            {"name": f"{server}__progress", "arguments": {"n": 2, "seconds": 0.01}},
            progress_callback=on_progress,
        )
        assert heard == [1, 2]
        tagged = await client.call_tool(
            "call_tool", {"name": f"{server}__echo", "arguments": {"text": "t", "tag": "x"}}
        )
        assert text(tagged) == "t"  # an argument that only a header of a direct call could repeat


async def test_tasks_and_idempotency_keys_work_through_call_tool() -> None:
    capabilities = {**EVERYTHING, "extensions": {TASKS_KEY: {}}}
    async with two_servers() as found, found.raw("search") as raw:
        task = await raw.call("call_tool", {"name": "new__start_task"}, capabilities=capabilities)
        assert task.result["resultType"] == "task"
        got = await raw.ask("tasks/get", {"taskId": task.result["taskId"]}, capabilities=capabilities)
        assert got.result["taskId"] == task.result["taskId"]
        meta = {"toolway/idempotencyKey": "once"}
        first = await raw.call("call_tool", {"name": "new__counter"}, meta=meta)
        second = await raw.call("call_tool", {"name": "new__counter"}, meta=meta)
        assert first.result["content"] == second.result["content"]
        assert found.fakes["new"].stats.calls["counter"] == 1


async def test_call_tool_adds_few_function_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(call: Call) -> CallResult:
        return ToolResult(call.server, call.name, {"content": []})

    async with two_servers() as found:
        view, dispatch = found.gateway.router.view_for(LOCAL_ADMIN, "search"), found.gateway._dispatcher.dispatch
        assert view is not None
        monkeypatch.setattr(found.hub.calls, "request", answer)  # nothing waits, so nothing else runs

        async def count(params: Json) -> int:
            made = 0

            def on_event(frame: Any, event: str, argument: Any) -> None:
                nonlocal made
                made += event == "call"

            context = RequestContext(LOCAL_ADMIN, view, "search", "modern")
            sys.setprofile(on_event)
            try:
                await dispatch(context, "tools/call", params)
            finally:
                sys.setprofile(None)
            return made

        direct: Json = {"name": "new__add", "arguments": {"a": 1, "b": 2}}
        for name in ("call_tool", "read_tool"):
            through = {"name": name, "arguments": direct}
            await count(through)  # its policy is computed once
            assert 0 < await count(through) - await count(direct) <= 12


# -- learning ----------------------------------------------------------------------------------------------------------


async def test_call_after_a_search_is_learned_and_unmet_search_kept() -> None:
    async with two_servers() as found, found.raw("search") as raw:
        log = found.gateway.parts.runtime("search", SearchRuntime).tools.log

        def learned(query: str) -> set[str]:
            """Names of the tools that earlier calls recommend for a query."""
            matches = found.hub.tool_search.search(query, limit=20, principal=LOCAL_ADMIN.id).matches
            return {each.tool.name for each in matches if any(reason.kind == "history" for reason in each.reasons)}

        await raw.call("search_tools", {"query": "tell me a failure"})
        await raw.call("call_tool", {"name": "new__fail"})  # a tool error is not a success
        await raw.call("call_tool", {"name": "new__add", "arguments": {"a": 1, "b": 1}})  # not found by the search
        assert not learned("tell me a failure")
        assert [each.query for each in log.unmet()] == ["tell me a failure"]
        await raw.call("search_tools", {"query": ["greet politely", "echo the text"]})
        await raw.call("call_tool", {"name": "new__echo", "arguments": {"text": "hi"}})
        assert learned("echo the text") == {"echo"}
        assert {each.query for each in log.unmet()} == {"tell me a failure", "greet politely"}
        assert (log.counts.calls["call_tool"], log.counts.fits + log.counts.nothing) == (3, 2)


# -- stdio -------------------------------------------------------------------------------------------------------------


@BOTH_ERAS
async def test_stdio_client_searches_and_calls(era: str, tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"one": fake_server(), "two": fake_server()}}))
    words = ["-m", "toolway.cli", "serve", "--stdio", "--search", "--config", str(config)]
    environment = {**os.environ, "TOOLWAY_STATE": str(tmp_path / "state")}
    server = StdioServerParameters(command=sys.executable, args=words, env=environment)
    async with asyncio.timeout(60), Client(server, mode=MODES[era]) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == NAMES
        answer = structured(await client.call_tool("search_tools", {"query": "sum of two numbers"}))
        assert {tool["name"] for tool in answer["tools"][:2]} == {"one__add", "two__add"}
        called = await client.call_tool("read_tool", {"name": "two__add", "arguments": {"a": 2, "b": 3}})
        assert text(called) == "5"
