"""A denied tool cannot be reached: each way that reaches an allowed tool is tried with a denied one.

A way returns True if it showed the tool or the server executed it. Ways that deny a tool only after it was used have a
their own tool.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError
from msgspec.structs import replace

from tests.cluster.node.hop_lab import TOKEN as CLUSTER_TOKEN
from tests.cluster.node.hop_lab import Cluster, cluster
from tests.gateway.bridge_lab import MODES, OLD_WORDS, Answer, full, until
from tests.gateway.edge_lab import TOKEN, Edge, handshake, message_of, modern
from tests.gateway.test_resume import break_off, over, resume
from toolway import Hub, Server, SyncHub
from toolway.config.server_entry import parse_entry
from toolway.errors import AccessDenied, CallError, ConfigError
from toolway.events import CatalogChanged
from toolway.gateway.gateway import Gateway
from toolway.gateway.gateway_options import LiveSettings
from toolway.gateway.mcp.context import NoHubCallbacks
from toolway.gateway.mcp.view import KINDS
from toolway.gateway.principals import FileApiKeyStore
from toolway.gateway.tool_filter import ToolFilter
from toolway.hub.core import HubCore
from toolway.testing import FakeHttp, fake_server
from toolway.types import Call, CallHandler, CallResult

pytestmark = [pytest.mark.anyio, OLD_WORDS]
Json = dict[str, Any]
ALLOWED, DENIED = "tool_0001", "tool_0002"
DENY: Final = {"tools": {"deny": [DENIED]}}
LONG_NAME: Final = "a-server-with-such-a-long-name-that-models-see-a-shortened-one"
TOOLSETS: Final = {
    "some": ToolFilter(("fs.tool_*",)),
    "named": ToolFilter(("fs.*",), {f"fs.{ALLOWED}": "allowed", f"fs.{DENIED}": "denied"}, {f"fs.{DENIED}": "Useful."}),
}


class DenyLab(Edge):
    """A gateway in front of `fs` (either era) and `old` (legacy); both deny `tool_0002`."""

    folder: Path
    library: Hub

    def tool(self, denied: bool) -> str:
        return DENIED if denied else ALLOWED

    def count(self, tool: str) -> int:
        return sum(fake.stats.calls.get(tool, 0) for fake in self.fakes.values())

    async def executes(self, tool: str, attempt: Awaitable[Any]) -> bool:
        """Return True if the server executed the tool during the attempt."""
        before = self.count(tool)
        try:
            await attempt
        except CallError as exc:
            check_denied(exc)
        return self.count(tool) > before

    def entry(self, **more: Any) -> Json:
        return {"url": self.fakes["fs"].url, **DENY, **more}

    @asynccontextmanager
    async def alone(self, **more: Any) -> AsyncIterator[Hub]:
        """Its own hub with `fs` alone."""
        async with Hub({"fs": self.entry(**more)}, catalog_storage=None) as hub:
            yield hub

    async def command(self, *words: str) -> str:
        """Run `toolway` with a config file that has `fs` alone; return its output."""
        file = self.folder / "cli.json"
        file.write_text(json.dumps({"mcpServers": {"fs": self.entry()}}))
        return await run_program(self.folder, "-m", "toolway.cli", *words, "--config", str(file))


def check_denied(error: CallError) -> None:
    """Check that an error says why: the tool is denied, by which setting, and that nothing ran."""
    assert isinstance(error, AccessDenied) and (error.code, error.executed) == ("E-TOOL-DENIED", "no"), error
    assert "tools.deny" in error.detail or "set_denied_tools" in error.detail


async def run_program(home: Path, *words: str) -> str:
    own = {"HOME": home, "XDG_CACHE_HOME": home / "cache", "XDG_STATE_HOME": home / "state"}
    env = {**os.environ, **{name: str(folder) for name, folder in own.items()}}
    for name in ("XDG_CONFIG_HOME", "TOOLWAY_CONFIG", "TOOLWAY_TOKEN"):
        env.pop(name, None)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=-1, stderr=-1, stdin=asyncio.subprocess.DEVNULL, env=env, cwd=home
    )
    out, errors = await asyncio.wait_for(process.communicate(), 60)
    return (out + errors).decode()


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[DenyLab]:
    fakes = {"fs": FakeHttp(tools=3), "old": FakeHttp(tools=3, era="legacy")}
    keyring = FileApiKeyStore(tmp_path / "keys.json", TOKEN)
    async with AsyncExitStack() as stack:
        for fake in fakes.values():
            await stack.enter_async_context(fake)
        entries = {name: parse_entry({"url": fake.url, **DENY}) for name, fake in fakes.items()}
        core = HubCore(entries, callbacks=NoHubCallbacks(), catalog_storage=None)
        await stack.enter_async_context(core)
        gateway = Gateway(core, b"k" * 32, keyring, settings=LiveSettings(lambda: TOOLSETS))
        port = await gateway.listen("127.0.0.1", 0)
        await core.servers.wait_ready(timeout=60)
        for kind in KINDS:
            await core.lists.waits.wait_known(list(fakes), kind, 60)
        found = DenyLab(core, gateway, keyring, port, fakes)
        found.folder, found.library = tmp_path, Hub._from_core(core)
        try:
            yield found
        finally:
            hurry = asyncio.Event()
            hurry.set()
            await gateway.drain(hurry, 0, 0)


Way = Callable[[DenyLab, bool], Awaitable[bool]]
WAYS: dict[str, Way] = {}


def way(name: str) -> Callable[[Way], Way]:
    def register(run: Way) -> Way:
        assert name not in WAYS
        WAYS[name] = run
        return run

    return register


# -- library ----------------------------------------------------------------------------------------------------------


@way("hub.list_tools()")
async def _(lab: DenyLab, denied: bool) -> bool:
    return f"fs.{lab.tool(denied)}" in {tool.qualified_name for tool in await lab.library.list_tools()}


@way("hub.list_tools(server=…)")
async def _(lab: DenyLab, denied: bool) -> bool:
    return lab.tool(denied) in {tool.name for tool in await lab.library.list_tools(server="fs")}


@way("hub.known_tools()")
async def _(lab: DenyLab, denied: bool) -> bool:
    return lab.tool(denied) in {tool.name for tool in lab.library.known_tools()}


@way("search: hub.search_tools(query)")
async def _(lab: DenyLab, denied: bool) -> bool:
    found = await lab.library.search_tools(lab.tool(denied), limit=50)
    return lab.tool(denied) in {match.tool.name for match in found}


@way("hub.find_tool(server.tool)")
async def _(lab: DenyLab, denied: bool) -> bool:
    return await found_by_name(lab.library, f"fs.{lab.tool(denied)}")


@way("hub.find_tool(server__tool)")
async def _(lab: DenyLab, denied: bool) -> bool:
    return await found_by_name(lab.library, f"fs__{lab.tool(denied)}")


@way("hub.find_tool(tool)")
async def _(lab: DenyLab, denied: bool) -> bool:
    async with lab.alone() as hub:
        return await found_by_name(hub, lab.tool(denied))


async def found_by_name(hub: Hub, name: str) -> bool:
    try:
        return (await hub.find_tool(name)).name in name
    except AccessDenied as exc:
        check_denied(exc)
        return False


@way("hub.call_tool(server.tool)")
async def _(lab: DenyLab, denied: bool) -> bool:
    return await lab.executes(lab.tool(denied), lab.library.call_tool(f"fs.{lab.tool(denied)}"))


@way("hub.call_tool(server__tool)")
async def _(lab: DenyLab, denied: bool) -> bool:
    return await lab.executes(lab.tool(denied), lab.library.call_tool(f"fs__{lab.tool(denied)}"))


@way("hub.call_tool(tool)")
async def _(lab: DenyLab, denied: bool) -> bool:
    async with lab.alone() as hub:
        return await lab.executes(lab.tool(denied), hub.call_tool(lab.tool(denied)))


@way("hub.call_tool(shortened model name)")
async def _(lab: DenyLab, denied: bool) -> bool:
    async with Hub({LONG_NAME: lab.entry(tools={})}, catalog_storage=None) as hub:
        tool = await hub.find_tool(f"{LONG_NAME}.{lab.tool(denied)}")
        assert LONG_NAME not in tool.model_name
        hub.set_denied_tools(LONG_NAME, [DENIED])
        return await lab.executes(lab.tool(denied), hub.call_tool(tool.model_name))


@way("hub.call_tool() before the tools are known")
async def _(lab: DenyLab, denied: bool) -> bool:
    async with lab.alone(lazy=True) as hub:
        assert not hub.known_tools()
        return await lab.executes(lab.tool(denied), hub.call_tool(f"fs.{lab.tool(denied)}"))


@way("hub.call_tool() of a legacy server")
async def _(lab: DenyLab, denied: bool) -> bool:
    return await lab.executes(lab.tool(denied), lab.library.call_tool(f"old.{lab.tool(denied)}"))


@way("hub.call_tool() of a stdio server")
async def _(lab: DenyLab, denied: bool) -> bool:
    async with Hub({"pipe": {**fake_server(tools=3), **DENY}}, catalog_storage=None) as hub:
        return await succeeds(hub.call_tool(f"pipe.{lab.tool(denied)}"))


@way("hub.call_tool() of an SDK server object")
async def _(lab: DenyLab, denied: bool) -> bool:
    server, executed = MCPServer("memory"), list[int]()

    for name in (ALLOWED, DENIED):
        server.add_tool(lambda: executed.append(1), name=name, description=name)
    async with Hub({"memory": Server(instance=server, denied_tools=(DENIED,))}, catalog_storage=None) as hub:
        return await succeeds(hub.call_tool(f"memory.{lab.tool(denied)}")) and bool(executed)


async def succeeds(attempt: Awaitable[Any]) -> bool:
    try:
        await attempt
    except AccessDenied as exc:
        check_denied(exc)
        return False
    return True


@way("many calls at once")
async def _(lab: DenyLab, denied: bool) -> bool:
    calls = [lab.library.call_tool(f"fs.{lab.tool(denied)}", {"text": str(n)}) for n in range(20)]
    return await lab.executes(lab.tool(denied), asyncio.gather(*calls, return_exceptions=True))


@way("a call of an allowed tool, changed on its way")
async def _(lab: DenyLab, denied: bool) -> bool:
    tool = lab.tool(denied)
    call = Call(f"fs.{ALLOWED}", "tools/call", {"name": tool, "arguments": {}}, "fs", ALLOWED)
    return await lab.executes(tool, lab.hub.calls.request(call))


@way("a middleware that changes the tool of a call")
async def _(lab: DenyLab, denied: bool) -> bool:
    tool = lab.tool(denied)

    async def change(call: Call, next: CallHandler) -> CallResult:
        return await next(replace(call, name=tool, params={**call.params, "name": tool}))

    async with Hub({"fs": lab.entry()}, catalog_storage=None, middleware=[change]) as hub:
        await hub.wait_ready(timeout=30)
        before = lab.count(tool)
        with suppress(CallError):  # a middleware may not change the tool: E-MIDDLEWARE
            await hub.call_tool(f"fs.{ALLOWED}")
        return lab.count(tool) > before


@way("a call that waits for a slot when the tool is denied")
async def _(lab: DenyLab, denied: bool) -> bool:
    async with lab.alone(limits={"maxConcurrent": 1}) as hub:
        await hub.wait_ready(timeout=30)
        first = asyncio.create_task(hub.call_tool("fs.sleep", {"seconds": 0.3}))
        await until(lambda: hub.status()["fs"].in_flight == 1)
        second = asyncio.create_task(hub.call_tool("fs.echo"))
        await until(lambda: hub._core.servers.load("fs")[0] == 1)
        if denied:
            hub.set_denied_tools("fs", ["echo"])
        try:
            return await lab.executes("echo", second)
        finally:
            await first


@way("the stored result of an idempotency key")
async def _(lab: DenyLab, denied: bool) -> bool:
    async with lab.alone() as hub:
        await hub.call_tool("fs.counter", {"call": "x"}, idempotency_key="one")
        if denied:
            hub.set_denied_tools("fs", ["counter"])
        try:
            return (await hub.call_tool("fs.counter", {"call": "x"}, idempotency_key="one")).replayed
        except AccessDenied:
            return False


@way("a cached result")
async def _(lab: DenyLab, denied: bool) -> bool:
    async with lab.alone(tools={"echo": {"effect": "read", "cache": "60s"}}) as hub:
        await hub.wait_ready(timeout=30)
        await hub.call_tool("fs.echo", {"text": "x"})
        if denied:
            hub.set_denied_tools("fs", ["echo"])
        try:
            return (await hub.call_tool("fs.echo", {"text": "x"})).from_cache
        except AccessDenied:
            return False


@way("tools stored by an earlier run without a deny list")
async def _(lab: DenyLab, denied: bool) -> bool:
    folder = lab.folder / "stored"
    async with Hub({"fs": lab.entry(tools={})}, catalog_storage=folder) as hub:
        assert DENIED in {tool.name for tool in await hub.list_tools()}
    async with Hub({"fs": lab.entry(lazy=True)}, catalog_storage=folder) as hub:
        known = {tool.name for tool in hub.known_tools()}
        tool = lab.tool(denied)
        return tool in known or await lab.executes(tool, hub.call_tool(f"fs.{tool}"))


@way("a suggestion for a misspelt name")
async def _(lab: DenyLab, denied: bool) -> bool:
    try:
        await lab.library.call_tool(f"fs.{lab.tool(denied)}x")
    except CallError as exc:
        return f"fs.{lab.tool(denied)} " in f"{exc} ".replace("?", " ")
    return True


@way("events at the start of a server")
async def _(lab: DenyLab, denied: bool) -> bool:
    async with lab.alone(lazy=True) as hub:
        events = hub.events(CatalogChanged)
        await hub.list_tools(server="fs")
        event = await anext(events)
        assert isinstance(event, CatalogChanged)
        return lab.tool(denied) in event.added


@way("a prompt with the name of the tool")
async def _(lab: DenyLab, denied: bool) -> bool:
    name = DENIED if denied else "greet"
    try:
        return bool((await lab.library.get_prompt(f"fs.{name}", {"name": "Ada"})).text)
    except CallError:
        return False


@way("after the server was replaced")
async def _(lab: DenyLab, denied: bool) -> bool:
    async with lab.alone() as hub:
        await hub.wait_ready(timeout=30)
        await hub.add_server("fs", lab.entry(timeout="30s"), replace=True)
        return await lab.executes(lab.tool(denied), hub.call_tool(f"fs.{lab.tool(denied)}"))


@way("after a reload that adds the deny list")
async def _(lab: DenyLab, denied: bool) -> bool:
    async with lab.alone(tools={}) as hub:
        assert DENIED in {tool.name for tool in await hub.list_tools()}
        connections = lab.fakes["fs"].stats.discover
        assert await hub.reload({"fs": lab.entry()}) == {"fs": "changed"}
        tool = lab.tool(denied)
        known = tool in {each.name for each in hub.known_tools()}
        assert lab.fakes["fs"].stats.discover == connections  # without a restart
        return known or await lab.executes(tool, hub.call_tool(f"fs.{tool}"))


@way("the circuit breaker of the tool")
async def _(lab: DenyLab, denied: bool) -> bool:
    try:
        lab.hub.servers.trip_breaker("fs", lab.tool(denied))
    except AccessDenied:
        return False
    lab.hub.servers.reset_breaker("fs", lab.tool(denied))
    return True


@way("SyncHub")
async def _(lab: DenyLab, denied: bool) -> bool:
    def use() -> bool:
        with SyncHub({"fs": lab.entry()}, catalog_storage=None) as hub:
            names = {tool.name for tool in hub.list_tools()}
            try:
                return bool(hub.call_tool(f"fs.{lab.tool(denied)}")) or lab.tool(denied) in names
            except AccessDenied:
                return lab.tool(denied) in names

    return await asyncio.to_thread(use)


# -- gateway ----------------------------------------------------------------------------------------------------------


@way("search_tools and describe_tool at /mcp/search")
async def _(lab: DenyLab, denied: bool) -> bool:
    tool = lab.tool(denied)
    asked = (("search_tools", {"query": tool, "limit": 20}), ("describe_tool", {"name": f"fs__{tool}"}))
    answers = [await lab.call(name, arguments, path="/mcp/search") for name, arguments in asked]
    shown = [
        any(each["name"].endswith(tool) for each in answer["result"]["structuredContent"]["tools"])
        for answer in answers
    ]
    assert shown[0] is shown[1]
    return shown[0]


@way("call_tool and read_tool at /mcp/search")
async def _(lab: DenyLab, denied: bool) -> bool:
    tool = lab.tool(denied)
    found = []
    for name in ("call_tool", "read_tool"):
        for spelling in (f"fs__{tool}", f"fs.{tool}"):
            attempt = lab.call(name, {"name": spelling, "arguments": {}}, path="/mcp/search")
            found.append(await lab.executes(tool, attempt))
    assert len(set(found)) == 1
    return found[0]


@way("/mcp tools/list, modern")
async def _(lab: DenyLab, denied: bool) -> bool:
    return f"fs__{lab.tool(denied)}" in await lab.tools()


@way("/mcp tools/call, modern")
async def _(lab: DenyLab, denied: bool) -> bool:
    return await lab.executes(lab.tool(denied), lab.call(f"fs__{lab.tool(denied)}"))


@way("/mcp tools/call of a legacy server, modern")
async def _(lab: DenyLab, denied: bool) -> bool:
    return await lab.executes(lab.tool(denied), lab.call(f"old__{lab.tool(denied)}"))


@way("/mcp tools/call with the dotted name")
async def _(lab: DenyLab, denied: bool) -> bool:
    if not denied:  # endpoints accept the names that they list
        return "error" in await lab.call(f"fs.{ALLOWED}") and "result" in await lab.call(f"fs__{ALLOWED}")
    return await lab.executes(DENIED, lab.call(f"fs.{DENIED}"))


@way("/mcp tools/list, legacy")
async def _(lab: DenyLab, denied: bool) -> bool:
    return f"fs__{lab.tool(denied)}" in json.dumps(await legacy(lab, "tools/list", {}))


@way("/mcp tools/call, legacy")
async def _(lab: DenyLab, denied: bool) -> bool:
    tool = lab.tool(denied)
    return await lab.executes(tool, legacy(lab, "tools/call", {"name": f"fs__{tool}", "arguments": {}}))


async def legacy(lab: DenyLab, method: str, params: Json, path: str = "/mcp") -> Json:
    session = await lab.initialize(path)
    fields = {"Mcp-Session-Id": session, "Mcp-Protocol-Version": "2025-11-25"}
    return message_of(await lab.ask("POST", path, handshake(method, params), fields))


@way("/mcp/server/fs tools/list")
async def _(lab: DenyLab, denied: bool) -> bool:
    return lab.tool(denied) in await lab.tools(path="/mcp/server/fs")


@way("/mcp/server/fs tools/call")
async def _(lab: DenyLab, denied: bool) -> bool:
    return await lab.executes(lab.tool(denied), lab.call(lab.tool(denied), path="/mcp/server/fs"))


@way("/mcp/server/old tools/call, legacy")
async def _(lab: DenyLab, denied: bool) -> bool:
    tool = lab.tool(denied)
    return await lab.executes(tool, legacy(lab, "tools/call", {"name": tool, "arguments": {}}, "/mcp/server/old"))


@way("toolset: tools/list")
async def _(lab: DenyLab, denied: bool) -> bool:
    return f"fs__{lab.tool(denied)}" in await lab.tools(path="/mcp/some")


@way("toolset: tools/call")
async def _(lab: DenyLab, denied: bool) -> bool:
    return await lab.executes(lab.tool(denied), lab.call(f"fs__{lab.tool(denied)}", path="/mcp/some"))


@way("rename: tools/list")
async def _(lab: DenyLab, denied: bool) -> bool:
    answer = json.dumps(await lab.modern("tools/list", path="/mcp/named"))
    return any(f'"{name}"' in answer for name in (("denied", "Useful.") if denied else ("allowed",)))


@way("rename: tools/call")
async def _(lab: DenyLab, denied: bool) -> bool:
    name = "denied" if denied else "allowed"
    return await lab.executes(lab.tool(denied), lab.call(name, path="/mcp/named"))


@way("API key for the server")
async def _(lab: DenyLab, denied: bool) -> bool:
    token = lab.key("server/fs")
    return await lab.executes(lab.tool(denied), lab.call(f"fs__{lab.tool(denied)}", token=token))


@way("prompts/get and completion/complete with the name of the tool")
async def _(lab: DenyLab, denied: bool) -> bool:
    name = f"fs__{DENIED if denied else 'greet'}"
    prompt = await lab.modern("prompts/get", {"name": name, "arguments": {"name": "Ada"}})
    params = {"ref": {"type": "ref/prompt", "name": name}, "argument": {"name": "tone", "value": ""}}
    completion = await lab.modern("completion/complete", params)
    assert ("result" in prompt) is ("result" in completion)
    return "result" in prompt


@way("/sse of 2024-11-05")
async def _(lab: DenyLab, denied: bool) -> bool:
    def plain(
        headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(trust_env=False, headers=headers, timeout=timeout, auth=auth)

    address = f"http://127.0.0.1:{lab.port}/sse"
    async with Client(sse_client(address, bearer(), httpx_client_factory=plain), mode="legacy") as client:
        return await through_client(lab, client, lab.tool(denied))


async def through_client(lab: DenyLab, client: Client, tool: str) -> bool:
    """Return True if a client of the SDK sees the tool or executes it."""
    names = {each.name for each in (await client.list_tools()).tools}
    before, is_denied = lab.count(tool), False
    try:
        await client.call_tool(f"fs__{tool}", {"text": "x"})
    except MCPError as exc:
        is_denied = "E-TOOL-DENIED" in exc.message
    assert is_denied is (tool == DENIED)
    return f"fs__{tool}" in names or lab.count(tool) > before


def bearer() -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKEN}"}


@way("resume: the state of a suspended call of a legacy server")
async def _(lab: DenyLab, denied: bool) -> bool:
    return await resumes(lab, "old", denied)


@way("resume: the state of a modern server")
async def _(lab: DenyLab, denied: bool) -> bool:
    return await resumes(lab, "fs", denied)


async def resumes(lab: DenyLab, server: str, denied: bool) -> bool:
    name = f"{server}__elicit"
    capabilities: Json = {"elicitation": {"form": {}}}
    asked = (await lab.call(name, capabilities=capabilities))["result"]
    assert asked["resultType"] == "input_required"
    if denied:
        lab.hub.servers.set_denied_tools(server, [DENIED, "elicit"])
    accept = {"action": "accept", "content": {"name": "Ada"}}
    params = {"requestState": asked["requestState"], "inputResponses": dict.fromkeys(asked["inputRequests"], accept)}
    answer = await lab.modern("tools/call", {"name": name, "arguments": {}, **params}, capabilities=capabilities)
    return "Ada" in json.dumps(answer)


@way("/admin/tools")
async def _(lab: DenyLab, denied: bool) -> bool:
    return lab.tool(denied).encode() in (await lab.ask("GET", "/admin/tools")).body


@way("/admin/tool-list")
async def _(lab: DenyLab, denied: bool) -> bool:
    return lab.tool(denied).encode() in (await lab.ask("GET", "/admin/tool-list")).body


@way("/admin/tools/{server}/{tool}")
async def _(lab: DenyLab, denied: bool) -> bool:
    return (await lab.ask("GET", f"/admin/tools/fs/{lab.tool(denied)}")).status == 200


@way("playground: POST /admin/call")
async def _(lab: DenyLab, denied: bool) -> bool:
    body = {"server": "fs", "tool": lab.tool(denied), "arguments": {}}
    return await lab.executes(lab.tool(denied), lab.ask("POST", "/admin/call", body))


@way("replay: POST /admin/calls/{id}/replay")
async def _(lab: DenyLab, denied: bool) -> bool:
    made = await lab.ask("POST", "/admin/call", {"server": "fs", "tool": "counter", "arguments": {"call": "x"}})
    id_ = json.loads(made.body)["id"]
    await until(lambda: lab.gateway.activity.calls.find(id_) is not None)
    if denied:
        lab.hub.servers.set_denied_tools("fs", ["counter"])
    return await lab.executes("counter", lab.ask("POST", f"/admin/calls/{id_}/replay", {"confirm": True}))


# -- programs ---------------------------------------------------------------------------------------------------------


@way("toolway tools")
async def _(lab: DenyLab, denied: bool) -> bool:
    out = await lab.command("tools", "--no-gateway")
    assert "1 tool is denied" in out
    return lab.tool(denied) in out


@way("toolway tools --json, with a search word")
async def _(lab: DenyLab, denied: bool) -> bool:
    return lab.tool(denied) in await lab.command("tools", lab.tool(denied), "--json", "--no-gateway")


@way("toolway call server.tool")
async def _(lab: DenyLab, denied: bool) -> bool:
    tool = lab.tool(denied)
    return await lab.executes(tool, lab.command("call", f"fs.{tool}", "--no-gateway"))


@way("toolway call tool")
async def _(lab: DenyLab, denied: bool) -> bool:
    return await lab.executes(lab.tool(denied), lab.command("call", lab.tool(denied), "--no-gateway"))


@way("toolway call --gateway")
async def _(lab: DenyLab, denied: bool) -> bool:
    tool, gateway = lab.tool(denied), ("--gateway", f"http://127.0.0.1:{lab.port}", "--token", TOKEN)
    return await lab.executes(tool, run_program(lab.folder, "-m", "toolway.cli", "call", f"fs.{tool}", *gateway))


@way("toolway clients import codex")
async def _(lab: DenyLab, denied: bool) -> bool:
    tool, home = lab.tool(denied), lab.folder / "home"
    (home / ".codex").mkdir(parents=True, exist_ok=True)
    file = f'[mcp_servers.codexfs]\nurl = "{lab.fakes["fs"].url}"\ndisabled_tools = ["{DENIED}"]\n'
    (home / ".codex/config.toml").write_text(file)
    await run_program(home, "-m", "toolway.cli", "clients", "import", "codex", "--yes")
    entry = json.loads((home / ".config/toolway/mcp.json").read_text())["mcpServers"]["codexfs"]
    assert entry["tools"] == {"deny": [DENIED]}
    return await lab.executes(tool, run_program(home, "-m", "toolway.cli", "call", f"codexfs.{tool}"))


@way("toolway serve --stdio, modern")
async def _(lab: DenyLab, denied: bool) -> bool:
    return await through_stdio(lab, "modern", lab.tool(denied))


@way("toolway serve --stdio, legacy")
async def _(lab: DenyLab, denied: bool) -> bool:
    return await through_stdio(lab, "legacy", lab.tool(denied))


async def through_stdio(lab: DenyLab, era: str, tool: str) -> bool:
    file = lab.folder / "stdio.json"
    file.write_text(json.dumps({"mcpServers": {"fs": lab.entry()}}))
    env = {**os.environ, "TOOLWAY_STATE": str(lab.folder / "state")}
    args = ["-m", "toolway.cli", "serve", "--stdio", "--config", str(file)]
    server = StdioServerParameters(command=sys.executable, args=args, env=env)
    async with asyncio.timeout(60), Client(server, mode=MODES[era]) as client:
        return await through_client(lab, client, tool)


@pytest.mark.promise("E1", "E2", "E3")
@pytest.mark.parametrize("name", WAYS)
async def test_no_way_reaches_a_denied_tool(lab: DenyLab, name: str) -> None:
    assert await WAYS[name](lab, False), "control: the way reaches an allowed tool"
    assert not await WAYS[name](lab, True)
    assert lab.count(DENIED) == 0


# -- cluster ----------------------------------------------------------------------------------------------------------

CLUSTER_WAYS: Final = ("list", "call at the owner", "call at another node", "call at a node that calls over NATS")


@pytest.mark.promise("E1")
async def test_no_cluster_node_reaches_a_denied_tool(tmp_path: Path) -> None:
    async with FakeHttp(tools=3) as fake:
        server = {"fs": {"url": fake.url, **DENY}}
        async with cluster(tmp_path, server, names=("one", "two"), hidden=("two",)) as nodes:
            for name in CLUSTER_WAYS:
                assert await through_node(nodes, fake, name, ALLOWED), name
                assert not await through_node(nodes, fake, name, DENIED), name
        assert DENIED not in fake.stats.calls


async def through_node(nodes: Cluster, fake: FakeHttp, name: str, tool: str) -> bool:
    before = fake.stats.calls.get(tool, 0)
    if name == "list":
        answers: list[Answer] = []
        for node in nodes.nodes:
            async with node.raw("", CLUSTER_TOKEN) as raw:
                answers.append(await raw.ask("tools/list"))
        found = [f"fs__{tool}" in json.dumps(answer.result) for answer in answers]
        assert found[0] is found[1]
        return found[0]
    for node in [nodes.owner("fs")] if name == "call at the owner" else [nodes.other("fs")]:
        async with node.raw("", CLUSTER_TOKEN) as raw:
            await raw.call(f"fs__{tool}")
    return fake.stats.calls.get(tool, 0) > before


# -- changes at run time ----------------------------------------------------------------------------------------------


@pytest.mark.promise("E1")
async def test_clients_are_notified_when_a_tool_is_denied_or_allowed(lab: DenyLab) -> None:
    entry = {"url": f"http://127.0.0.1:{lab.port}/mcp", "headers": bearer()}
    async with Hub({"gate": entry}, catalog_storage=None) as hub, asyncio.timeout(60):
        assert "fs__tool_0003" in {tool.name for tool in await hub.list_tools(server="gate")}
        await hub.wait_ready("gate")

        def is_listed() -> bool:
            return "fs__tool_0003" in {tool.name for tool in hub.known_tools()}

        lab.library.set_denied_tools("fs", ["tool_0003"])
        await until(lambda: not is_listed())
        lab.library.set_denied_tools("fs", None)
        await until(is_listed)
        assert f"fs__{DENIED}" not in {tool.name for tool in hub.known_tools()}  # None: the list of the configuration


@pytest.mark.promise("E1")
async def test_denied_call_names_the_reason_to_gateway_clients(lab: DenyLab) -> None:
    for path, name in (("/mcp", f"fs__{DENIED}"), ("/mcp/server/fs", DENIED), ("/mcp/named", "denied")):
        body, fields = modern("tools/call", {"name": name, "arguments": {}})
        answer = await lab.ask("POST", path, body, fields)
        error = message_of(answer)["error"]
        assert (answer.status, error["code"], error["data"]["code"]) == (200, -31010, "E-TOOL-DENIED")
        assert error["data"]["executed"] == "no" and "tools.deny" in error["data"]["fix"]
    token = lab.key("server/old")  # a key without access to `fs` learns nothing of its tools
    assert "Unknown tool" in (await lab.call(f"fs__{DENIED}", token=token))["error"]["message"]


async def test_runtime_deny_list_survives_a_reload(lab: DenyLab) -> None:
    async with lab.alone() as hub:
        await hub.wait_ready(timeout=30)
        hub.set_denied_tools("fs", ["echo", "tool_*"])
        await hub.reload({"fs": lab.entry(timeout="20s")})
        await hub.wait_ready(timeout=30)
        names = {tool.name for tool in await hub.list_tools()}
        assert not names & {"echo", ALLOWED, DENIED} and hub.status()["fs"].denied_tools == 4
        await hub.remove_server("fs")
        await hub.add_server("fs", lab.entry())
        await hub.wait_ready("fs", timeout=30)
        assert {tool.name for tool in hub.known_tools()} >= {"echo", ALLOWED} and hub.status()["fs"].denied_tools == 1
        with pytest.raises(CallError):
            hub.set_denied_tools("nothing", [])
        with pytest.raises(ConfigError):
            hub.set_denied_tools("fs", "echo")


async def test_resumed_stream_of_a_denied_tool_makes_no_new_call() -> None:
    async with full("legacy", "http") as lab, lab.raw() as raw:
        await raw.initialize()
        last, _ = await break_off(raw, "progress", {"n": 3, "seconds": 0.1})
        lab.hub.servers.set_denied_tools("full", ["progress"])
        await over(lab)
        rest = await resume(raw, last)
        assert rest[-1][1]["result"]["content"][0]["text"] == "3 steps"
        again = await raw.request("tools/call", {"name": "progress", "arguments": {}})
        assert again.error["data"]["code"] == "E-TOOL-DENIED"
        assert lab.fakes["full"].stats.calls["progress"] == 1


def test_at_least_forty_ways_are_tried() -> None:
    assert len(WAYS) + len(CLUSTER_WAYS) >= 40
