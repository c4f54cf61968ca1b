"""Advisories of other gateways and kits, each as the test that would have caught it here.

The mark is the row in tests/advisories.toml. Other files cover some rows at length, such as
`tests/faults/matrix/gateway/test_edge.py` and `test_admin.py`; these tests are the core.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path

import pytest

from tests.gateway.edge_lab import ADMIN, ROUTES, TOKEN, edge, handshake, message_of, modern
from tests.gateway.program import kill as kill_program
from tests.gateway.program import start
from tests.http.raw_client import Raw, get, until
from toolway.gateway.mcp.legacy_sessions import LegacySessions
from toolway.gateway.tool_filter import ToolFilter

pytestmark = pytest.mark.anyio

ROWS = (2, 4, 11, 14, 18, 20, 21, 24, 31, 32, 36, 37, 45, 46, 47, 53)
CALL = {"name": "a__echo", "arguments": {"text": "x"}}


def test_every_edge_advisory_row_has_its_test():
    marks = [mark for each in globals().values() for mark in getattr(each, "pytestmark", ())]
    assert {int(mark.args[0]) for mark in marks if mark.name == "advisory"} == set(ROWS)


@pytest.mark.advisory("2")
async def test_starting_a_process_needs_token_and_own_origin(tmp_path: Path):
    """CVE-2025-49596."""
    mark = tmp_path / "started"
    entry = {"command": "/usr/bin/touch", "args": [str(mark)]}
    async with edge(tmp_path) as found:
        for method, path in (*ADMIN, ("POST", "/admin/servers"), ("POST", "/mcp/server/stdio?command=touch")):
            assert (await found.ask(method, path, entry, token=None)).status == 401
            assert (await found.ask(method, path, entry, {"Origin": "https://evil.example"})).status == 403
            assert (await found.ask(method, path, entry, {"Host": "evil.example"})).status == 421
        assert set(found.hub.servers.entries) == {"a", "b"}
    assert not mark.exists()


@pytest.mark.advisory("4")
async def test_default_is_loopback_and_needs_a_token(tmp_path: Path):
    """CVE-2026-23744."""
    run = await start(tmp_path / "gateway", {}, "--port", "0")
    try:
        await run.announced()
        assert _listening(run.pid) == {("127.0.0.1", run.port)}
        run.token = "tw_guess"
        status, _ = await run.request("PUT", "/admin/servers/evil", {"command": "/bin/true"})
        assert status == 401
    finally:
        await kill_program(run)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "gateway.example"])
@pytest.mark.advisory("4")
async def test_no_auth_works_on_loopback_only(tmp_path: Path, host: str):
    """A door that is open on purpose is not open to the neighbours."""
    run = await start(tmp_path / "gateway", {}, "--port", "0", "--no-auth", "--host", host)
    try:
        assert run.process.stdout is not None
        said = json.loads(await run.process.stdout.read())["error"]
        assert said["code"] == "E-ADDRESS" and "--no-auth" in said["hint"]
        assert await run.ended() != 0
    finally:
        await kill_program(run)


def _listening(pid: int) -> set[tuple[str, int]]:
    """The addresses on which a process listens, as the system says."""
    if not os.access(f"/proc/{pid}/fd", os.R_OK):
        pytest.skip("a gateway forbids its inspection: only root sees on which addresses it listens")
    inodes = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(handle.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A" and parts[9] in inodes:
                address, port = parts[1].split(":")
                words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
                found.add((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return found


@pytest.mark.advisory("11")
async def test_invalid_token_gets_401_and_reaches_no_server(tmp_path: Path):
    """CVE-2026-59822."""
    async with edge(tmp_path) as found:
        before = found.contacts()
        body, fields = modern("tools/call", CALL)
        for method, path in ROUTES:
            for more in (
                {},
                {"Authorization": "Bearer forged"},
                {"Authorization": "Bearer "},
                {"Authorization": f"Basic {TOKEN}"},
                {"X-Api-Key": TOKEN, "Cookie": f"token={TOKEN}"},
                {"X-Forwarded-User": "local", "X-Remote-User": "admin", "X-Forwarded-For": "127.0.0.1"},
            ):
                answer = await found.ask(method, path, body, fields | more, token=None)
                assert answer.status == 401, (method, path, more)
        assert found.contacts() == before


@pytest.mark.attack("held-20")
@pytest.mark.advisory("14")
async def test_server_key_does_not_open_its_toolset(tmp_path: Path):
    """CVE-2026-79746: at the list and at the call."""
    async with edge(tmp_path, toolsets={"ab": ToolFilter(("a.*", "b.*"))}) as found:
        token = found.key("server/a")
        shown = await found.tools(token=token)
        assert shown and all(name.startswith("a__") for name in shown)
        before = found.contacts()["b"]
        refused = await found.call("b__echo", {"text": "x"}, token=token)
        assert refused["error"]["message"].startswith("Unknown tool")
        body, fields = modern("tools/call", {"name": "b__echo", "arguments": {}})
        assert (await found.ask("POST", "/mcp/ab", body, fields, token=token)).status == 404
        session = await found.initialize(token=token)
        called = handshake("tools/call", {"name": "b__echo", "arguments": {}})
        answer = await found.ask("POST", "/mcp", called, {"Mcp-Session-Id": session}, token=token)
        assert "error" in message_of(answer)
        assert found.contacts()["b"] == before
        assert "result" in await found.call("a__echo", {"text": "x"}, token=token)


@pytest.mark.advisory("18")
async def test_caller_is_identified_by_the_token_only(tmp_path: Path):
    """GHSA-wf8q-wvv8-p8jf."""
    async with edge(tmp_path) as found:
        token = found.key("server/a")
        [key] = found.keyring.list_keys()
        for path in (f"/mcp?token={TOKEN}", f"/mcp?user={key.id}", f"/sse?access_token={TOKEN}", f"/{key.id}/mcp"):
            method = "GET" if "/sse" in path else "POST"
            assert (await found.ask(method, path, token=None)).status == 401
        body, fields = modern("tools/list", {})
        for more in ({"X-User": "local"}, {"X-Principal": "local"}, {"Cookie": f"token={TOKEN}"}):
            answer = await found.ask("POST", f"/mcp?token={TOKEN}", body, fields | more, token=token)
            assert all(tool["name"].startswith("a__") for tool in message_of(answer)["result"]["tools"])


@pytest.mark.attack("held-24")
@pytest.mark.advisory("20")
async def test_session_ids_cannot_be_chosen_or_read(tmp_path: Path):
    """CVE-2026-79537."""
    async with edge(tmp_path) as found:
        session = await found.initialize()
        for id_ in ("", "1", "chosen-by-me", "0" * 36, session.swapcase()):
            answer = await found.ask("POST", "/mcp", handshake("ping"), {"Mcp-Session-Id": id_})
            assert answer.status in (400, 404)
        for path, token in (("/healthz", None), ("/readyz", None), ("/admin", TOKEN), ("/admin/servers", TOKEN)):
            answer = await found.ask("GET", path, token=token)
            assert answer.status == 200
            assert session[:16].encode() not in answer.body and session[-16:].encode() not in answer.body
        assert (await found.ask("GET", "/healthz", token=None)).body == b'{"ok":true}'


@pytest.mark.advisory("21")
async def test_key_with_empty_scopes_sees_nothing(tmp_path: Path):
    """CVE-2026-90898, and every allow-list that lets all in when it is empty."""
    async with edge(tmp_path) as found:
        before = found.contacts()
        token, _ = found.keyring.create_key_sync("for nothing", (), False, 0.0)
        for method, kind in (("tools/list", "tools"), ("prompts/list", "prompts"), ("resources/list", "resources")):
            assert (await found.modern(method, token=token))["result"][kind] == []
        assert "error" in await found.call("a__echo", {"text": "x"}, token=token)
        assert "error" in await found.modern("resources/read", {"uri": "toolway:a/fake://text"}, token=token)
        body, fields = modern("tools/list", {})
        for path in ("/mcp/both", "/mcp/server/a"):
            assert (await found.ask("POST", path, body, fields, token=token)).status == 404, path
        assert (await found.ask("GET", "/admin/servers", token=token)).status == 403
        assert found.contacts() == before


@pytest.mark.advisory("24")
async def test_template_syntax_is_returned_unchanged(tmp_path: Path):
    """GHSA-vwf3-4xxj-qg6h: no argument and no name is a template."""
    texts = ("{{7*7}}", "${7*7}", "${HOME}", "${command:id}", "{0.__class__}", "%(x)s", "<%= 7*7 %>", "#{7*7}", "`id`")
    async with edge(tmp_path) as found:
        for text in texts:
            answer = await found.call("a__echo", {"text": text})
            assert answer["result"]["content"][0]["text"] == text
            unknown = await found.call(text)
            assert "error" in unknown and "49" not in json.dumps(unknown)


@pytest.mark.advisory("31")
async def test_session_works_on_its_own_route_only(tmp_path: Path):
    """GHSA-mvgg-jvj2-4frq."""
    async with edge(tmp_path) as found:
        routes = ("/mcp", "/mcp/both", "/mcp/server/a", "/mcp/server/b")
        sessions = {route: await found.initialize(route) for route in routes}
        before = found.contacts()
        for route in routes:
            for other in routes:
                answer = await found.ask("POST", other, handshake("ping"), {"Mcp-Session-Id": sessions[route]})
                assert answer.status == (200 if route == other else 404)
        assert found.contacts() == before


@pytest.mark.advisory("31")
async def test_revoked_key_ends_its_session(tmp_path: Path):
    """A policy that changed applies to sessions that began before."""
    toolsets = {"some": ToolFilter(("a.echo",))}
    async with edge(tmp_path, toolsets=toolsets) as found:
        token = found.key("some")
        [key] = found.keyring.list_keys()
        session = {"Mcp-Session-Id": await found.initialize(token=token)}
        body = handshake("tools/call", CALL)
        assert "result" in message_of(await found.ask("POST", "/mcp", body, session, token=token))
        found.keyring.revoke_key_sync(key.id)
        before = found.contacts()
        assert (await found.ask("POST", "/mcp", body, session, token=token)).status == 401
        assert found.contacts() == before


@pytest.mark.parametrize("route", [("GET", "/sse"), ("POST", "/messages"), ("POST", "/mcp"), ("GET", "/mcp")])
@pytest.mark.advisory("32")
async def test_rebound_host_name_gets_421(tmp_path: Path, route: tuple[str, str]):
    """CVE-2025-64443: the page is of the same origin as its requests, so only the name gives it away."""
    async with edge(tmp_path) as found:
        name = f"rebound.evil.example:{found.port}"
        for fields in ({"Host": name}, {"Host": name, "Origin": f"http://{name}"}):
            assert (await found.ask(*route, fields=fields)).status == 421


@pytest.mark.attack("held-11")
@pytest.mark.advisory("36")
async def test_no_route_spelling_bypasses_the_token(tmp_path: Path):
    """GHSA-h4mf-84xq-q2fc."""
    async with edge(tmp_path) as found:
        before = found.contacts()
        body, fields = modern("tools/call", CALL)
        for path in (
            *(
                "/mcp/",
                "/mcp/sse",
                "/mcp//",
                "//mcp",
                "/MCP",
                "/Mcp",
                "/mcp%2F",
                "/%6dcp",
                "/mcp;x",
                "/mcp/.",
                "/./mcp",
            ),
            *("/mcp/../mcp", "/healthz/../mcp", "/healthz/mcp", "/healthz/", "/healthz%00/mcp", "/healthz;/mcp"),
            *("/mcp/server", "/mcp/server/", "/mcp/server/a/", "/mcp/server/a/sse", "/mcp/server//a", "/mcp/SERVER/a"),
            *("/sse/", "/messages/", "/mcp/both/", "/mcp/both/mcp", "/admin/../mcp", "/readyz/../admin/servers"),
            *(f"http://127.0.0.1:{found.port}/mcp", "http://evil.example/mcp", "*"),
        ):
            assert (await found.ask("POST", path, body, fields, token=None)).status == 401, path
            assert (await found.ask("POST", path, body, fields)).status == 404, path
        assert (await found.ask("POST", "/mcp?/healthz", body, fields, token=None)).status == 401
        assert (await found.ask("POST", "/healthz?/mcp", body, fields, token=None)).status == 413
        assert (await found.ask("GET", "/healthz?/mcp", token=None)).body == b'{"ok":true}'
        assert found.contacts() == before


@pytest.mark.attack("held-59")
@pytest.mark.advisory("37")
async def test_ambiguous_request_is_rejected(tmp_path: Path):
    """GHSA-9v4w-3mqh-6vmm: a toolset that forbids a tool must not be fooled about its name."""
    async with edge(tmp_path, toolsets={"safe": ToolFilter(("*", "!a.echo"))}) as found:
        before = found.contacts()
        body, fields = modern("tools/call", {"name": "b__echo", "arguments": {}})
        text = json.dumps(body).encode()
        for data in (
            b"\xef\xbb\xbf" + text,
            text.replace(b'"name"', b'"name": "a__echo", "name"', 1),
            text.replace(b'"name": "b__echo"', b'"name": "b__echo", "name": "a__echo"', 1),
            text.replace(b'"params"', b'"params": {"name": "a__echo"}, "params"', 1),
            text.replace(b'"method"', b'"METHOD"', 1),
            text.replace(b'"jsonrpc"', b'"method": "tools/list", "jsonrpc"', 1),
        ):
            assert data != text
            assert (await found.ask("POST", "/mcp/safe", data, fields)).status == 400
        for name in ("A__echo", "a__Echo", "a.echo", "a__echo ", "a__echo\u200b", "а__echo", "a__echo"):
            answer = await found.modern("tools/call", {"name": name.encode().decode("latin-1")}, path="/mcp/safe")
            assert "error" in answer, name
        odd = text.replace(b'"name"', b'"Name": "a__echo", "name"', 1)  # another key, that means nothing
        assert (await found.ask("POST", "/mcp/safe", odd, fields)).status == 200
        assert found.contacts()["a"] == before["a"]


@pytest.mark.attack("held-14", "held-15")
@pytest.mark.advisory("45")
async def test_host_and_origin_are_checked_on_every_route(tmp_path: Path):
    """CVE-2025-66414 and its like, and CVE-2026-59950 for what looks like a websocket."""
    socket_like = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "eA==",
        "Sec-WebSocket-Version": "13",
    }
    async with edge(tmp_path) as found:
        for method, path in (*ROUTES, ("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/"), ("OPTIONS", "/mcp")):
            for more in ({}, socket_like):
                assert (await found.ask(method, path, fields={"Host": "evil.example"} | more)).status == 421
                assert (await found.ask(method, path, fields={"Origin": "http://evil.example"} | more)).status == 403
        for method, path in ROUTES:
            assert (await found.ask(method, path, fields=socket_like, token=None)).status == 401


@pytest.mark.advisory("46")
async def test_every_client_gets_its_own_answers(tmp_path: Path):
    """CVE-2026-25536: all of them use the same ids, over the same links to the same servers, at once."""
    async with edge(tmp_path) as found:

        async def client(number: int) -> None:
            token = found.key()
            session = {"Mcp-Session-Id": await found.initialize(token=token)} if number % 2 else {}
            async with found.connected() as connection:
                for call in range(15):
                    nonce = f"{number}-{call}"
                    params = {"name": f"{'ab'[call % 2]}__echo", "arguments": {"text": nonce}}
                    body, fields = (handshake("tools/call", params, id=call), session)
                    if not number % 2:
                        body, fields = modern("tools/call", params, id=call)
                    answer = await connection.ask(found.request("POST", "/mcp", body, fields, token=token))
                    message = message_of(answer)
                    assert message["id"] == call
                    assert message["result"]["structuredContent"]["text"] == nonce

        async with asyncio.timeout(60):
            await asyncio.gather(*(client(number) for number in range(30)))


@pytest.mark.attack("held-25")
@pytest.mark.attack("held-28")
@pytest.mark.advisory("47")
async def test_session_of_another_caller_returns_404(tmp_path: Path):
    """CVE-2026-52869: with the id in hand, and with a token that is good for something else."""
    async with edge(tmp_path) as found, found.connected() as stream:
        mine, other = found.key(), found.key()
        session = {"Mcp-Session-Id": await found.initialize(token=mine)}
        await stream.send(found.request("GET", "/mcp", fields=session, token=mine))
        assert (await stream.head()).status == 200
        for method in ("GET", "POST", "DELETE"):
            assert (await found.ask(method, "/mcp", handshake("ping"), session, token=other)).status == 404
        assert (await found.ask("POST", "/mcp", handshake("ping"), session, token=mine)).status == 200
        assert not stream.reader.at_eof()  # and the stream was not taken over or ended


@pytest.mark.advisory("53")
async def test_sessions_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """CVE-2026-53937 and its like: what a client can make without end is bounded."""
    monkeypatch.setattr("toolway.gateway.mcp.legacy_sessions.MAX_SESSIONS", 20)
    async with edge(tmp_path) as found:
        first = await found.initialize()
        sessions: LegacySessions = found.gateway.legacy_sessions
        for _ in range(60):
            session = await found.initialize()
            await found.ask("POST", "/mcp", handshake("ping"), {"Mcp-Session-Id": session})
            await found.ask("DELETE", "/mcp", fields={"Mcp-Session-Id": await found.initialize()})
        assert len(sessions._sessions) <= 20 and len(sessions._ended) <= 20
        assert (await found.ask("POST", "/mcp", handshake("ping"), {"Mcp-Session-Id": first})).status == 200


@pytest.mark.advisory("53")
async def test_malformed_or_endless_input_does_not_stop_others(tmp_path: Path):
    """CVE-2025-53365, CVE-2026-67432 and their like: and it answers others all the while."""
    async with edge(tmp_path) as found, found.connected() as well:
        body, fields = modern("tools/call", CALL)
        for case in range(8):
            async with found.connected() as bad:
                await _misbehave(bad, found.request("POST", "/mcp", body, fields), case)
                answer = await well.ask(found.request("POST", "/mcp", body, fields))
                assert "result" in message_of(answer)
        await until(lambda: len(found.gateway.http_server) == 1)


async def _misbehave(bad: Raw, request: bytes, case: int) -> None:
    head = get("/mcp", f"Authorization: Bearer {TOKEN}", "Content-Type: application/json", method="POST")[:-2]
    match case:
        case 0:
            await bad.send(request[:-5])  # and leaves
        case 1:
            await bad.send(head + b"Content-Length: 999999999999\r\n\r\n")
            assert (await bad.answer()).status == 413
        case 2:
            await bad.send(head + b"Content-Length: 4\r\n\r\nnull")
            assert (await bad.answer()).status == 400
        case 3:
            await bad.send(b"\0" * 100_000)
            assert (await bad.answer()).status == 400
        case 4:
            await bad.send(request)
            bad.reset()
        case 5:
            for key in (b'"ID"', b'"Id"'):  # which are not `id`: so it is a notification, and gets no answer
                await bad.send(request.replace(b'"id"', key))
                assert (await bad.answer()).status == 202
        case 6:
            await bad.send(head + b"Content-Length: 2000002\r\n\r\n" + b"[" * 1_000_001 + b"]" * 1_000_001)
            assert (await bad.answer()).status == 400
        case _:
            await bad.send(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 2000)
            await bad.closed()
