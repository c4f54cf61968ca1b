"""A server of 2024-11-05: what each event and each response means, and what a failure leaves known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.upstream.legacy_sse_server import (
    ACCEPTED,
    LegacySseServer,
    React,
    answer_normally,
    hold,
    is_call,
    serve_legacy_sse,
)
from tests.upstream.raw_http import END, Conn, Received, event, json_response, peer, response
from toolway.config.schema import HealthCheck, Limits, Server
from toolway.config.server_entry import parse_entry
from toolway.errors import ConfigError
from toolway.http.client import ClientLimits
from toolway.types import CallState, Certainty, Json
from toolway.upstream.transport import Disconnect, JSONRPCError, Request, TransportError
from toolway.upstream.transports import legacy_sse
from toolway.upstream.transports import legacy_sse as link_module
from toolway.upstream.transports import legacy_sse_stream as channel_module
from toolway.upstream.transports.legacy_sse import LegacySseTransport

pytestmark = pytest.mark.anyio

PATIENT = ClientLimits(connect_timeout=30, write_timeout=30, head_timeout=30, min_rate_window=30)


class RecordingSink:
    def __init__(self) -> None:
        self.heard: list[tuple[str, Json]] = []
        self.asked: list[str] = []

    def on_notification(self, method: str, params: Json, call_state: CallState | None = None) -> None:
        self.heard.append((method, params))

    async def on_request(self, method: str, params: Json, call_state: CallState | None = None) -> Json | None:
        self.asked.append(method)
        return {"roots": []}


class Linked:
    def __init__(self, server: LegacySseServer, link: LegacySseTransport, ears: RecordingSink) -> None:
        self.server = server
        self.link = link
        self.ears = ears

    async def call(self, attempt: CallState | None = None, **arguments: Any) -> Json:
        params = {"name": "act", "arguments": arguments}
        async with asyncio.timeout(60):
            return await self.link.request(Request("tools/call", params, attempt or CallState()))

    async def fault(self, **arguments: Any) -> TransportError:
        with pytest.raises(TransportError) as caught:
            await self.call(**arguments)
        return caught.value

    async def lost(self) -> Disconnect:
        async with asyncio.timeout(30):
            return await self.link.wait_closed()


@asynccontextmanager
async def linked(
    react: React = answer_normally,
    limits: Limits | None = None,
    health: HealthCheck | None = None,
    message_url: str | None = None,
    **settings: Any,
) -> AsyncIterator[Linked]:
    async with serve_legacy_sse(react, **settings) as server:
        given: dict[str, Any] = {
            "limits": limits or Limits(),
            "health": health or HealthCheck(),
            "headers": {"X-Key": "k"},
        }
        given["message_url"] = message_url
        link = LegacySseTransport(Server(url=server.url, sse=True, **given), PATIENT)
        ears = RecordingSink()
        try:
            await link.open(ears)
            yield Linked(server, link, ears)
        finally:
            await link.close()


async def cannot_open(**settings: Any) -> TransportError:
    with pytest.raises(TransportError) as caught:
        async with asyncio.timeout(30), linked(**settings):
            pass
    assert caught.value.certainty is Certainty.NOT_SENT
    return caught.value


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


# -- the stream and its first event


@pytest.mark.promise("A7")
async def test_messages_go_to_announced_endpoint() -> None:
    async with linked() as it:
        assert (await it.call(nonce="n"))["structuredContent"] == {"nonce": "n"}
        await it.link.notify("notifications/initialized", {})
        post, notice = it.server.posts
        assert (post.target, post.headers["x-key"]) == ("/messages?session=s-1", "k")
        assert notice.json == {"jsonrpc": "2.0", "method": "notifications/initialized", "params": {}}
        assert it.server.gets[0].headers["accept"] == "text/event-stream"
        assert it.link.info().transport == "sse"


@pytest.mark.parametrize("said", ["messages?session=s-1", "/messages?session=s-1", "http://127.0.0.1:{port}/messages"])
async def test_endpoint_may_be_relative_or_absolute(said: str) -> None:
    async with serve_legacy_sse() as server:
        server.endpoint = said.format(port=server.peer.port)
        link = LegacySseTransport(Server(url=server.url), PATIENT)
        await link.open(RecordingSink())
        await link.notify("x", {})
        await link.close()
        assert server.posts[0].target.startswith("/messages")


@pytest.mark.parametrize(
    "said",
    [
        "http://127.0.0.1:1/messages",
        "https://127.0.0.1/messages",
        "//evil.test/messages",
        "http://localhost/messages",
        "http://user:word@127.0.0.1/messages",
        "file:///etc/passwd",
        "/a b",
        "/caf\u00e9",
        "http://[",
        "/" + "x" * 9000,
    ],
)
async def test_endpoint_of_other_origin_is_rejected_unsent(said: str) -> None:
    async def never(conn: Conn) -> None:
        raise AssertionError("another origin was connected to")

    async with peer(never) as other:
        fault = await cannot_open(endpoint=said.replace(":1/", f":{other.port}/"))
        assert fault.code == "E-SSE-ENDPOINT" and fault.hint
        assert other.connections == 0


@pytest.mark.promise("A7")
async def test_stream_without_endpoint_event_fails_to_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "ENDPOINT_TIMEOUT_S", 0.2)
    assert "no event within" in (await cannot_open(endpoint=None)).reason


async def test_stream_with_wrong_first_event_fails_to_open() -> None:
    async def chatter(conn: Conn) -> None:
        await conn.request()
        await conn.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"data: {}\n\n" * 100)
        await conn.gone()

    async with peer(chatter) as server:
        link = LegacySseTransport(Server(url=server.url), PATIENT)
        with pytest.raises(TransportError) as caught:
            await link.open(RecordingSink())
        await link.close()
        assert (caught.value.code, caught.value.certainty) == ("E-SSE-STREAM", Certainty.NOT_SENT)


@pytest.mark.promise("A7")
@pytest.mark.user_trial("21")
@pytest.mark.parametrize("endpoint", [None, "/elsewhere"])
async def test_message_url_of_entry_overrides_endpoint(endpoint: str | None) -> None:
    async with linked(endpoint=endpoint, message_url="/rpc") as it:
        assert (await it.call(nonce="n"))["structuredContent"] == {"nonce": "n"}
        assert [post.target for post in it.server.posts] == ["/rpc"]


@pytest.mark.user_trial("21")
async def test_message_url_at_other_origin_is_rejected() -> None:
    assert (await cannot_open(endpoint=None, message_url="http://other.example/rpc")).code == "E-SSE-ENDPOINT"


@pytest.mark.user_trial("21")
async def test_missing_endpoint_hint_suggests_message_url() -> None:
    empty = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 0\r\n\r\n"
    assert '"messageUrl": "https://…/rpc"' in (await cannot_open(opening=empty)).hint


@pytest.mark.user_trial("21")
def test_message_url_is_an_entry_key_for_sse_only() -> None:
    server = parse_entry({"url": "https://h.example/events", "messageUrl": "https://h.example/events/rpc"}, {})
    assert (server.transport, server.message_url) == ("sse", "https://h.example/events/rpc")
    with pytest.raises(ConfigError, match="HTTP\\+SSE"):
        parse_entry({"type": "http", "url": "https://h.example/mcp", "messageUrl": "/rpc"}, {})


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (response(200, b"<html>", Content_Type="text/html"), "E-SSE-STREAM"),
        (response(405), "E-HTTP-STATUS"),
        (response(401, WWW_Authenticate="Bearer"), "E-HTTP-STATUS"),
        (response(503), "E-HTTP-STATUS"),
        (response(302, Location="http://127.0.0.1:9/sse"), "E-HTTP-REDIRECT"),
        (response(307, Location="/sse"), "E-HTTP-REDIRECT"),
        (b"no http\r\n\r\n", "E-HTTP-PROTOCOL"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 0\r\n\r\n", "E-SSE-STREAM"),
    ],
)
async def test_non_event_stream_response_fails_to_open(answer: bytes, code: str) -> None:
    assert (await cannot_open(opening=answer)).code == code


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_within_origin_is_followed_to_open(status: int) -> None:
    async def serve(server: LegacySseServer, conn: Conn, request: Received) -> None:
        await answer_normally(server, conn, request)

    async with serve_legacy_sse(serve) as server:
        plain = server.serve

        async def moved(conn: Conn, request: Received) -> None:
            if request.target == "/sse":
                await conn.send(response(status, Location="/sse/"))
            else:
                await plain(conn, request)

        server.serve = moved  # type: ignore[method-assign]
        async with peer_of(server) as url:
            link = LegacySseTransport(Server(url=url), PATIENT)
            await link.open(RecordingSink())
            await link.notify("x", {})
            await link.close()
    assert server.posts


@asynccontextmanager
async def peer_of(server: LegacySseServer) -> AsyncIterator[str]:
    from tests.upstream.raw_http import reacting

    async with peer(reacting(server.serve)) as facts:
        yield f"http://127.0.0.1:{facts.port}/sse"


async def test_discover_is_never_sent_over_sse() -> None:
    async with linked() as it:
        with pytest.raises(JSONRPCError) as caught:
            await it.link.request(Request("server/discover", {}, version="2026-07-28"))
        assert caught.value.code == -32601
        assert not it.server.posts


@pytest.mark.parametrize(("version", "told"), [("2024-11-05", None), ("2025-06-18", "2025-06-18")])
async def test_version_header_sent_only_for_versions_that_define_it(version: str, told: str | None) -> None:
    async with linked() as it:
        it.link.set_protocol("legacy", version)
        await it.call()
        assert it.server.posts[0].headers.get("mcp-protocol-version") == told


# -- what the response to a POST means


def answering(data: bytes, *, on_stream: bool = False) -> React:
    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        await conn.send(data)
        if on_stream:
            await server.send_message(server.answer(request))

    return react


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_any_success_status_accepts_the_message(status: int) -> None:
    async with linked(answering(response(status, b"" if status == 204 else b"ok"), on_stream=True)) as it:
        await it.call()


@pytest.mark.parametrize(
    ("data", "certainty", "code"),
    [
        (response(400, b"bad"), Certainty.REJECTED, "E-HTTP-STATUS"),
        (response(401), Certainty.REJECTED, "E-HTTP-STATUS"),
        (response(403), Certainty.REJECTED, "E-HTTP-STATUS"),
        (response(404, b"Could not find session"), Certainty.REJECTED, "E-HTTP-SESSION"),
        (response(400, b"No transport found for sessionId"), Certainty.REJECTED, "E-HTTP-SESSION"),
        (response(400, b"Invalid session ID"), Certainty.REJECTED, "E-HTTP-SESSION"),
        (response(400, b"session " + b"x" * 1000 + b" not found"), Certainty.REJECTED, "E-HTTP-STATUS"),
        (response(413), Certainty.REJECTED, "E-HTTP-STATUS"),
        (response(429, Retry_After="7"), Certainty.REJECTED, "E-HTTP-STATUS"),
        (response(500), Certainty.UNKNOWN, "E-HTTP-STATUS"),
        (response(503), Certainty.UNKNOWN, "E-HTTP-STATUS"),
        (response(503, Retry_After="1"), Certainty.REJECTED, "E-HTTP-STATUS"),
        (response(200, b"<html>sign in", Content_Type="text/html"), Certainty.UNKNOWN, "E-HTTP-CONTENT"),
        (response(302, Location="/elsewhere"), Certainty.REJECTED, "E-HTTP-REDIRECT"),
        (response(307, Location="http://127.0.0.1:9/"), Certainty.REJECTED, "E-HTTP-REDIRECT"),
    ],
)
async def test_error_status_sets_certainty(data: bytes, certainty: Certainty, code: str) -> None:
    async with linked(answering(data)) as it:
        fault = await it.fault()
        assert (fault.certainty, fault.code) == (certainty, code)
        assert not it.link._disconnected or not it.link._disconnected.done()


async def test_protocol_error_in_response_is_raised() -> None:
    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        error = {"code": -32602, "message": "no such thing"}
        await conn.send(json_response({"jsonrpc": "2.0", "id": request.json["id"], "error": error}, 400))

    async with linked(react) as it:
        with pytest.raises(JSONRPCError) as caught:
            await it.call()
        assert caught.value.code == -32602


async def test_result_in_response_needs_matching_id() -> None:
    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        wrong = {**server.answer(request), "id": request.json["id"] + 1}
        first = request.json["id"] == 1
        await conn.send(json_response(server.answer(request) if first else wrong))
        if not first:
            await server.send_message(server.answer(request))

    async with linked(react) as it:
        for nonce in ("a", "b"):
            assert (await it.call(nonce=nonce))["structuredContent"] == {"nonce": nonce}


async def test_result_before_response_completes_call() -> None:
    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        await server.send_message(server.answer(request))
        await hold()

    async with linked(react) as it:
        for _ in range(3):
            await it.call()


async def test_background_posts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MAX_BACKGROUND_POSTS", 2)
    monkeypatch.setattr(link_module, "POST_TIMEOUT_S", 0.2)

    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        await server.send_message(server.answer(request))
        await hold()

    async with linked(react) as it:
        for _ in range(5):
            await it.call()
            assert len(it.link._background_posts) <= 2
        await until(lambda: not it.link._background_posts)


async def test_result_on_stream_completes_call_after_lost_response() -> None:
    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        conn.reset()
        await asyncio.sleep(0.05)
        await server.send_message(server.answer(request))

    async with linked(react) as it:
        assert (await it.call(nonce="n"))["structuredContent"] == {"nonce": "n"}


async def test_lost_response_without_result_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy_sse, "LATE_RESULT_TIMEOUT_S", 0.05)

    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        conn.reset()

    async with linked(react) as it:
        fault = await it.fault()
        assert (fault.certainty, fault.code) == (Certainty.UNKNOWN, "E-HTTP-RESET")


# -- the end of the stream


async def test_lost_stream_makes_sent_calls_unknown_and_ends_link() -> None:
    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        await conn.send(ACCEPTED)
        await asyncio.sleep(0.05)
        server.streams[-1].reset()

    async with linked(react) as it:
        calls = [asyncio.create_task(it.fault()) for _ in range(5)]
        for call in calls:
            assert ((await call).certainty, (await call).code) == (Certainty.UNKNOWN, "E-SSE-ENDED")
        loss = await it.lost()
        assert loss.expected
        assert (await it.fault()).certainty is Certainty.NOT_SENT


async def test_unsent_call_is_never_sent_after_stream_ends() -> None:
    """The server does not even accept the connection of the POST, and the stream ends in the meantime."""
    async with linked() as it:
        attempt = CallState()
        sender = it.link._sender
        assert sender is not None
        gate = asyncio.Event()
        dial = sender._client._dial

        async def slow(origin: Any) -> Any:
            await gate.wait()
            return await dial(origin)

        sender._client._dial = slow  # type: ignore[method-assign]
        call = asyncio.create_task(it.call(attempt))
        await asyncio.sleep(0.05)
        it.server.streams[-1].reset()
        with pytest.raises(TransportError) as caught:
            await call
        gate.set()
        await asyncio.sleep(0.05)
        assert (caught.value.certainty, attempt.certainty) == (Certainty.NOT_SENT, Certainty.NOT_SENT)
        assert not it.server.posts


@pytest.mark.parametrize("how", ["reset", "in order"])
async def test_stream_resumes_from_last_event_id(how: str) -> None:
    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        await server.send_message({"jsonrpc": "2.0", "method": "notifications/x"}, f"before-{len(server.posts)}")
        await conn.send(ACCEPTED)
        before = server.streams[-1]
        await asyncio.sleep(0.02)  # a reset also takes back what was not read yet
        if how == "reset":
            before.reset()
        else:
            await before.send(END)
            before.writer.close()
        await until(lambda: server.streams[-1] is not before)
        await asyncio.sleep(0.02)
        await server.send_message(server.answer(request), f"after-{len(server.posts)}")

    async with linked(react) as it:
        for nonce in ("n", "m"):
            assert (await it.call(nonce=nonce))["structuredContent"] == {"nonce": nonce}
        assert [get.headers.get("last-event-id") for get in it.server.gets] == [None, "before-1", "before-2"]


async def test_stream_resumed_as_other_session_is_lost() -> None:
    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        await server.send_message({"jsonrpc": "2.0", "method": "notifications/x"}, "7")
        await conn.send(ACCEPTED)
        server.endpoint = "/messages?session=s-2"
        server.streams[-1].writer.close()

    async with linked(react) as it:
        fault = await it.fault()
        assert (fault.certainty, fault.code) == (Certainty.UNKNOWN, "E-SSE-ENDED")
        assert "another session" in fault.reason
        await it.lost()


async def test_failed_resume_is_not_repeated() -> None:
    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        await server.send_message({"jsonrpc": "2.0", "method": "notifications/x"}, "7")
        await conn.send(ACCEPTED)
        server.opening = response(204)
        server.streams[-1].writer.close()

    async with linked(react) as it:
        assert (await it.fault()).certainty is Certainty.UNKNOWN
        assert [get.headers.get("last-event-id") for get in it.server.gets] == [None, "7"]


async def test_messages_wait_while_stream_resumes() -> None:
    async with linked() as it:
        await it.server.send_message({"jsonrpc": "2.0", "method": "notifications/x"}, "7")
        await until(lambda: it.ears.heard)
        it.server.streams[-1].reset()
        await asyncio.sleep(0.02)
        call = asyncio.create_task(it.call(nonce="n"))
        await asyncio.sleep(0.02)
        assert not it.server.posts and not call.done()
        assert (await call)["structuredContent"] == {"nonce": "n"}


# -- the session


async def test_expired_session_opens_new_stream_and_drains_old_one() -> None:
    slow: list[Received] = []

    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        await conn.send(ACCEPTED)
        if request.json["method"] == "tools/call" and not slow:
            slow.append(request)
        else:
            await server.send_message(server.answer(request))

    async with linked(react) as it:
        early = asyncio.create_task(it.call(nonce="early"))
        await until(lambda: slow)
        it.server.endpoint = "/messages?session=s-2"
        it.link.reset_session()
        assert (await it.fault()).code == "E-HTTP-SESSION"
        await it.link.request(Request("initialize", {}, silent_cancel=True))
        assert (await it.call(nonce="late"))["structuredContent"] == {"nonce": "late"}
        assert it.server.posts[-1].target == "/messages?session=s-2"
        await it.server.streams[0].send(event(it.server.answer(slow[0])))
        assert (await early)["structuredContent"] == {"nonce": "early"}
        await until(lambda: it.server.streams[0].writer.is_closing() or it.server.streams[0].reader.at_eof())


# -- what comes on the stream


async def test_unreadable_event_fails_only_its_call() -> None:
    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        await conn.send(ACCEPTED)
        good = json.dumps(server.answer(request))
        how = request.json["params"]["arguments"].get("how")
        bad = {"nan": good.replace('"done"', "NaN"), "twice": good.replace('"id"', '"id": 1, "id"'), "cut": good[:-5]}
        await server.raw(f"data: {bad.get(how, good)}\n\n".encode())

    async with linked(react) as it:
        for how in ("nan", "cut"):
            beside = asyncio.create_task(it.call(nonce="n"))
            assert (await it.fault(how=how)).certainty is Certainty.UNKNOWN
            assert (await beside)["structuredContent"] == {"nonce": "n"}


async def test_oversized_event_fails_only_its_call() -> None:
    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        await conn.send(ACCEPTED)
        answer = server.answer(request)
        if request.json["params"]["arguments"].get("long"):
            answer["result"]["content"][0]["text"] = "x" * 50_000
        await server.send_message(answer)

    async with linked(react, limits=Limits(max_message_bytes=10_000)) as it:
        beside = asyncio.create_task(it.call(nonce="n"))
        fault = await it.fault(long=True)
        assert (fault.certainty, fault.code) == (Certainty.UNKNOWN, "E-HTTP-LIMIT")
        assert (await beside)["structuredContent"] == {"nonce": "n"}
        assert (await it.call(nonce="m"))["structuredContent"] == {"nonce": "m"}


async def test_endless_event_ends_link() -> None:
    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        await conn.send(ACCEPTED)
        await server.raw(b'data: {"id":1,"result":"')
        for _ in range(100):
            await server.raw(b"x" * 1000)

    async with linked(react, limits=Limits(max_message_bytes=2000)) as it:
        assert (await it.fault()).code == "E-HTTP-LIMIT"
        assert (await it.lost()).code == "E-FRAME-ENDLESS"


async def test_stalled_event_ends_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "MIN_EVENT_RATE", (1024, 0.2))

    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        await conn.send(ACCEPTED)
        await server.raw(b'data: {"jsonrpc":"2.0",')

    async with linked(react) as it:
        fault = await it.fault()
        assert (fault.certainty, fault.code) == (Certainty.UNKNOWN, "E-FRAME-HALF")
        assert (await it.lost()).code == "E-FRAME-HALF"


async def test_repeated_unreadable_events_end_link() -> None:
    async with linked() as it:
        await it.server.raw(b"data: {nonsense\n\n" * 30)
        assert (await it.lost()).code == "E-FRAME-BAD"


async def test_unmatched_responses_are_dropped_and_counted() -> None:
    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        await conn.send(ACCEPTED)
        for id_ in (999, "x", -1, request.json["id"], request.json["id"]):
            await server.send_message({**server.answer(request), "id": id_})

    async with linked(react) as it:
        await it.call()
        await until(lambda: it.link.info().unmatched_responses == 4)


async def test_server_notifications_and_requests_are_handled() -> None:
    async with linked() as it:
        await it.server.raw(b": a sign of life\n\nevent: ping\ndata: now\n\n")
        await it.server.send_message({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        await it.server.send_message({"jsonrpc": "2.0", "id": "q", "method": "roots/list"})
        await until(lambda: it.server.posts)
        assert it.ears.heard == [("notifications/tools/list_changed", {})]
        assert it.server.posts[0].json == {"jsonrpc": "2.0", "id": "q", "result": {"roots": []}}
        assert it.link.info().invalid_lines == 0


# -- cancelling


async def test_cancelled_call_sends_notification_and_drops_late_result() -> None:
    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        await conn.send(ACCEPTED)

    async with linked(react) as it:
        attempt = CallState()
        call = asyncio.create_task(it.call(attempt))
        await until(lambda: it.server.posts)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: any(post.json["method"] == "notifications/cancelled" for post in it.server.posts))
        assert attempt.certainty is Certainty.UNKNOWN
        (notice,) = [post.json for post in it.server.posts if post.json["method"] == "notifications/cancelled"]
        assert notice["params"] == {"requestId": 1}
        assert is_call(it.server.posts[0])
        await it.server.send_message(it.server.answer(it.server.posts[0]))
        await until(lambda: it.link.info().unmatched_responses == 1)


async def test_double_close_is_safe_and_fails_pending_calls() -> None:
    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        await conn.send(ACCEPTED)

    async with linked(react) as it:
        call = asyncio.create_task(it.fault())
        await until(lambda: it.server.posts)
        await it.link.close()
        await it.link.close()
        assert (await call).certainty is Certainty.UNKNOWN
        assert (await it.lost()).code == "E-CLOSED"


async def test_silent_stream_is_lost_after_failed_ping() -> None:
    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        await conn.send(ACCEPTED)

    async with linked(react, health=HealthCheck(timeout=0.3)) as it:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await it.call()
        assert (await it.lost()).code == "E-HEALTH"
        assert [post.json["method"] for post in it.server.posts if post.json["method"] == "ping"] == ["ping"]


async def test_stream_with_comments_is_not_lost() -> None:
    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        await conn.send(ACCEPTED)
        if request.json["method"] != "notifications/cancelled":
            await server.raw(b": still here\n\n")

    async with linked(react, health=HealthCheck(timeout=2.0)) as it:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await it.call()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await it.link.wait_closed()
