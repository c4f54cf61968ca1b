"""`/admin`: for administrators alone, on every route, and what it changes takes effect at once."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gateway.edge_lab import ADMIN, ROUTES, TOKEN, edge, handshake, modern
from tests.http.raw_client import until
from toolway.gateway import router
from toolway.gateway.cluster_hooks import ClusterHooks
from toolway.gateway.tool_filter import ToolFilter
from toolway.testing import FakeHttp

pytestmark = pytest.mark.anyio


async def test_every_admin_route_needs_an_administrator(tmp_path: Path):
    async with edge(tmp_path) as found:
        plain, before = found.key(), found.contacts()
        servers = set(found.hub.servers.entries)
        for method, path in ADMIN:
            body = {"command": "touch", "args": [str(tmp_path / "started")]} if method == "PUT" else b""
            for token, status in ((None, 401), ("tw_wrong", 401), (plain, 403)):
                assert (await found.ask(method, path, body, token=token)).status == status, (method, path)
        assert set(found.hub.servers.entries) == servers and found.contacts() == before
        assert not (tmp_path / "started").exists()
        assert len(found.keyring.list_keys()) == 1


async def test_key_can_be_an_administrator_key(tmp_path: Path):
    async with edge(tmp_path) as found:
        admin = found.key(admin=True)
        assert (await found.ask("GET", "/admin/servers", token=admin)).status == 200


async def test_lists_show_servers_tools_and_facts(tmp_path: Path):
    async with edge(tmp_path) as found:
        facts = json.loads((await found.ask("GET", "/admin")).body)
        assert facts["pid"] == os.getpid() and facts["connections"] == 1 and "GET /admin/tools" in facts["paths"]
        servers = json.loads((await found.ask("GET", "/admin/servers")).body)["servers"]
        assert [server["server"] for server in servers] == ["a", "b"]
        assert json.loads((await found.ask("GET", "/admin/servers/a")).body)["server"] == "a"
        tools = json.loads((await found.ask("GET", "/admin/tools")).body)["tools"]
        assert {tool["server"] for tool in tools} == {"a", "b"}
        answer = await found.ask("GET", "/admin/tools")
        assert answer.headers["cache-control"] == "no-store"


OTHER_SPELLINGS = (
    *("/admin/", "/admin//servers", "//admin/servers", "/admin/servers/", "/Admin/servers", "/admin/../admin/servers"),
    *("/admin%2Fservers", "/admin/servers/a/restart/", "/admin;/servers", "/adminservers", "/admin/nothing"),
)


async def test_route_has_one_spelling(tmp_path: Path):
    async with edge(tmp_path) as found:
        for path in OTHER_SPELLINGS:
            assert (await found.ask("GET", path)).status == 404, path
            assert (await found.ask("GET", path, token=None)).status == 401, path


async def test_invalid_or_unknown_target_is_an_error(tmp_path: Path):
    async with edge(tmp_path) as found:
        for method, path, body, status in (
            ("GET", "/admin/servers/none", b"", 404),
            ("DELETE", "/admin/servers/none", b"", 404),
            ("POST", "/admin/servers/none/restart", b"", 404),
            ("DELETE", "/admin/keys/none", b"", 404),
            ("POST", "/admin/keys", b"{", 400),
            ("POST", "/admin/keys", b"[]", 400),
            ("POST", "/admin/keys", b'{"name": "a", "name": "b"}', 400),
            ("POST", "/admin/keys", b"{}", 400),
            ("POST", "/admin/keys", b'{"name": ""}', 400),
            ("POST", "/admin/keys", b'{"name": "a", "access": "both"}', 400),
            ("PUT", "/admin/servers/new", b"{}", 422),
            ("PUT", "/admin/servers/Bad_Name", b'{"url": "http://127.0.0.1:1/mcp"}', 422),
            ("PATCH", "/admin/servers/a", b"", 404),
        ):
            answer = await found.ask(method, path, body)
            assert answer.status == status and json.loads(answer.body)["error"]["message"], (method, path, body)


async def test_server_is_added_and_removed(tmp_path: Path):
    async with FakeHttp(name="c") as fake, edge(tmp_path) as found:
        scoped = found.key("server/c")
        assert await found.tools(token=scoped) == []
        assert (await found.ask("PUT", "/admin/servers/c", {"url": fake.url})).status == 200
        await found.hub.lists.waits.wait_known(["c"], "tools", 30)
        assert "c__echo" in await found.tools()
        assert all(name.startswith("c__") for name in await found.tools(token=scoped))
        assert len(await found.tools(token=scoped)) > 3
        assert (await found.ask("DELETE", "/admin/servers/c")).status == 200
        assert "c__echo" not in await found.tools()
        assert await found.tools(token=scoped) == []


async def test_added_server_gets_nothing_from_our_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET_OF_OURS", "canary")
    async with edge(tmp_path) as found:
        body = {"url": "http://127.0.0.1:1/mcp", "headers": {"X-Key": "${SECRET_OF_OURS}"}}
        await found.ask("PUT", "/admin/servers/c", body)
        assert "canary" not in repr(found.hub.servers.entries.get("c"))


async def test_added_server_cannot_reach_internal_addresses(tmp_path: Path):
    """`edge` allows 127.0.0.1 alone; what a name leads to is seen when it is connected to."""
    async with FakeHttp(name="inside") as fake, edge(tmp_path) as found:
        for host in ("127.0.0.2", "10.0.0.1", "[::1]", "169.254.169.254"):
            answer = await found.ask("PUT", "/admin/servers/c", {"url": f"http://{host}:{fake.port}/mcp"})
            assert answer.status == 422, host
            error = json.loads(answer.body)["error"]
            assert error["code"] == "E-ADMISSION" and "toolway.addresses" in error["hint"]
        assert not fake.stats.requests


async def test_key_is_shown_once_and_revoked_without_a_restart(tmp_path: Path):
    async with edge(tmp_path) as found:
        made = json.loads((await found.ask("POST", "/admin/keys", {"name": "ci", "access": ["server/a"]})).body)
        token = made["token"]
        assert await found.tools(token=token)
        listed = await found.ask("GET", "/admin/keys")
        assert token.encode() not in listed.body and b"hash" not in listed.body
        assert json.loads(listed.body)["keys"] == [{k: v for k, v in made.items() if k != "token"}]
        file = tmp_path / "keys.json"
        assert token not in file.read_text() and stat.S_IMODE(file.stat().st_mode) == 0o600
        assert (await found.ask("DELETE", f"/admin/keys/{made['id']}")).status == 200
        body, fields = modern("tools/list", {})
        assert (await found.ask("POST", "/mcp", body, fields, token=token)).status == 401


@pytest.mark.attack("held-23")
async def test_open_connections_of_a_revoked_key_end(tmp_path: Path):
    async with edge(tmp_path) as found:
        token = found.key()
        [key] = found.keyring.list_keys()
        session = await found.initialize(token=token)
        async with found.connected() as stream, found.connected() as calling, found.connected() as other:
            await stream.send(found.request("GET", "/mcp", fields={"Mcp-Session-Id": session}, token=token))
            assert (await stream.head()).status == 200
            body, fields = modern("tools/call", {"name": "a__sleep", "arguments": {"seconds": 60}})
            await calling.send(found.request("POST", "/mcp", body, fields, token=token))
            mine = await found.initialize()
            await other.send(found.request("GET", "/mcp", fields={"Mcp-Session-Id": mine}))
            assert (await other.head()).status == 200
            await until(lambda: found.calls("a") == 1)
            assert (await found.ask("DELETE", f"/admin/keys/{key.id}")).status == 200
            assert b"0\r\n\r\n" not in await stream.closed()
            assert await calling.closed() == b""
            await until(lambda: len(found.gateway.http_server) == 1)  # the other's


# -- scopes -----------------------------------------------------------------------------------------------------------


async def test_key_sees_and_calls_only_tools_of_its_toolsets(tmp_path: Path):
    toolsets = {
        "some": ToolFilter(("a.echo", "b.add"), {"a.echo": "say"}),
        "more": ToolFilter(("b.*", "!b.add")),
        "none": ToolFilter(()),
    }
    async with edge(tmp_path, toolsets=toolsets) as found:
        one, two, none = found.key("some"), found.key("some", "server/a"), found.key("none")
        assert sorted(await found.tools(token=one)) == ["a__echo", "b__add"]
        assert sorted(await found.tools(token=one, path="/mcp/some")) == ["b__add", "say"]
        assert set(await found.tools(token=two)) > {"a__echo", "a__add", "b__add"}
        assert "b__echo" not in await found.tools(token=two)
        assert await found.tools(token=none) == []
        assert "b__add" not in await found.tools(path="/mcp/more")
        assert (await found.call("say", {"text": "x"}, token=one, path="/mcp/some"))["result"]["isError"] is False
        before = found.contacts()
        for token, path, name in (
            (one, "/mcp", "a__add"),
            (one, "/mcp", "b__echo"),
            (one, "/mcp/some", "a__add"),
            (one, "/mcp", "a.add"),
            (two, "/mcp", "b__echo"),
            (none, "/mcp", "a__echo"),
        ):
            answer = await found.call(name, token=token, path=path)
            assert answer["error"]["message"].startswith("Unknown tool"), (path, name)
        assert found.contacts() == before


@pytest.mark.parametrize("path", ["/mcp/both", "/mcp/server/b", "/mcp/server/nothing", "/mcp/nothing", "/mcp/server/"])
async def test_endpoint_outside_a_keys_access_returns_404(tmp_path: Path, path: str):
    async with edge(tmp_path) as found:
        token = found.key("server/a")
        body, fields = modern("tools/list", {})
        assert (await found.ask("POST", path, body, fields, token=token)).status == 404
        assert (await found.ask("POST", path, handshake("initialize"), token=token)).status == 404
        assert await found.tools(token=token, path="/mcp/server/a")


async def test_key_sees_prompts_and_resources_of_its_own_servers_only(tmp_path: Path):
    async with edge(tmp_path) as found:
        token = found.key("server/a")
        for method, kind in (("prompts/list", "prompts"), ("resources/list", "resources")):
            shown = (await found.modern(method, token=token))["result"][kind]
            assert shown and len(shown) < len((await found.modern(method))["result"][kind])
        before = found.contacts()["b"]
        answer = await found.modern("prompts/get", {"name": "b__greet", "arguments": {"name": "x"}}, token=token)
        assert "error" in answer
        answer = await found.modern("resources/read", {"uri": "toolway:b/fake://text"}, token=token)
        assert "error" in answer
        said = (await found.modern("server/discover", token=token))["result"].get("instructions", "")
        assert "## b" not in said
        assert found.contacts()["b"] == before


# -- how many requests a caller may have running ----------------------------------------------------------------------


async def test_too_many_requests_of_one_caller_get_429(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(router, "MAX_REQUESTS_PER_PRINCIPAL", 2)
    async with edge(tmp_path) as found, found.connected() as one, found.connected() as two:
        busy, free = found.key(), found.key()
        body, fields = modern("tools/call", {"name": "a__sleep", "arguments": {"seconds": 60}})
        for client in (one, two):
            await client.send(found.request("POST", "/mcp", body, fields, token=busy))
        await until(lambda: found.calls("a") == 2)
        before = found.contacts()
        for method, path in ROUTES:
            answer = await found.ask(method, path, body, fields, token=busy)
            assert (answer.status, answer.headers["retry-after"]) == (429, "1"), (method, path)
            reply = json.loads(answer.body)
            if path.startswith("/api"):
                assert reply["executed"] == "no"
            else:
                assert (reply["error"]["code"], reply["error"]["data"]["executed"]) == (-31004, "no")
        assert found.contacts() == before
        assert (await found.call("a__echo", {"text": "x"}, token=free))["result"]["isError"] is False
        one.reset()
        async with asyncio.timeout(10):
            while "error" in await found.call("a__echo", {"text": "x"}, token=busy):
                await asyncio.sleep(0.02)


async def test_idle_caller_is_forgotten(tmp_path: Path):
    async with edge(tmp_path) as found:
        for _ in range(3):
            await found.tools(token=found.key())
        await until(lambda: not found.gateway.router._active_requests)
        assert await found.tools(token=TOKEN)


class TwoNodes(ClusterHooks):
    """Hooks of a gateway that is one of two nodes, and their admin operations."""

    @property
    def admin(self):
        return self

    async def drain_node(self, name):
        return {"draining": name}

    async def owners_by_server(self):
        return {"a": ("one-1", "two-1")}

    def restart(self, server):
        pass


async def test_cluster_servers_show_their_owners(tmp_path: Path):
    async with edge(tmp_path, cluster=TwoNodes()) as found:
        servers = json.loads((await found.ask("GET", "/admin/servers")).body)["servers"]
        assert {each["server"]: each["nodes"] for each in servers} == {"a": ["one-1", "two-1"], "b": []}
        assert json.loads((await found.ask("GET", "/admin/servers/a")).body)["nodes"] == ["one-1", "two-1"]
        assert json.loads((await found.ask("POST", "/admin/nodes/x%20y/drain")).body) == {"draining": "x y"}
        assert (await found.ask("GET", "/admin/nodes", token=found.key())).status == 403


async def test_lazy_server_of_another_node_explains_its_state(tmp_path: Path):
    async with edge(tmp_path, cluster=TwoNodes()) as found:
        await found.hub.servers.replace("a", replace(found.hub.servers.entries["a"], lazy=True))
        shown = json.loads((await found.ask("GET", "/admin/servers/a")).body)
        assert (shown["state"], "runs on its owner node" in shown["why"]) == ("idle", True)
