"""Requests that servers send to the client: how many, in whose name, and where they lead. Answers by other ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from tests.gateway.bridge_lab import ALL_WAYS, OLD_WORDS, full, text
from tests.gateway.edge_lab import edge, handshake, message_of
from tests.gateway.full_server import FullHttp
from toolway import Hub, ProtocolError
from toolway.errors import CallError
from toolway.gateway.mcp.context import name_input_requests
from toolway.testing import FakeHttp, FakeWebSocket, fake_server
from toolway.upstream.server_requests import RejectedServerRequest, check_server_request

pytestmark = [pytest.mark.anyio, OLD_WORDS]

Json = dict[str, Any]
MOST: Final = 64  # requests of a server during one call
EVIL_URLS: Final = (
    "javascript:alert(1)",
    "https://good.example@evil.example/",
    "https://evil.example/\u202e",
    "JavaScript://good.example/%0aalert(1)",
    "data:text/html,<script>alert(1)</script>",
    "file:///etc/passwd",
    "vscode://evil.example/install",
    "//evil.example/",
    "https://",
    " https://evil.example/",
    "",
    None,
    ["https://evil.example/"],
)


class FakeUser:
    """Accepts whatever is asked, and remembers it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []

    def answer(self, server: str, params: Json) -> Json:
        """The callback of a program."""
        self.asked.append((server, params))
        return {"action": "accept", "content": {"name": "x"}}

    async def elicit(self, context: Any, params: Any) -> types.ElicitResult:
        """The callback of a client of a gateway."""
        self.asked.append((params.message, params))
        return types.ElicitResult(action="accept", content={"name": "x"})


# -- how many ----------------------------------------------------------------------------------------------------------


@pytest.mark.attack("W3")
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_elicitations_per_call_are_limited(transport: str, caplog: pytest.LogCaptureFixture) -> None:
    user = FakeUser()
    async with (
        FullHttp("legacy", transport) as server,
        Hub({"s": server.url}, elicitation_callback=user.answer) as hub,
    ):
        answers = json.loads((await hub.call_tool("s.ask", {"n": 200})).text)
        assert len(user.asked) == MOST
        assert answers[MOST - 1]["action"] == "accept"
        assert [each["data"]["code"] for each in answers[MOST:]] == ["E-SERVER-REQUESTS"] * (200 - MOST)
        assert json.loads((await hub.call_tool("s.ask", {"n": 1})).text)[0]["action"] == "accept"  # the next call may
    warnings = [each.getMessage() for each in caplog.records if "too many server requests" in each.getMessage()]
    assert len(warnings) == 1 and "s sends" in warnings[0] and "ask" in warnings[0]


@pytest.mark.attack("W3")
async def test_elicitations_per_call_over_stdio_are_limited() -> None:
    user = FakeUser()
    entry = {**fake_server(era="legacy"), "limits": {"maxServerRequests": 3}}
    async with Hub({"s": entry}, elicitation_callback=user.answer) as hub:
        answers = json.loads((await hub.call_tool("s.elicit", {"rounds": 10})).text)
    assert len(user.asked) == 3 and "at most 3" in answers[3]["error"]["message"]


@pytest.mark.attack("W3")
async def test_parallel_elicitations_per_call_are_limited() -> None:
    user = FakeUser()
    async with FullHttp("modern") as server, Hub({"s": server.url}, elicitation_callback=user.answer) as hub:
        with pytest.raises(ProtocolError, match="at most 64") as caught:
            await hub.call_tool("s.ask", {"n": MOST + 1})
        assert (caught.value.code, caught.value.executed, user.asked) == ("E-SERVER-REQUESTS", "unknown", [])
        assert "maxServerRequests" in caught.value.hint
        await hub.call_tool("s.ask", {"n": MOST})
        assert len(user.asked) == MOST


@pytest.mark.attack("W3")
@pytest.mark.parametrize(
    ("client_era", "server_era"),
    [("legacy", "legacy"), ("legacy", "modern"), ("modern", "modern"), ("modern", "legacy")],
)
async def test_elicitations_through_the_gateway_are_limited(client_era: str, server_era: str) -> None:
    user = FakeUser()
    async with (
        full(server_era, "http") as lab,
        lab.client(client_era, elicitation_callback=user.elicit, input_required_max_rounds=100) as client,
    ):
        if server_era == "modern":
            with pytest.raises(MCPError, match="too many server requests"):
                await client.call_tool("ask", {"n": 100})
            assert user.asked == []
        else:
            answers = json.loads(text(await client.call_tool("ask", {"n": 100})))
            assert len(user.asked) == MOST and "too many server requests" in answers[-1]["message"]


# -- in whose name, and where to ---------------------------------------------------------------------------------------


