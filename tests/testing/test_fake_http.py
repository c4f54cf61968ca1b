"""The fake HTTP server when it behaves well, in both eras."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.testing.web import ACCEPT, ERAS, META, PREFIX, Client, Json, fake, story, text
from toolway.testing import FakeHttp


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("answer", ["json", "sse"])
@story
async def test_tools_respond_and_echo_their_nonce(era: str, answer: str) -> None:
    async with fake(era=era, answer=answer) as client:
        response = await client.send_call("echo", text="hé", nonce="n")
        assert response.headers["content-type"] == {"json": "application/json", "sse": "text/event-stream"}[answer]
        assert (await response.message())["result"]["structuredContent"] == {"text": "hé", "nonce": "n"}
        assert text(await client.call("add", a=1, b=2)) == "3"
        assert (await client.call("fail"))["isError"] is True
        assert (await client.ask("prompts/list"))["result"]["prompts"][0]["name"] == "greet"
        assert (await client.ask("resources/read", {"uri": "fake://text"}))["result"]["contents"]
        assert (await client.ask("tools/call", {"name": "nothing"}))["error"]["code"] == -32602


@pytest.mark.parametrize("era", ERAS)
@story
async def test_progress_events_come_before_the_result(era: str) -> None:
    async with fake(era=era) as client:
        response = await client.send_call("progress", {"progressToken": "p"}, n=2)
        events = [event async for event in response.events()]
        assert [event.get("method") for event in events] == ["notifications/progress"] * 2 + [None]
        assert events[0]["params"]["progressToken"] == "p"


@pytest.mark.parametrize("era", ERAS)
@story
async def test_calls_run_concurrently_and_connections_are_reused(era: str) -> None:
    async with fake(era=era) as client:
        before = client.server.stats.connections
        slow = [client.call("sleep", seconds=0.2, nonce=str(number)) for number in range(20)]
        nonces = [result["structuredContent"]["nonce"] for result in await asyncio.gather(*slow)]
        assert nonces == [str(number) for number in range(20)]
        assert client.server.stats.connections == before + 20
        line = await client.connect()
        for _ in range(3):
            assert (await (await client.send("tools/list", on=line)).message())["result"]
        assert client.server.stats.connections == before + 21


@story
async def test_counts_and_effects_are_recorded() -> None:
    async with fake(era="both") as client:
        await client.ask("server/discover")
        await client.call("counter", call="c", nonce="n")
        seen = client.server.stats
        assert (seen.discover, seen.initialize, seen.requests["tools/call"]) == (1, 0, 1)
        assert seen.effects == [("c", "n")]
        assert (await client.call("stats"))["structuredContent"]["calls"] == {"counter": 1, "stats": 1}


@story
async def test_crash_stops_server_and_resets_sessions() -> None:
    async with fake(era="legacy") as client:
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client.send_call("crash")
        with pytest.raises(ConnectionError):
            await client.connect()
        await client.server.start()
        assert (await client.send("tools/list")).status == 404


# The modern era


@story
async def test_modern_headers_must_match_the_body() -> None:
    async with fake() as client:
        params: Json = {"name": "echo", "arguments": {"tag": "a b"}, "_meta": META}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        assert (await client.post(message, Mcp_Param_Tag="=?base64?YSBi?=")).status == 200
        for wrong in ({"Mcp_Name": "add"}, {"Mcp_Method": "tools/list"}, {"Mcp_Protocol_Version": "2025-11-25"}, {}):
            response = await client.post(message, None, **wrong)
            assert (response.status, (await response.message())["error"]["code"]) == (400, -32020)


@pytest.mark.parametrize(
    ("method", "meta", "status", "code"),
    [
        ("no/such", META, 404, -32601),
        ("tools/list", {}, 400, -32602),
        ("tools/list", {**META, PREFIX + "protocolVersion": "2030-01-01"}, 400, -32022),
        ("initialize", {}, 400, -32022),
    ],
)
@story
async def test_modern_errors_have_their_status(method: str, meta: Json, status: int, code: int) -> None:
    async with fake() as client:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": meta}}
        version = meta.get(PREFIX + "protocolVersion", "2026-07-28")
        response = await client.post(message, Mcp_Protocol_Version=version)
        assert (response.status, (await response.message())["error"]["code"]) == (status, code)


@story
async def test_modern_server_rejects_get_and_invalid_posts() -> None:
    async with fake() as client:
        assert (await client.request("GET", ACCEPT)).status == 405
        assert (await client.request("POST", ACCEPT, b"{")).status == 400
        assert (await client.request("POST", {"Accept": "*/*", "Content-Type": "text/plain"}, b"{}")).status == 415
        assert (await client.request("POST", {**ACCEPT, "Accept": "application/json"}, b"{}")).status == 406


@story
async def test_listen_stream_delivers_changes() -> None:
    async with fake() as client:
        stream = await client.send("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        events = stream.events()
        assert (await anext(events))["method"] == "notifications/subscriptions/acknowledged"
        await client.call("change_tools")
        changed = await anext(events)
        assert changed["params"]["_meta"] == {PREFIX + "subscriptionId": 1}
        stream.close()
        await _until(lambda: client.server.stats.cancelled == [1])
        assert not client.server.server.subscriptions


@story
async def test_closed_connection_cancels_a_modern_call() -> None:
    async with fake() as client:
        call = asyncio.ensure_future(client.send_call("sleep", seconds=30))
        await _until(lambda: client.server.stats.calls.get("sleep") == 1)
        client.close()
        await _until(lambda: client.server.stats.cancelled == [1])
        call.cancel()
        await asyncio.wait({call})


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


# The handshake era


@story
async def test_sessions_are_required_and_lost_on_restart() -> None:
    async with fake(era="legacy") as client:
        assert (await client.call("echo"))["isError"] is False
        session, client.session = client.session, ""
        assert (await client.send("tools/list")).status == 400
        assert (await client.send("server/discover")).status == 400
        client.session = session
        await client.server.restart()
        assert (await client.send("tools/list")).status == 404
        client.session = ""
        await client.shake_hands()
        assert client.server.stats.initialize == 2
        assert len(client.server.sessions) == 1
        assert (await client.request("DELETE", {"Mcp-Session-Id": client.session})).status == 200
        assert (await client.send("tools/list")).status == 404


@story
async def test_notifications_come_on_the_get_stream() -> None:
    async with fake(era="legacy") as client:
        stream = await client.request("GET", {**ACCEPT, "Mcp-Session-Id": client.session})
        await client.call("change_tools")
        assert (await anext(stream.events()))["method"] == "notifications/tools/list_changed"
        assert client.server.stats.requests["GET"] == 1


@pytest.mark.parametrize("answer", ["json", "sse"])
@story
async def test_legacy_tools_ask_on_the_stream_of_their_call(answer: str) -> None:
    async with fake(era="legacy", answer=answer) as client:
        events = (await client.send_call("elicit")).events()
        question = await anext(events)
        assert question["method"] == "elicitation/create"
        reply = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}}
        assert (await client.post(reply)).status == 202
        assert json.loads(text((await anext(events))["result"])) == {"action": "decline"}


@story
async def test_legacy_calls_are_cancelled_only_by_notification() -> None:
    async with fake(era="legacy") as client:
        stream = await client.send_call("progress", {"progressToken": 1}, n=100, seconds=0.05)
        params = {"requestId": 2}
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        assert (await client.post(note)).status == 202
        assert all("result" not in event for event in [event async for event in stream.events()])
        assert client.server.stats.cancelled == [2]
        asking = await client.send_call("elicit")
        await anext(asking.events())
        assert (await client.post({**note, "params": {"requestId": 3}})).status == 202
        await _until(lambda: client.server.stats.cancelled == [2, 3])
        left = asyncio.ensure_future(client.send_call("sleep", seconds=0.1))
        await _until(lambda: client.server.stats.calls.get("sleep") == 1)
        client.close()
        await asyncio.wait({left})
        assert client.server.stats.cancelled == [2, 3]


@story
async def test_one_server_speaks_both_eras() -> None:
    async with FakeHttp() as server:
        modern, handshake = Client(server, modern=True), Client(server, modern=False)
        assert (await modern.ask("server/discover"))["result"]["supportedVersions"] == ["2026-07-28"]
        await handshake.shake_hands()
        assert "resultType" not in await handshake.call("echo")
        assert (await modern.call("echo"))["resultType"] == "complete"
        modern.close()
        handshake.close()


def test_server_runs_as_a_process(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    command = [sys.executable, "-m", "toolway.testing.http_server", "--effects", str(effects), "--mode", "html;on=add"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            word, port = process.stdout.readline().split()
            assert word == "listening"
            params = {"name": "counter", "arguments": {"call": "c", "nonce": "n"}, "_meta": META}
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
            mirrored = {"Mcp-Method": "tools/call", "Mcp-Name": "counter", "Mcp-Protocol-Version": "2026-07-28"}
            request = urllib.request.Request(f"http://127.0.0.1:{port}/mcp", body, {**ACCEPT, **mirrored})
            with urllib.request.urlopen(request, timeout=10) as response:
                assert json.load(response)["result"]["structuredContent"]["count"] == 1
            assert effects.read_text() == "c\tn\n"
        finally:
            process.kill()
