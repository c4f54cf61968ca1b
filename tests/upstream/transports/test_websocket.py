"""A server behind a WebSocket: what each answer means, and what a failure leaves known."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest

from tests.upstream.raw_http import loops
from tests.upstream.transports.test_streamable_http import RecordingSink
from toolway import AccessDenied, CallError, Hub, Server, ServerUnavailable, Timeout
from toolway.config.admission.entry import AdmissionPolicy, check_entry
from toolway.config.clients.entry_writer import denormalize_entry
from toolway.config.clients.registry import CLIENTS
from toolway.config.schema import Limits, Tls
from toolway.network import NetworkPolicy
from toolway.testing import FakeWebSocket
from toolway.types import Certainty, Json
from toolway.upstream.transport import JSONRPCError, Request, TransportError
from toolway.upstream.transports import websocket as module
from toolway.upstream.transports.stdio_pipes import MAX_QUEUED_BYTES
from toolway.upstream.transports.websocket import WebSocketTransport

pytestmark = pytest.mark.anyio

ERAS = pytest.mark.parametrize("era", ["modern", "legacy"])


@pytest.fixture(params=loops(), ids=lambda p: "uvloop" if p[1]["use_uvloop"] else "asyncio")
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


class Linked:
    """A fake server and an open link to it, both closed at the end."""

    def __init__(self, *modes: str, ears: RecordingSink | None = None, **settings: Any) -> None:
        self.ears = ears or RecordingSink()
        self.fake = FakeWebSocket(era="legacy", modes=modes)
        self._settings = settings

    async def __aenter__(self) -> Linked:
        await self.fake.start()
        self.link = WebSocketTransport(Server(url=self.fake.url, **self._settings))
        await self.link.open(self.ears)
        await self.link.request(Request("initialize", {"protocolVersion": "2025-06-18", "capabilities": {"roots": {}}}))
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.link.close()
        await self.fake.stop()

    async def call(self, tool: str, **arguments: Any) -> Json:
        async with asyncio.timeout(10):
            return await self.link.request(Request("tools/call", {"name": tool, "arguments": arguments}))

    async def fault(self, tool: str, **arguments: Any) -> TransportError:
        with pytest.raises(TransportError) as caught:
            await self.call(tool, **arguments)
        return caught.value


# -- a hub and a server ------------------------------------------------------------------------------------------------


@pytest.mark.promise("D4")
@pytest.mark.parametrize("era", ["modern", "legacy", "both"])
@pytest.mark.parametrize("typed", [False, True])
async def test_hub_calls_tools_of_websocket_server(era: str, typed: bool) -> None:
    async with FakeWebSocket(era=era) as fake:
        entry = {"url": fake.url, "type": "websocket"} if typed else fake.url
        async with Hub({"ws": entry}) as hub:
            found = await asyncio.gather(*(hub.call_tool("ws.echo", {"text": f"{n}"}) for n in range(50)))
            assert [result.text for result in found] == [f"{n}" for n in range(50)]
            status = hub.status()["ws"]
            assert (status.transport, status.state) == ("websocket", "ready")
            assert status.era == ("legacy" if era == "legacy" else "modern")
            assert fake.stats.connections == 1


async def test_handshake_sends_entry_headers_without_logging_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    headers = {"Authorization": "Bearer canary-token", "X-Team": "blue"}
    async with FakeWebSocket() as fake, Hub({"ws": {"url": fake.url, "headers": headers}}) as hub:
        await hub.call_tool("ws.echo", {"text": "x"})
        [request] = fake.requests
        assert {name: request.headers[name] for name in headers} == headers
        assert request.headers["Sec-WebSocket-Protocol"] == "mcp"
        assert "Sec-WebSocket-Extensions" not in request.headers
    ours = [record for record in caplog.records if not record.name.startswith("websockets.server")]
    assert not [record for record in ours if "canary" in record.getMessage()]


@pytest.mark.parametrize("name", ["Sec-WebSocket-Protocol", "Upgrade", "Bad Name"])
async def test_reserved_handshake_header_is_rejected(name: str) -> None:
    link = WebSocketTransport(Server(url="ws://127.0.0.1:9/mcp", headers={name: "x"}))
    with pytest.raises(TransportError) as caught:
        await link.open(RecordingSink())
    assert (caught.value.code, caught.value.certainty) == ("E-HTTP-CONFIG", Certainty.NOT_SENT)


async def test_address_policy_applies_to_websocket() -> None:
    def lookup(host: str) -> list[str]:
        return ["127.0.0.1"]

    policy = NetworkPolicy(lookup=lookup)
    async with FakeWebSocket() as fake:
        url = f"ws://rebound.example:{fake.port}/mcp"
        async with Hub({"ws": Server(url=url, network_policy=policy)}) as hub:
            with pytest.raises(ServerUnavailable) as caught:
                await hub.call_tool("ws.echo", {})
        assert caught.value.code == "E-HTTP-ADDRESS"
        assert fake.requests == []


async def test_proxy_from_environment_opens_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", fake.port)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(_copy(reader, up_writer), _copy(up_reader, writer))

    async with FakeWebSocket() as fake:
        proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        async with Hub({"ws": "ws://server.example/mcp"}) as hub:
            assert (await hub.call_tool("ws.echo", {"text": "through"})).text == "through"
        proxy.close()
        assert seen[0].startswith(b"CONNECT server.example:80 HTTP/1.1\r\n")


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


# -- handshakes that fail ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "code", "error"),
    [
        ("status=401", "E-AUTH-TOKEN", AccessDenied),
        ("status=403", "E-AUTH-TOKEN", AccessDenied),
        ("status=429;retry_after=7", "E-HTTP-STATUS", CallError),
        ("status=503;retry_after=7", "E-HTTP-STATUS", CallError),
        ("status=302;to=http://elsewhere.example/", "E-HTTP-REDIRECT", CallError),
        ("status=200", "E-WS-HANDSHAKE", CallError),
    ],
)
async def test_rejected_handshake_is_reported_and_call_did_not_run(mode: str, code: str, error: Any) -> None:
    async with FakeWebSocket(modes=[mode]) as fake:
        headers = {"Authorization": "Bearer static"}
        async with Hub({"ws": {"url": fake.url, "headers": headers}}) as hub:
            with pytest.raises(CallError) as caught:
                await hub.call_tool("ws.echo", {})
        assert (caught.value.code, caught.value.executed) == (code, "no")
        assert fake.stats.requests == {}


async def test_redirect_is_never_followed() -> None:
    async with FakeWebSocket() as fake:
        fake.set_mode("status=307;to=/mcp;times=1;on=connect")
        link = WebSocketTransport(Server(url=fake.url))
        with pytest.raises(TransportError, match="not followed") as caught:
            await link.open(RecordingSink())
        await link.close()
        assert (caught.value.status, len(fake.requests)) == (307, 1)


async def test_non_websocket_server_fails_handshake() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    link = WebSocketTransport(Server(url=f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"))
    with pytest.raises(TransportError) as caught:
        await link.open(RecordingSink())
    await link.close()
    listener.close()
    assert caught.value.code == "E-WS-HANDSHAKE"
    assert caught.value.certainty is Certainty.NOT_SENT


async def test_unanswered_handshake_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_TIMEOUT_S", 0.2)
    async with FakeWebSocket(modes=["silent_handshake"]) as fake:
        link = WebSocketTransport(Server(url=fake.url))
        with pytest.raises(TransportError, match="no response to the WebSocket handshake") as caught:
            await link.open(RecordingSink())
        await link.close()
        assert caught.value.code == "E-HTTP-TIMEOUT"


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fragments=5", "garbage", "twice", "message_mb=3", "ping_flood=2000"])
async def test_response_in_any_framing_reaches_its_call(mode: str) -> None:
    async with Linked() as linked:
        result = await linked.call("bad", mode=mode, nonce="n1")
        assert result["structuredContent"]["nonce"] == "n1"
        assert (await linked.call("echo", text="after"))["content"][0]["text"] == "after"


async def test_invalid_messages_are_counted_and_last_is_kept() -> None:
    async with Linked() as linked:
        await linked.call("bad", mode="garbage")
        info = linked.link.info()
        assert info.invalid_lines == 4  # text, a list, bytes that are not text, binary message; a blank one is nothing
        assert info.stderr == "a binary message of 3 bytes, which begins with 0001ff"


@pytest.mark.parametrize(
    ("mode", "code"),
    [
        ("close=1000", "E-WS-CLOSED"),
        ("close=1001", "E-WS-CLOSED"),
        ("close=1009", "E-WS-CLOSED"),
        ("close=1011", "E-WS-CLOSED"),
        ("lose", "E-WS-CLOSED"),
        ("reset", "E-WS-CLOSED"),
        ("invalid_frame", "E-FRAME-BAD"),
        ("binary_flood", "E-FRAME-BAD"),
        ("message_mb=1.2", "E-FRAME-LIMIT"),
        ("truncated", "E-ANSWER"),
    ],
)
async def test_failure_after_sending_is_unknown(mode: str, code: str) -> None:
    async with Linked(limits=Limits(max_message_bytes=1_000_000)) as linked:
        error = await linked.fault("bad", mode=mode)
        assert (error.code, error.certainty) == (code, Certainty.UNKNOWN)
        if code == "E-ANSWER":
            return
        ended = await linked.link.wait_closed()
        assert (ended.code, ended.expected) == (code, mode in ("close=1000", "close=1001"))
        again = await linked.fault("echo")
        assert (again.code, again.certainty) == ("E-WS-CLOSED", Certainty.NOT_SENT)


@pytest.mark.parametrize("megabytes", [0, 4])
async def test_response_before_close_frame_is_delivered(megabytes: float) -> None:
    async with Linked() as linked:
        result = await linked.call("bad", mode="respond_and_close", mb=megabytes, nonce="n")
        assert result["structuredContent"]["nonce"] == "n"
        assert (await linked.link.wait_closed()).expected


async def test_json_rpc_error_is_raised() -> None:
    async with Linked() as linked:
        with pytest.raises(JSONRPCError):
            await linked.call("no_such_tool")


async def test_cancelled_call_is_cancelled_at_server() -> None:
    async with Linked() as linked:
        call = asyncio.ensure_future(linked.call("sleep", seconds=30))
        async with asyncio.timeout(30):
            while not linked.fake.stats.calls.get("sleep"):
                await asyncio.sleep(0.005)
            call.cancel()
            while not linked.fake.stats.cancelled:
                await asyncio.sleep(0.005)
        assert (await linked.call("echo", text="x"))["content"][0]["text"] == "x"


async def test_server_requests_are_answered_during_call() -> None:
    ears = RecordingSink(lambda method, params: {"roots": [{"uri": "file:///here"}]})
    async with Linked(ears=ears) as linked:
        assert "file:///here" in str(await linked.call("roots"))


async def test_server_notifications_are_received() -> None:
    async with Linked() as linked:
        linked.fake.server.broadcast("notifications/tools/list_changed", "toolsListChanged")
        async with asyncio.timeout(30):
            await linked.ears.news.wait()
        assert linked.ears.heard == [("notifications/tools/list_changed", {})]


# -- writing -----------------------------------------------------------------------------------------------------------


async def test_stuck_server_leaves_queued_calls_unsent_and_ends_link() -> None:
    async with Linked(timeout=Timeout(30, write=0.5)) as linked:
        await linked.call("bad", mode="stops_reading")
        big = "x" * 1_000_000
        calls = [asyncio.ensure_future(linked.fault("echo", text=big)) for _ in range(30)]
        errors = await asyncio.gather(*calls)
        assert {error.code for error in errors} == {"E-WS-STUCK"}
        certainties = [error.certainty for error in errors]
        assert certainties[0] is Certainty.UNKNOWN
        assert certainties[-1] is Certainty.NOT_SENT
        assert certainties == sorted(certainties, key=lambda each: each is Certainty.NOT_SENT)


async def test_queued_call_can_be_cancelled_unsent() -> None:
    async with Linked(timeout=Timeout(30, write=30)) as linked:
        await linked.call("bad", mode="stops_reading")
        big = "x" * 4_000_000
        calls = [asyncio.ensure_future(linked.fault("echo", text=big)) for _ in range(4)]
        request = Request("tools/call", {"name": "echo", "arguments": {}})
        waiting = asyncio.ensure_future(linked.link.request(request))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert request.call_state.certainty is Certainty.NOT_SENT
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_write_queue_is_bounded() -> None:
    async with Linked(timeout=Timeout(30, write=30)) as linked:
        await linked.call("bad", mode="stops_reading")
        piece = "x" * (MAX_QUEUED_BYTES // 4)
        calls = [asyncio.ensure_future(linked.fault("echo", text=piece)) for _ in range(8)]
        done, waiting = await asyncio.wait(calls, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert {(call.result().code, call.result().certainty) for call in done} == {("E-WS-FULL", Certainty.NOT_SENT)}
        for call in waiting:
            call.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_pings_keep_connection_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PING_INTERVAL_S", 0.02)
    async with Linked() as linked:
        await asyncio.sleep(0.2)
        assert (await linked.call("echo", text="x"))["content"][0]["text"] == "x"


async def test_closed_link_leaves_no_connection() -> None:
    linked = Linked()
    async with linked:
        [peer] = linked.fake.peers
        sock = peer._connection.transport.get_extra_info("socket")
        assert isinstance(sock.family, socket.AddressFamily)
        await linked.link.close()
        async with asyncio.timeout(30):
            while linked.fake.peers:
                await asyncio.sleep(0.005)


# -- clients and admission ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [{"url": "wss://x/mcp"}, {"url": "wss://x/mcp", "type": "websocket"}])
def test_export_writes_websocket_entry_or_reports_error(entry: dict[str, str]) -> None:
    claude, cursor = CLIENTS["claude-code"], CLIENTS["cursor"]
    written, issues = denormalize_entry(claude.name, claude.title, claude.dialect, "ws", entry)
    assert (written, issues) == ({"type": "ws", "url": "wss://x/mcp"}, [])
    written, issues = denormalize_entry(cursor.name, cursor.title, cursor.dialect, "ws", entry)
    assert written is None
    assert [issue.severity for issue in issues] == ["error"]


def test_export_reports_dropped_tls_settings() -> None:
    claude = CLIENTS["claude-code"]
    entry = {"url": "https://x/mcp", "tls": {"caFile": "ca.pem"}}
    written, [issue] = denormalize_entry(claude.name, claude.title, claude.dialect, "own", entry)
    assert written == {"type": "http", "url": "https://x/mcp"}
    assert "toolway connect" in issue.hint


def test_server_added_through_gateway_cannot_name_files() -> None:
    server = Server(url="https://server.example/mcp", tls=Tls("/etc/ca.pem"))
    assert "files on this machine" in str(check_entry(server, AdmissionPolicy()))
