"""A server behind a URL: what each answer means, what a failure leaves known, and what the link does on its own."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.timing import within
from tests.upstream.raw_http import (
    END,
    EVENTS,
    Conn,
    Peer,
    Received,
    Script,
    always,
    chunk,
    event,
    json_response,
    loops,
    peer,
    reacting,
    response,
)
from toolway.config.schema import Limits, Server
from toolway.http.client import ClientLimits
from toolway.types import CallState, Certainty, Json
from toolway.upstream.transport import JSONRPCError, Request, TransportError, TransportInfo
from toolway.upstream.transports import http_streams as http_listen
from toolway.upstream.transports import streamable_http as http_module
from toolway.upstream.transports.streamable_http import StreamableHttpTransport

pytestmark = pytest.mark.anyio

MODERN = "2026-07-28"
LEGACY = "2025-06-18"
PATIENT = ClientLimits(connect_timeout=30, write_timeout=30, head_timeout=30, min_rate_window=30)


@pytest.fixture(params=loops(), ids=lambda p: "uvloop" if p[1]["use_uvloop"] else "asyncio")
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


class RecordingSink:
    """An inbound handler that records what it receives."""

    def __init__(self, answer: Callable[[str, Json], Any] | None = None) -> None:
        self.heard: list[tuple[str, Json]] = []
        self.news = asyncio.Event()
        self._answer = answer

    def on_notification(self, method: str, params: Json, call_state: CallState | None = None) -> None:
        self.heard.append((method, params))
        self.news.set()

    async def on_request(self, method: str, params: Json, call_state: CallState | None = None) -> Json | None:
        assert self._answer is not None
        answer: Any = self._answer(method, params)
        result: Json | None = await answer if asyncio.iscoroutine(answer) else answer
        return result


class Linked:
    """A link to a peer, both closed at the end."""

    def __init__(self, script: Script, ears: RecordingSink | None = None, **settings: Any) -> None:
        self.ears = ears or RecordingSink()
        self._script = script
        self._settings = settings

    async def __aenter__(self) -> Linked:
        self._peer = peer(self._script)
        self.server: Peer = await self._peer.__aenter__()
        self.link = StreamableHttpTransport(Server(url=self.server.url, **self._settings), PATIENT)
        await self.link.open(self.ears)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.link.close()
        await self._peer.__aexit__(*exc)

    async def call(self, name: str = "t", **how: Any) -> Json:
        async with asyncio.timeout(60):
            return await self.link.request(modern(name, **how))

    async def fault(self, name: str = "t", **how: Any) -> TransportError:
        with pytest.raises(TransportError) as caught:
            await self.call(name, **how)
        return caught.value

    async def shake_hands(self) -> None:
        await self.link.request(Request("initialize", {}, silent_cancel=True))
        self.link.set_protocol("legacy", LEGACY)


def modern(name: str = "t", **how: Any) -> Request:
    return Request("tools/call", {"name": name, "arguments": {}}, version=MODERN, **how)


def result(request: Received, body: Json | None = None) -> Json:
    return {"jsonrpc": "2.0", "id": request.json["id"], "result": {} if body is None else body}


def error(request: Received, code: int, message: str = "no") -> Json:
    return {"jsonrpc": "2.0", "id": request.json["id"], "error": {"code": code, "message": message}}


def saying(make: Callable[[Received], bytes]) -> Script:
    """Answer each request with what `make` makes of it."""

    async def react(conn: Conn, request: Received) -> None:
        await conn.send(make(request))

    return reacting(react)


def echo(request: Received) -> bytes:
    return json_response(result(request, {"echo": request.json["params"]["name"]}))


def is_call(request: Received) -> bool:
    return bool(request.body) and {"id", "method"} <= request.json.keys() and request.json["method"] != "initialize"


def session_answer(request: Received, id_: str = "s-1") -> bytes:
    """What a server of the handshake era answers to anything but a call."""
    if request.body and request.json.get("method") == "initialize":
        return json_response(result(request, {"protocolVersion": LEGACY}), Mcp_Session_Id=id_)
    return response(405 if request.method == "GET" else 202)


def session(
    make: Callable[[Received], bytes],
    seen: list[Received] | None = None,
    id_: str = "s-1",
    got: asyncio.Event | None = None,
) -> Script:
    """A server of the handshake era without a GET stream; `got` is set when it was asked for one."""

    def react(request: Received) -> bytes:
        if seen is not None:
            seen.append(request)
        if request.method == "GET" and got is not None:
            got.set()
        if is_call(request):
            return make(request)
        return session_answer(request, id_)

    return saying(react)


# -- requests and their answers


@pytest.mark.parametrize("make", [json_response, lambda message: EVENTS + event(message) + END], ids=["body", "event"])
async def test_response_with_too_many_values_is_rejected(make: Callable[[Any], bytes]) -> None:
    async with Linked(saying(lambda request: make(result(request, {"a": [[1] * 90_000] * 4})))) as at:
        fault = await at.fault()
    assert (fault.code, fault.certainty) == ("E-ANSWER-LIMIT", Certainty.UNKNOWN)
    assert "250000 values" in fault.reason
    assert "pages" in fault.hint


@pytest.mark.parametrize("make", [json_response, lambda message: EVENTS + event(message) + END], ids=["body", "event"])
async def test_list_item_with_too_many_values_is_trimmed(make: Callable[[Any], bytes]) -> None:
    tools = [{"name": "good"}, {"name": "bad", "inputSchema": {"a": [[1] * 90_000] * 4}}]
    async with Linked(saying(lambda request: make(result(request, {"tools": tools})))) as at:
        page = await at.link.request(Request("tools/list", {}, version=MODERN))
    assert [tool["name"] for tool in page["tools"]] == ["good", "bad"]
    assert "inputSchema" not in page["tools"][1]


async def test_request_carries_headers_and_returns_result() -> None:
    seen: list[Received] = []

    def make(request: Received) -> bytes:
        seen.append(request)
        return echo(request)

    headers = {"Authorization": "Bearer x", "accept": "nothing", "mcp-session-id": "mine"}
    async with Linked(saying(make), headers=headers) as at:
        attempt = CallState()
        assert await at.call("add", call_state=attempt) == {"echo": "add"}
        assert (attempt.certainty, attempt.phase) == (Certainty.UNKNOWN, "server")
    sent = seen[0]
    assert sent.target == "/mcp"
    assert sent.json == {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {}}}
    assert {name: sent.headers[name] for name in sorted(sent.headers) if name not in ("host", "content-length")} == {
        "accept": "application/json, text/event-stream",
        "accept-encoding": "identity",
        "authorization": "Bearer x",
        "content-type": "application/json",
        "mcp-method": "tools/call",
        "mcp-name": "add",
        "mcp-protocol-version": MODERN,
        "user-agent": sent.headers["user-agent"],
    }
    assert sent.headers["user-agent"].startswith("toolway/")


async def test_sequential_calls_share_a_connection() -> None:
    async with Linked(saying(echo)) as at:
        for n in range(10):
            assert await at.call(str(n)) == {"echo": str(n)}
        assert at.server.connections == 1


@pytest.mark.attack("W15")
async def test_response_with_id_as_string_fails_call() -> None:
    def make(request: Received) -> bytes:
        return json_response({"jsonrpc": "2.0", "id": str(request.json["id"]), "result": {"ok": 1}})

    async with Linked(saying(make)) as at:
        with pytest.raises(TransportError) as caught:
            await at.call()
        assert caught.value.code == "E-HTTP-ID"


async def test_response_to_another_call_is_not_delivered() -> None:
    both = asyncio.Event()
    ids: list[int] = []

    async def react(conn: Conn, request: Received) -> None:
        ids.append(request.json["id"])
        if len(ids) == 2:
            both.set()
        await both.wait()
        wrong = sum(ids) - request.json["id"]
        await conn.send(json_response({"jsonrpc": "2.0", "id": wrong, "result": {"secret": 1}}))

    async with Linked(reacting(react)) as at:
        for fault in await asyncio.gather(at.fault("a"), at.fault("b")):
            assert (fault.code, fault.certainty) == ("E-HTTP-ID", Certainty.UNKNOWN)


@pytest.mark.parametrize("id_", ["own", None])
async def test_server_error_is_unchanged(id_: str | None) -> None:
    def make(request: Received) -> bytes:
        message = error(request, -32050, "why") | ({} if id_ else {"id": None})
        message["error"]["data"] = {"x": 1}
        return json_response(message)

    async with Linked(saying(make)) as at:
        with pytest.raises(JSONRPCError) as caught:
            await at.call()
    assert (caught.value.code, caught.value.message, caught.value.data) == (-32050, "why", {"x": 1})
    assert caught.value.status == 200


@pytest.mark.parametrize("status", [400, 404, 409, 422])
async def test_server_error_keeps_http_status(status: int) -> None:
    async with Linked(saying(lambda request: json_response(error(request, -32601), status))) as at:
        with pytest.raises(JSONRPCError) as caught:
            await at.call()
    assert (caught.value.code, caught.value.status) == (-32601, status)


@pytest.mark.parametrize(
    ("status", "headers", "certainty"),
    [
        (400, {}, Certainty.REJECTED),
        (401, {}, Certainty.REJECTED),
        (403, {}, Certainty.REJECTED),
        (404, {}, Certainty.REJECTED),
        (405, {}, Certainty.REJECTED),
        (406, {}, Certainty.REJECTED),
        (408, {}, Certainty.UNKNOWN),
        (409, {}, Certainty.REJECTED),
        (410, {}, Certainty.REJECTED),
        (413, {}, Certainty.REJECTED),
        (415, {}, Certainty.REJECTED),
        (421, {}, Certainty.REJECTED),
        (422, {}, Certainty.REJECTED),
        (429, {}, Certainty.REJECTED),
        (500, {}, Certainty.UNKNOWN),
        (500, {"Retry_After": "3"}, Certainty.UNKNOWN),
        (502, {}, Certainty.UNKNOWN),
        (503, {}, Certainty.UNKNOWN),
        (503, {"Retry_After": "3"}, Certainty.REJECTED),
        (503, {"Retry_After": "soon"}, Certainty.UNKNOWN),
        (504, {}, Certainty.UNKNOWN),
    ],
)
async def test_http_status_sets_certainty(status: int, headers: dict[str, str], certainty: Certainty) -> None:
    async with Linked(always(response(status, b"<h1>sorry</h1>", **headers))) as at:
        fault = await at.fault()
    assert (fault.certainty, fault.status, fault.code) == (certainty, status, "E-HTTP-STATUS")
    assert str(status) in fault.reason
    assert "sorry" in fault.reason


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"not json", b'{"jsonrpc":"2.0","id":99,"error":{"code":-32601,"message":"not yours"}}'],
)
async def test_status_without_matching_error_sets_certainty(body: bytes) -> None:
    async with Linked(always(response(400, body, Content_Type="application/json"))) as at:
        fault = await at.fault()
    assert (fault.status, fault.certainty) == (400, Certainty.REJECTED)


async def test_error_status_reported_with_undecodable_body() -> None:
    async with Linked(always(response(401, b"\x1f\x8b", Content_Encoding="gzip"))) as at:
        fault = await at.fault()
    assert (fault.status, fault.certainty) == (401, Certainty.REJECTED)


async def test_endless_error_page_is_read_only_in_part() -> None:
    page = b"HTTP/1.1 502 Bad\r\nContent-Length: 900000000\r\n\r\n" + b"sorry " * 50_000
    async with Linked(always(page)) as at:
        fault = await at.fault()
    assert (fault.status, fault.certainty) == (502, Certainty.UNKNOWN)
    assert len(fault.reason) < 400


async def test_rejection_status_wins_over_error_in_body() -> None:
    async with Linked(saying(lambda request: json_response(error(request, -32600, "not you"), 403))) as at:
        fault = await at.fault()
    assert (fault.certainty, fault.status) == (Certainty.REJECTED, 403)
    assert "not you" in fault.reason


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("Sun, 15 Nov 2026 12:00:30 GMT", 30.0),
        ("garbage", None),
        ("-3", None),
        ("1000000000", 1e9),
    ],
)
async def test_retry_after_is_passed_on(value: str, seconds: float | None) -> None:
    data = response(429, Retry_After=value, Date="Sun, 15 Nov 2026 12:00:00 GMT")
    async with Linked(always(data)) as at:
        fault = await at.fault()
    assert (fault.status, fault.certainty, fault.retry_after) == (429, Certainty.REJECTED, seconds)


async def test_auth_challenge_is_passed_on() -> None:
    async with Linked(always(response(401, WWW_Authenticate='Bearer resource_metadata="x"'))) as at:
        fault = await at.fault()
    assert (fault.status, fault.www_authenticate) == (401, 'Bearer resource_metadata="x"')
    assert fault.hint


async def test_error_status_reported_without_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "ERROR_BODY_TIMEOUT_S", 0.1)
    async with Linked(always(b"HTTP/1.1 401 No\r\nContent-Length: 10\r\n\r\nhalf")) as at:
        fault = await at.fault()
    assert (fault.status, fault.certainty) == (401, Certainty.REJECTED)


@pytest.mark.parametrize(
    "data",
    [
        response(200, b"<html>hello</html>", Content_Type="text/html"),
        response(200, b"{}"),
        response(200, b"{}", Content_Type="text/plain"),
        response(202),
        response(202, b'{"jsonrpc":"2.0","id":1,"result":{}}', Content_Type="application/json"),
        response(204),
    ],
    ids=["html", "no type", "text", "202", "202 with a body", "204"],
)
async def test_success_without_valid_response_names_content(data: bytes) -> None:
    async with Linked(always(data)) as at:
        fault = await at.fault()
    assert (fault.code, fault.certainty) == ("E-HTTP-CONTENT", Certainty.UNKNOWN)
    assert "MCP endpoint" in fault.hint


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","id":1,"method":"x"}',
        b'{"jsonrpc":"2.0","id":1,"result":{"a":1,"a":2}}',
        b'{"jsonrpc":"2.0","id":1,"result":' + b'{"a":' * 100 + b"1" + b"}" * 101,
        b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"result":{}}',
    ],
)
async def test_invalid_response_body_fails_call(body: bytes) -> None:
    async with Linked(always(response(200, body, Content_Type="application/json; charset=utf-8"))) as at:
        fault = await at.fault()
    assert (fault.code, fault.certainty) == ("E-HTTP-CONTENT", Certainty.UNKNOWN)


async def test_oversized_response_fails_only_its_call() -> None:
    def make(request: Received) -> bytes:
        size = 200_000 if request.json["params"]["name"] == "big" else 10
        return json_response(result(request, {"text": "x" * size}))

    async with Linked(saying(make), limits=Limits(max_message_bytes=100_000)) as at:
        fault = await at.fault("big")
        assert (fault.code, fault.certainty) == ("E-HTTP-LIMIT", Certainty.UNKNOWN)
        assert await at.call("small") == {"text": "x" * 10}


async def test_one_reset_of_fifty_calls_fails_only_that_call() -> None:
    everyone = asyncio.Event()
    waiting = 0

    async def react(conn: Conn, request: Received) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 50:
            everyone.set()
        await everyone.wait()
        if request.json["params"]["name"] == "17":
            conn.reset()
        else:
            await conn.send(echo(request))

    async with Linked(reacting(react)) as at:
        answers = await asyncio.gather(*(at.call(str(n)) for n in range(50)), return_exceptions=True)
    failed = answers.pop(17)
    assert isinstance(failed, TransportError)
    assert (failed.code, failed.certainty) == ("E-HTTP-RESET", Certainty.UNKNOWN)
    assert answers == [{"echo": str(n)} for n in range(50) if n != 17]


async def test_unreachable_server_means_not_sent() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        link = StreamableHttpTransport(Server(url=f"http://127.0.0.1:{unused.getsockname()[1]}/mcp"), PATIENT)
        await link.open(RecordingSink())
        attempt = CallState()
        with pytest.raises(TransportError) as caught:
            await link.request(modern(call_state=attempt))
    assert (caught.value.code, caught.value.certainty) == ("E-HTTP-CONNECT", Certainty.NOT_SENT)
    assert (attempt.certainty, attempt.phase) == (Certainty.NOT_SENT, "connect")
    await link.close()


async def test_unambiguous_call_gets_a_fresh_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "NEW_CONNECTION_MAX_IDLE_S", 0.05)

    async def script(conn: Conn) -> None:
        first = await conn.request()
        assert first is not None
        await conn.send(echo(first))
        await conn.request()  # a second request on this connection would be lost

    async with Linked(script) as at:
        assert await at.call("one", new_connection=True) == {"echo": "one"}
        await asyncio.sleep(0.1)
        assert await at.call("two", new_connection=True) == {"echo": "two"}
        assert at.server.connections == 2


@pytest.mark.parametrize("params", [{"x": object()}, {"x": "\ud800"}], ids=["object", "surrogate"])
async def test_unserializable_params_are_not_sent(params: Json) -> None:
    async with Linked(saying(echo)) as at:
        with pytest.raises(TransportError) as caught:
            await at.link.request(Request("tools/call", params, version=MODERN))
        assert caught.value.certainty is Certainty.NOT_SENT
        assert at.server.connections == 0


async def test_method_invalid_as_header_is_not_sent() -> None:
    async with Linked(saying(echo)) as at:
        with pytest.raises(TransportError) as caught:
            await at.link.request(Request("a\r\nEvil: 1", {}, version=MODERN))
        assert caught.value.certainty is Certainty.NOT_SENT
        assert at.server.connections == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "http://host/a b"},
        {"url": "http://me:secret@host/"},
        {"url": "http://host/", "headers": {"X": "a\r\nEvil: 1"}},
        {"url": "http://host/", "headers": {"Transfer-Encoding": "chunked"}},
    ],
)
async def test_invalid_entry_is_rejected_before_sending(settings: Any) -> None:
    link = StreamableHttpTransport(Server(**settings))
    with pytest.raises(TransportError) as caught:
        await link.open(RecordingSink())
    assert (caught.value.code, caught.value.certainty) == ("E-HTTP-CONFIG", Certainty.NOT_SENT)
    assert "secret" not in str(caught.value)
    await link.close()


# -- redirects


async def test_redirect_within_origin_is_followed() -> None:
    seen: list[Received] = []

    def make(request: Received) -> bytes:
        seen.append(request)
        if request.target == "/mcp":
            return response(307, b"moved", Location="/mcp/")
        return echo(request)

    async with Linked(saying(make)) as at:
        assert await at.call("x") == {"echo": "x"}
        assert at.server.connections == 1
    assert [(r.method, r.target) for r in seen] == [("POST", "/mcp"), ("POST", "/mcp/")]
    assert seen[0].body == seen[1].body


@pytest.mark.parametrize(
    ("status", "location", "named"),
    [
        (301, "/mcp/", "/mcp/"),
        (302, "/login?token=secret", "/login"),
        (303, "/mcp/", "/mcp/"),
        (307, "https://127.0.0.1/mcp", "https://127.0.0.1/mcp"),
        (308, "http://169.254.169.254/latest", "http://169.254.169.254/latest"),
        (307, "http://evil.test/", "http://evil.test/"),
        (307, "gopher://x/", "nowhere"),
        (307, "", "nowhere"),
        (304, "", "nowhere"),
    ],
)
async def test_other_redirects_are_reported_but_not_followed(status: int, location: str, named: str) -> None:
    data = response(status, Location=location) if location else response(status)
    async with Linked(always(data)) as at:
        fault = await at.fault()
        assert at.server.connections == 1
    assert (fault.code, fault.certainty, fault.status) == ("E-HTTP-REDIRECT", Certainty.REJECTED, status)
    assert named in fault.reason
    assert "secret" not in fault.reason


async def test_redirect_loop_is_rejected() -> None:
    seen: list[Received] = []

    def make(request: Received) -> bytes:
        seen.append(request)
        return response(307, Location="/mcp")

    async with Linked(saying(make)) as at:
        fault = await at.fault()
    assert (fault.code, fault.certainty) == ("E-HTTP-REDIRECT", Certainty.REJECTED)
    assert len(seen) == 4


# -- answers as streams of events


PROGRESS = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 5}}


async def test_stream_delivers_notifications_then_result() -> None:
    def make(request: Received) -> bytes:
        return EVENTS + chunk(b": hello\n\n") + event(PROGRESS) + event(result(request, {"done": 1})) + END

    async with Linked(saying(make)) as at:
        for _ in range(3):
            assert await at.call() == {"done": 1}
        assert at.server.connections == 1
        assert at.ears.heard == [("notifications/progress", PROGRESS["params"])] * 3


async def test_result_in_stream_does_not_wait_for_its_end() -> None:
    closed = asyncio.Event()

    async def script(conn: Conn) -> None:
        request = await conn.request()
        assert request is not None
        await conn.send(EVENTS + event(result(request, {"done": 1})))
        await conn.gone()
        closed.set()

    async with Linked(script) as at:
        assert await at.call() == {"done": 1}
        async with asyncio.timeout(30):
            await closed.wait()


@pytest.mark.parametrize(
    "data",
    [
        EVENTS,
        EVENTS + event(PROGRESS, id_="1"),
        EVENTS + event(PROGRESS, id_="1") + END,
        EVENTS + event(PROGRESS, id_="1") + b"50\r\ndata: {",
    ],
    ids=["before", "between", "ended", "inside"],
)
async def test_cut_stream_fails_call_without_resume_in_modern_era(data: bytes) -> None:
    async def script(conn: Conn) -> None:
        await conn.request()
        await conn.send(data)

    async with Linked(script) as at:
        fault = await at.fault()
        assert at.server.connections == 1
    assert (fault.code, fault.certainty) == ("E-HTTP-CUT", Certainty.UNKNOWN)


async def test_malformed_chunk_in_stream_fails_call() -> None:
    async with Linked(always(EVENTS + event(PROGRESS) + b"zz\r\n")) as at:
        fault = await at.fault()
    assert (fault.code, fault.certainty) == ("E-HTTP-PROTOCOL", Certainty.UNKNOWN)


async def test_oversized_event_fails_only_its_call() -> None:
    def make(request: Received) -> bytes:
        size = 200_000 if request.json["params"]["name"] == "big" else 10
        return EVENTS + event(result(request, {"text": "x" * size})) + END

    async with Linked(saying(make), limits=Limits(max_message_bytes=100_000)) as at:
        fault = await at.fault("big")
        assert (fault.code, fault.certainty) == ("E-HTTP-LIMIT", Certainty.UNKNOWN)
        assert await at.call("small") == {"text": "x" * 10}


async def test_invalid_event_is_skipped_and_counted() -> None:
    def make(request: Received) -> bytes:
        rubbish = [
            b"data: {oops\n\n",
            b"data: []\n\n",
            b'data: {"id": 999, "result": NaN}\n\n',
            b"event: x\ndata: 1\n\n",
        ]
        return EVENTS + b"".join(map(chunk, rubbish)) + event(result(request, {"done": 1})) + END

    async with Linked(saying(make)) as at:
        assert await at.call() == {"done": 1}
        assert at.link.info() == TransportInfo(
            invalid_lines=4,
            messages_sent=at.link.info().messages_sent,
            messages_received=at.link.info().messages_received,
        )


async def test_invalid_event_with_own_id_fails_call_at_once() -> None:
    async def script(conn: Conn) -> None:
        request = await conn.request()
        assert request is not None
        await conn.send(EVENTS + chunk(b'data: {"jsonrpc":"2.0","id":%d,"result":NaN}\n\n' % request.json["id"]))
        await conn.gone()

    async with Linked(script) as at:
        fault = await at.fault()
    assert (fault.code, fault.certainty) == ("E-HTTP-CONTENT", Certainty.UNKNOWN)


async def test_stream_with_other_id_fails_call() -> None:
    stray = {"jsonrpc": "2.0", "id": 77, "result": {}}
    async with Linked(always(EVENTS + event(stray) + END)) as at:
        fault = await at.fault()
    assert (fault.code, fault.certainty) == ("E-HTTP-ID", Certainty.UNKNOWN)


async def test_request_from_modern_server_is_ignored_and_counted() -> None:
    ask = {"jsonrpc": "2.0", "id": 5, "method": "roots/list"}
    seen: list[Received] = []

    def make(request: Received) -> bytes:
        seen.append(request)
        return EVENTS + event(ask) + event(result(request, {"done": 1})) + END

    async with Linked(saying(make)) as at:
        assert await at.call() == {"done": 1}
        assert at.link.info().unmatched_responses == 1
    assert len(seen) == 1


# -- cancelling


def silent(asked: asyncio.Event, closed: asyncio.Event, seen: list[Received]) -> Script:
    """Never answers a call; says when it was asked and when the client has left."""

    async def script(conn: Conn) -> None:
        while (request := await conn.request()) is not None:
            seen.append(request)
            if is_call(request):
                asked.set()
                await conn.gone()
                closed.set()
            else:
                await conn.send(session_answer(request))

    return script


@pytest.mark.parametrize("era", ["modern", "legacy", "quiet"])
async def test_cancel_closes_stream_and_notifies_legacy_server(era: str) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()
    seen: list[Received] = []
    async with Linked(silent(asked, closed, seen)) as at:
        if era == "modern":
            request = modern()
        else:
            await at.shake_hands()
            request = Request("tools/call", {"name": "t"}, silent_cancel=era == "quiet")
        task = asyncio.create_task(at.link.request(request))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert request.call_state.certainty is Certainty.UNKNOWN
        async with asyncio.timeout(30):
            await closed.wait()
        await asyncio.sleep(0.1)
        notices = [r for r in seen if r.method == "POST" and r.json.get("method") == "notifications/cancelled"]
    if era == "legacy":
        assert [notice.json["params"]["requestId"] for notice in notices] == [2]
        assert notices[0].headers["mcp-session-id"] == "s-1"
    else:
        assert notices == []


# -- the session of the handshake era


async def test_session_is_kept_sent_and_ended() -> None:
    seen: list[Received] = []
    got = asyncio.Event()
    async with Linked(session(echo, seen, got=got)) as at:
        await at.shake_hands()
        assert at.link.session_id == "s-1"
        await at.link.notify("notifications/initialized", {})
        assert await at.link.request(Request("tools/call", {"name": "a"})) == {"echo": "a"}
        async with asyncio.timeout(30):
            await got.wait()
    by_method = {(r.method, json.loads(r.body or b"{}").get("method")): r.headers for r in seen}
    assert "mcp-session-id" not in by_method["POST", "initialize"]
    for key in [("POST", "notifications/initialized"), ("POST", "tools/call"), ("DELETE", None), ("GET", None)]:
        assert by_method[key]["mcp-session-id"] == "s-1"
        assert by_method[key]["mcp-protocol-version"] == LEGACY


async def test_reset_session_is_not_sent_again() -> None:
    seen: list[Received] = []
    async with Linked(session(echo, seen)) as at:
        await at.shake_hands()
        at.link.reset_session()
        await at.link.request(Request("ping", {"name": ""}))
        assert "mcp-session-id" not in seen[-1].headers
    assert seen[-1].method == "POST"  # and there is nothing to end


@pytest.mark.parametrize(
    ("status", "message", "gone"),
    [
        (404, "Session not found", True),
        (404, "", True),
        (400, "Bad Request: No valid session ID provided", True),
        (400, "Bad Request: bad arguments", False),
    ],
)
async def test_expired_session_has_its_own_error_code(status: int, message: str, gone: bool) -> None:
    def make(request: Received) -> bytes:
        return json_response(error(request, -32000, message), status) if message else response(status)

    async with Linked(session(make)) as at:
        await at.shake_hands()
        with pytest.raises((TransportError, JSONRPCError)) as caught:
            await at.link.request(Request("tools/call", {"name": "a"}))
    if gone:
        assert isinstance(caught.value, TransportError)
        assert (caught.value.code, caught.value.certainty) == ("E-HTTP-SESSION", Certainty.REJECTED)
    else:
        assert isinstance(caught.value, JSONRPCError)


async def test_every_call_in_expired_session_gets_session_error() -> None:
    async with Linked(session(lambda _: response(404))) as at:
        await at.shake_hands()

        async def one() -> str:
            try:
                await at.link.request(Request("tools/call", {"name": "a"}))
            except TransportError as fault:
                at.link.reset_session()
                return fault.code
            return ""

        assert set(await asyncio.gather(*(one() for _ in range(50)))) == {"E-HTTP-SESSION"}


async def test_session_id_invalid_as_header_fails_handshake() -> None:
    async with Linked(session(echo, id_="gr\u00fcn")) as at:
        with pytest.raises(TransportError) as caught:
            await at.shake_hands()
    assert caught.value.code == "E-HTTP-CONTENT"


async def test_modern_era_has_no_session() -> None:
    seen: list[Received] = []
    async with Linked(session(echo, seen)) as at:
        await at.shake_hands()
        at.link.set_protocol("modern", MODERN)
        await at.call()
        assert "mcp-session-id" not in seen[-1].headers


@pytest.mark.parametrize(
    "data",
    [
        response(500),
        response(400),
        json_response({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "no"}}, 400),
        b"rubbish\r\n",
    ],
)
async def test_rejected_notification_raises(data: bytes) -> None:
    async with Linked(always(data)) as at:
        with pytest.raises(TransportError):
            await at.link.notify("notifications/initialized", {})


# -- messages from the server


def asking(ask: Json, seen: list[Received], answered: asyncio.Event) -> Script:
    """Asks for something during a call, and answers the call after the reply."""

    async def react(conn: Conn, request: Received) -> None:
        if is_call(request):
            await conn.send(EVENTS + event(ask))
            await answered.wait()
            await conn.send(event(result(request, {"done": 1})) + END)
        else:
            if request.body and request.json.get("id") == ask["id"]:
                seen.append(request)
                answered.set()
            await conn.send(session_answer(request))

    return reacting(react)


def refuse(_: str, __: Json) -> Json:
    raise JSONRPCError(-32601, "nobody can", {"x": 1})


def break_down(_: str, __: Json) -> Json:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda method, params: {"roots": [method, params]}, {"result": {"roots": ["roots/list", {"a": 1}]}}),
        (refuse, {"error": {"code": -32601, "message": "nobody can", "data": {"x": 1}}}),
        (break_down, {"error": {"code": -32603, "message": "the client could not answer"}}),
    ],
    ids=["answered", "refused", "broken"],
)
async def test_server_request_is_answered_by_its_own_post(answer: Any, expected: Json) -> None:
    ask = {"jsonrpc": "2.0", "id": "q-1", "method": "roots/list", "params": {"a": 1}}
    seen: list[Received] = []
    async with Linked(asking(ask, seen, asyncio.Event()), RecordingSink(answer)) as at:
        await at.shake_hands()
        assert await at.link.request(Request("tools/call", {"name": "a"})) == {"done": 1}
    assert seen[0].json == {"jsonrpc": "2.0", "id": "q-1", **expected}
    assert seen[0].headers["mcp-session-id"] == "s-1"


async def test_server_can_cancel_its_request() -> None:
    asked, taken_back = asyncio.Event(), asyncio.Event()

    async def answer(_: str, __: Json) -> Json:
        asked.set()
        try:
            await asyncio.sleep(60)
        finally:
            taken_back.set()
        return {}

    async def react(conn: Conn, request: Received) -> None:
        await conn.send(EVENTS + event({"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage"}))
        await asked.wait()
        notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        await conn.send(event(notice) + event(result(request)) + END)

    async with Linked(reacting(react), RecordingSink(lambda *a: answer(*a))) as at:
        at.link.set_protocol("legacy", LEGACY)
        assert await at.link.request(Request("tools/call", {"name": "a"})) == {}
        async with asyncio.timeout(30):
            await taken_back.wait()


async def test_server_requests_over_limit_are_dropped() -> None:
    begun = 0

    async def answer(_: str, __: Json) -> Json:
        nonlocal begun
        begun += 1
        await asyncio.sleep(60)
        return {}

    def make(request: Received) -> bytes:
        asks = [event({"jsonrpc": "2.0", "id": n, "method": "ping"}) for n in range(100)]
        return EVENTS + b"".join(asks) + event(result(request)) + END

    async with Linked(saying(make), RecordingSink(lambda *a: answer(*a))) as at:
        at.link.set_protocol("legacy", LEGACY)
        assert await at.link.request(Request("tools/call", {"name": "a"})) == {}
        await asyncio.sleep(0)
        assert begun == 16
        assert at.link.info().unmatched_responses == 84


def listening(streams: list[bytes], seen: list[Received]) -> Script:
    """Each GET gets the next of `streams`, and the last of them stays open."""

    async def react(conn: Conn, request: Received) -> None:
        seen.append(request)
        if request.method == "GET":
            data = streams.pop(0)
            await conn.send(data)
            if not streams:
                await conn.gone()
            elif not data.endswith(END):
                conn.writer.close()
        else:
            await conn.send(session_answer(request))

    return reacting(react)


def changed(what: str) -> Json:
    return {"jsonrpc": "2.0", "method": f"notifications/{what}/list_changed"}


async def test_listening_resumes_after_lost_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_listen, "MIN_RECONNECT_DELAY_S", 0.01)
    seen: list[Received] = []
    streams = [
        EVENTS + event(changed("tools"), id_="e-1"),
        response(503),
        EVENTS + event(changed("prompts")) + END,
        EVENTS + event(changed("resources")),
    ]
    async with Linked(listening(streams, seen)) as at:
        await at.shake_hands()
        await at.link.notify("notifications/initialized", {})
        async with asyncio.timeout(30):
            while len(at.ears.heard) < 3:
                at.ears.news.clear()
                await at.ears.news.wait()
    assert [method.split("/")[1] for method, _ in at.ears.heard] == ["tools", "prompts", "resources"]
    gets = [request.headers for request in seen if request.method == "GET"]
    assert [headers.get("last-event-id") for headers in gets] == [None, "e-1", "e-1", "e-1"]
    assert all(headers["accept"] == "text/event-stream" and headers["mcp-session-id"] == "s-1" for headers in gets)


async def test_unmatched_response_on_listen_stream_is_counted() -> None:
    seen: list[Received] = []
    stray = {"jsonrpc": "2.0", "id": 1, "result": {}}
    async with Linked(listening([EVENTS + event(stray) + event(changed("tools"))], seen)) as at:
        await at.shake_hands()
        await at.link.notify("notifications/initialized", {})
        async with asyncio.timeout(30):
            await at.ears.news.wait()
        assert at.link.info().unmatched_responses == 1


async def test_listening_ends_with_session() -> None:
    gone = asyncio.Event()

    async def react(conn: Conn, request: Received) -> None:
        if request.method == "GET":
            await conn.send(EVENTS + event(changed("tools")))
            await conn.gone()
            gone.set()
        else:
            await conn.send(session_answer(request))

    async with Linked(reacting(react)) as at:
        await at.shake_hands()
        await at.link.notify("notifications/initialized", {})
        async with asyncio.timeout(30):
            await at.ears.news.wait()
            at.link.reset_session()
            await gone.wait()


@pytest.mark.parametrize("status", [400, 401, 404, 405, 200])
async def test_server_without_listen_stream_is_asked_once(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listen, "MIN_RECONNECT_DELAY_S", 0.01)
    seen: list[Received] = []
    async with Linked(listening([response(status), b"", b""], seen)) as at:
        await at.shake_hands()
        await at.link.notify("notifications/initialized", {})
        async with asyncio.timeout(30):
            while not any(request.method == "GET" for request in seen):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert len([request for request in seen if request.method == "GET"]) == 1


async def test_cut_response_resumes_while_events_are_new() -> None:
    seen: list[Received] = []

    async def react(conn: Conn, request: Received) -> None:
        seen.append(request)
        if request.method == "POST":
            await conn.send(EVENTS + event(PROGRESS, id_="1"))
        elif request.headers["last-event-id"] == "1":
            await conn.send(EVENTS + event(PROGRESS, id_="2"))
        else:
            await conn.send(EVENTS + event({"jsonrpc": "2.0", "id": 1, "result": {"done": 1}}) + END)
            return
        conn.writer.close()

    async with Linked(reacting(react)) as at:
        at.link.set_protocol("legacy", LEGACY)
        assert await at.link.request(Request("tools/call", {"name": "a"})) == {"done": 1}
        assert len(at.ears.heard) == 2
    assert [(r.method, r.headers.get("last-event-id")) for r in seen] == [("POST", None), ("GET", "1"), ("GET", "2")]


@pytest.mark.parametrize("resumed", [response(405), EVENTS, EVENTS + END, EVENTS + event(PROGRESS, id_="1") + END])
async def test_cut_response_without_new_events_is_lost(resumed: bytes) -> None:
    gets = 0

    async def react(conn: Conn, request: Received) -> None:
        nonlocal gets
        gets += request.method == "GET"
        await conn.send(EVENTS + event(PROGRESS, id_="1") if request.method == "POST" else resumed)
        conn.writer.close()

    async with Linked(reacting(react)) as at:
        at.link.set_protocol("legacy", LEGACY)
        with pytest.raises(TransportError) as caught:
            await at.link.request(Request("tools/call", {"name": "a"}))
    assert (caught.value.code, caught.value.certainty, gets) == ("E-HTTP-CUT", Certainty.UNKNOWN, 1)


# -- the end


async def test_close_is_bounded_and_ends_calls_and_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "DELETE_TIMEOUT_S", 0.2)
    before = asyncio.all_tasks()
    asked = asyncio.Event()

    async def react(conn: Conn, request: Received) -> None:
        if is_call(request):
            asked.set()
        elif request.method == "GET":
            await conn.send(EVENTS)
        elif request.method == "POST":
            await conn.send(session_answer(request))

    async with Linked(reacting(react)) as at:
        await at.shake_hands()
        await at.link.notify("notifications/initialized", {})
        under_way = asyncio.create_task(at.link.request(Request("tools/call", {"name": "a"})))
        await asked.wait()
        began = time.monotonic()
        await at.link.close()
        await at.link.close()
        assert time.monotonic() - began < within(1)
        with pytest.raises(TransportError) as caught:
            await under_way
        assert (caught.value.code, caught.value.certainty) == ("E-HTTP-CLOSED", Certainty.UNKNOWN)
        assert (await at.fault()).certainty is Certainty.NOT_SENT
    await asyncio.sleep(0.05)
    assert asyncio.all_tasks() == before


async def test_unopened_link_can_be_closed() -> None:
    await StreamableHttpTransport(Server(url="http://127.0.0.1:9/")).close()


async def test_url_link_never_closes_by_itself() -> None:
    async with Linked(saying(echo)) as at:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(at.link.wait_closed(), 0.05)


async def test_compressed_responses_are_accepted_only_if_configured() -> None:
    import gzip

    seen: list[Received] = []

    def make(request: Received) -> bytes:
        seen.append(request)
        body = gzip.compress(json.dumps(result(request, {"ok": 1})).encode())
        return response(200, body, Content_Type="application/json", Content_Encoding="gzip")

    async with Linked(saying(make)) as at:
        fault = await at.fault()
        assert (fault.code, fault.certainty) == ("E-HTTP-CONTENT", Certainty.UNKNOWN)
    async with peer(saying(make)) as server:
        link = StreamableHttpTransport(
            Server(url=server.url, limits=Limits(compression=True)),
            msgspec.structs.replace(PATIENT, accept_compression=True),
        )
        await link.open(RecordingSink())
        assert await link.request(modern()) == {"ok": 1}
        await link.close()
    assert [request.headers["accept-encoding"] for request in seen] == ["identity", "gzip, deflate"]