@ALL_WAYS
@pytest.mark.attack("W4")
async def test_elicitation_shows_its_server_and_rejects_bad_urls(
    client_era: str, server_era: str, transport: str
) -> None:
    user = FakeUser()
    async with (
        full(server_era, transport) as lab,
        lab.client(client_era, elicitation_callback=user.elicit) as client,
    ):
        await client.call_tool("ask", {"message": "\u202e\x1b[2K[bank] Your PIN?"})
        [(message, params)] = user.asked
        assert message == "[full] [2K[bank] Your PIN?"
        assert params.meta["toolway/server"] == "full"
        user.asked.clear()
        for url in EVIL_URLS[:3]:
            assert "the URL of the elicitation" in await _outcome(client, url), url
        assert user.asked == []
        await client.call_tool("ask", {"url": "https://pay.example/order"})
        [(message, params)] = user.asked
        assert (message, params.url) == ("[full] Your name?", "https://pay.example/order")


async def _outcome(client: Any, url: str, tool: str = "ask") -> str:
    """What came of a call that leads to this URL: an error, or the server's own words about ours."""
    try:
        result = await client.call_tool(tool, {"url": url})
        return result.text if isinstance(client, Hub) else text(result)
    except (MCPError, CallError) as refused:
        return str(refused)


@pytest.mark.attack("W4")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_library_elicitation_names_its_server_and_checks_urls(era: str) -> None:
    user = FakeUser()
    async with FullHttp(era) as server, Hub({"s": server.url}, elicitation_callback=user.answer) as hub:
        await hub.call_tool("s.ask", {"message": "[bank] Your PIN?"})
        assert [server for server, _ in user.asked] == ["s"]
        for url in EVIL_URLS[:3]:
            assert "the URL of the elicitation" in await _outcome(hub, url, "s.ask"), url
        assert len(user.asked) == 1


@pytest.mark.attack("W4")
@pytest.mark.parametrize("url", EVIL_URLS)
async def test_elicitation_with_a_bad_url_is_rejected(url: Any) -> None:
    with pytest.raises(RejectedServerRequest, match="the URL of the elicitation"):
        check_server_request("elicitation/create", {"mode": "url", "url": url})


@pytest.mark.attack("W4")
async def test_task_input_request_with_a_bad_url_is_dropped() -> None:
    def request(**params: Any) -> Json:
        return {"method": "elicitation/create", "params": {"message": "Pay", **params}}

    task = {"status": "input_required", "inputRequests": {"a": request(mode="url", url="javascript:1"), "b": request()}}
    requests = name_input_requests("s", task)["inputRequests"]
    assert requests == {"b": request(message="[s] Pay", _meta={"toolway/server": "s"})}
    assert name_input_requests("s", name_input_requests("s", task))["inputRequests"] == requests  # on two nodes


# -- answers by other ids ----------------------------------------------------------------------------------------------


@pytest.mark.attack("W15")
@pytest.mark.parametrize("transport", ["stdio", "http", "sse", "websocket"])
async def test_answer_with_an_id_of_another_type_is_rejected(transport: str) -> None:
    if transport == "stdio":
        async with Hub({"s": fake_server("foreign_id_type")}) as hub:
            await _is_refused(hub)
    elif transport == "websocket":
        async with FakeWebSocket(modes=["foreign_id_type"]) as socket, Hub({"s": socket.url}) as hub:
            await _is_refused(hub)
    else:
        async with FakeHttp(modes=["foreign_id_type"], transport=transport) as fake, Hub({"s": fake.url}) as hub:
            await _is_refused(hub)


async def _is_refused(hub: Hub) -> None:
    with pytest.raises(ProtocolError) as caught:
        await hub.call_tool("s.bad", {}, timeout=10)
    assert (caught.value.code in ("E-ANSWER", "E-HTTP-ID"), caught.value.executed) == (True, "unknown")
    assert (await hub.call_tool("s.echo", {"text": "hi"})).text == "hi"


# -- calls of other clients --------------------------------------------------------------------------------------------


@pytest.mark.attack("held-32", "held-33")
async def test_other_clients_cannot_cancel_or_observe_a_call(tmp_path: Path) -> None:
    async with edge(tmp_path) as found, found.connected() as stream:
        victim, attacker = found.key(), found.key()
        session = {"Mcp-Session-Id": await found.initialize(token=victim)}
        own = {"Mcp-Session-Id": await found.initialize(token=attacker)}
        working = {"name": "a__progress", "arguments": {"n": 3, "seconds": 0.3}, "_meta": {"progressToken": 7}}
        await stream.send(found.request("POST", "/mcp", handshake("tools/call", working, id=7), session, token=victim))
        assert (await stream.head()).headers["content-type"] == "text/event-stream"  # it has begun
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        for fields, status in ((own, 202), (session, 404), ({}, 400)):
            assert (await found.ask("POST", "/mcp", cancel, fields, token=attacker)).status == status, fields
        assert (await found.ask("DELETE", "/mcp", fields=session, token=attacker)).status == 404
        mine = {"name": "a__echo", "arguments": {"text": "mine"}, "_meta": {"progressToken": 7}}
        answer = await found.ask("POST", "/mcp", handshake("tools/call", mine, id=7), own, token=attacker)
        assert b"notifications/progress" not in answer.body and message_of(answer)["id"] == 7
        events = b"".join([part async for part in stream.chunks()])
        assert events.count(b"notifications/progress") >= 2 and b'"id":7,"result"' in events
