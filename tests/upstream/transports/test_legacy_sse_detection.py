"""A URL that turns out to be of HTTP+SSE, the transport before Streamable HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.upstream.legacy_sse_server import LegacySseServer, answer_normally, serve_legacy_sse
from tests.upstream.raw_http import EVENTS, Conn, Received, chunk, json_response, peer, reacting, response
from toolway import Hub, Server, ServerStatus, ServerUnavailable, Timeout
from toolway.testing import FakeHttp
from toolway.types import Certainty
from toolway.upstream import session as session_module
from toolway.upstream.negotiation import may_be_legacy_sse
from toolway.upstream.transport import JSONRPCError, TransportError

pytestmark = pytest.mark.anyio

AUTO = Server(url="http://127.0.0.1/sse")


def refused(status: int | None, code: str = "E-HTTP-STATUS") -> TransportError:
    return TransportError("no", Certainty.REJECTED, code=code, status=status)


@pytest.mark.parametrize("status", [400, 404, 405, 406, 415, 422, 501])
def test_request_rejection_may_mean_legacy_sse(status: int) -> None:
    assert may_be_legacy_sse(AUTO, refused(status))
    assert may_be_legacy_sse(AUTO, JSONRPCError(-32600, "no", status=status))


@pytest.mark.parametrize("status", [None, 200, 301, 401, 403, 407, 408, 421, 425, 429, 500, 502, 503])
def test_auth_and_temporary_failures_do_not_mean_legacy_sse(status: int | None) -> None:
    assert not may_be_legacy_sse(AUTO, refused(status))


def test_only_url_without_fixed_transport_is_probed() -> None:
    for server in (
        Server(command="x"),
        Server(url="http://127.0.0.1/sse", sse=True),
        Server(url="http://127.0.0.1/sse", era="modern"),
    ):
        assert not may_be_legacy_sse(server, refused(405))


@asynccontextmanager
async def posting(answer: bytes) -> AsyncIterator[LegacySseServer]:
    """A server of 2024-11-05 that answers a POST to the address of its stream so."""

    async def react(server: LegacySseServer, conn: Conn, request: Received) -> None:
        if request.target == "/sse":
            await conn.send(answer)
        else:
            await answer_normally(server, conn, request)

    async with serve_legacy_sse(react) as server:
        yield server


async def ready(server: Server | str | dict[str, object]) -> ServerStatus:
    async with Hub({"old": server}, catalog_storage=None) as hub:
        await hub.wait_ready("old", timeout=10)
        assert (await hub.call_tool("old.act", {"nonce": "n"})).data == {"nonce": "n"}
        return hub.status()["old"]


@pytest.mark.parametrize(
    "answer",
    [
        response(405),
        response(404, b"<h1>Cannot POST /sse</h1>", Content_Type="text/html"),
        response(400, b"Bad Request"),
        response(501),
        response(202, b"Accepted"),
        json_response({"detail": "Method Not Allowed"}, 405),
        json_response({"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "Method not allowed."}}, 405),
        EVENTS + chunk(b"event: endpoint\ndata: /messages?session=other\n\n"),
    ],
)
async def test_legacy_server_is_detected_for_any_post_response(answer: bytes) -> None:
    async with posting(answer) as server:
        status = await ready(server.url)
        assert (status.transport, status.era, status.protocol) == ("sse", "legacy", "2024-11-05")
        assert status.why == "ready, speaking 2024-11-05 over HTTP+SSE, which is deprecated"


async def test_sse_entry_skips_detection() -> None:
    async with posting(response(405)) as server:
        status = await ready({"url": server.url, "type": "sse"})
        assert (status.transport, server.posts[0].target) == ("sse", "/messages?session=s-1")
        assert status.why.endswith("deprecated")


async def test_detected_transport_is_used_first_on_restart() -> None:
    async with posting(response(405)) as server, Hub({"old": server.url}, catalog_storage=None) as hub:
        await hub.wait_ready("old", timeout=10)
        asked = len([post for post in server.posts if post.target == "/sse"])
        server.streams[-1].writer.close()
        async with asyncio.timeout(10):
            while hub.status()["old"].restarts == 0 or hub.status()["old"].state != "ready":
                await asyncio.sleep(0.01)
        assert len([post for post in server.posts if post.target == "/sse"]) == asked == 2
        assert "the stream was lost" in hub.status()["old"].why


async def test_first_rejection_is_reported_without_stream() -> None:
    async with peer(reacting(_refuse)) as server, Hub({"old": server.url}, catalog_storage=None) as hub:
        with pytest.raises(ServerUnavailable) as caught:
            await hub.wait_ready("old", timeout=10)
        assert "(404)" in str(caught.value)


async def _refuse(conn: Conn, request: Received) -> None:
    await conn.send(response(404 if request.method == "POST" else 406))


async def test_legacy_server_with_foreign_endpoint_is_reported() -> None:
    async with posting(response(405)) as server, Hub({"old": server.url}, catalog_storage=None) as hub:
        server.endpoint = "http://127.0.0.1:1/messages"
        with pytest.raises(ServerUnavailable) as caught:
            await hub.wait_ready("old", timeout=10)
        assert caught.value.code == "E-SSE-ENDPOINT"


async def test_silent_stream_is_not_a_legacy_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of Streamable HTTP may have a GET stream too, which begins with nothing."""
    monkeypatch.setattr(session_module, "SSE_PROBE_TIMEOUT_S", 0.2)

    async def react(conn: Conn, request: Received) -> None:
        await conn.send(response(400) if request.method == "POST" else EVENTS)

    async with peer(reacting(react)) as server, Hub({"old": server.url}, catalog_storage=None) as hub:
        with pytest.raises(ServerUnavailable) as caught:
            await hub.wait_ready("old", timeout=10)
        assert "(400)" in str(caught.value)


async def test_busy_server_is_not_probed_for_stream() -> None:
    seen: list[str] = []

    async def react(conn: Conn, request: Received) -> None:
        seen.append(request.method)
        await conn.send(response(503))

    async with peer(reacting(react)) as server, Hub({"old": server.url}, catalog_storage=None) as hub:
        with pytest.raises(ServerUnavailable):
            await hub.wait_ready("old", timeout=10)
    assert set(seen) == {"POST"}


async def test_periodic_stream_cuts_do_not_fail_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolway.upstream.start_policy.EXPECTED_LIFETIME_S", 0.0)
    async with FakeHttp(transport="sse") as fake, Hub({"old": fake.url}, catalog_storage=None) as hub:
        await hub.wait_ready("old")
        for number in range(1, 9):
            fake.endpoint.cut_streams(clean=True)  # type: ignore[attr-defined]
            async with asyncio.timeout(30):
                while hub.status()["old"].restarts < number or hub.status()["old"].state != "ready":
                    await asyncio.sleep(0.005)
            assert (await hub.call_tool("old.echo", {"text": "hi"})).text == "hi"


async def test_static_credential_is_sent_on_stream_and_messages() -> None:
    """A static credential of the entry goes with the stream and with every message."""
    async with posting(response(405)) as server:
        await ready(Server(url=server.url, headers={"Authorization": "Bearer t"}, timeout=Timeout(total=5)))
        sent = {request.headers.get("authorization") for request in (*server.gets, *server.posts)}
        assert sent == {"Bearer t"}
