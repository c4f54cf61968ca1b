"""HTTP+SSE where it differs: all answers come on one stream, and a POST only acknowledges."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from tests.faults.fault_lab import Served, lab
from tests.faults.matrix.http.scripted_server import SseTurn, Turn, event, scripted
from tests.faults.matrix.http.test_eras import restarted
from tests.faults.matrix.http.test_smuggling import answers
from tests.faults.matrix.http.web_servers import behind_proxy, calm_down, often, short_limits, web
from tests.timing import within
from tests.upstream.legacy_sse_server import serve_legacy_sse
from tests.upstream.raw_http import Conn, chunk, peer, response
from toolway import CallTimeout, HealthCheck, OutcomeUnknown, ProtocolError, Server, ServerUnavailable, Timeout
from toolway.testing import FakeHttp
from toolway.testing.http_endpoint import Endpoint
from toolway.testing.http_server import SseEndpoint
from toolway.upstream.transports import legacy_sse, legacy_sse_stream
from toolway.upstream.transports import streamable_http as http_link

pytestmark = pytest.mark.anyio
__all__ = ["short_limits"]

SPOILT = ("bad_utf8", "bom", "deep", "duplicate_keys", "huge_number", "truncated", "both_result_and_error")


async def crawling(conn: Conn, data: bytes, step: int = 1) -> None:
    """Byte by byte, until the client has had enough."""
    for at in range(0, len(data), step):
        if conn.writer.is_closing():
            return
        await conn.send(data[at : at + step])
        await asyncio.sleep(0.05)


@pytest.mark.fault("B4", "B13")
async def test_stream_cut_at_any_moment_leaves_at_most_one_effect(dice: random.Random) -> None:
    fake = web("sse")
    assert isinstance(fake.endpoint, SseEndpoint)
    async with fake, lab({"bad": often(fake.url)}) as bench:
        fake.server.effects_path = str(bench.effects)
        for number in range(12):
            calls = [bench.start("bad.counter") for _ in range(3)]
            await asyncio.sleep(dice.random() * 0.01)
            fake.endpoint.cut_streams(clean=number % 2 == 0)
            for call in calls:
                if not (await call).ok:
                    (await call).expect(OutcomeUnknown, "unknown")
            (await bench.call("bad.echo")).expect(None)
        assert {bench.happened(call) for call in bench.calls} <= {0, 1}


@pytest.mark.fault("B5")
async def test_closed_or_idle_connection_carries_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_link, "NEW_CONNECTION_MAX_IDLE_S", 0.1)
    fake = web("sse")
    async with lab({"bad": fake}) as bench:
        for _ in range(5):
            closing = {"mode": "close_after_response", "effect": True}
            (await bench.call("bad.bad", closing, max_attempts=1)).expect(None)
            await asyncio.sleep(0.02)
        for _ in range(3):
            before = fake.stats.connections
            (await bench.call("bad.counter", max_attempts=1)).expect(None)
            assert fake.stats.connections == before + 1
            await asyncio.sleep(0.15)
        assert bench.hub.status()["bad"].restarts == 0


@pytest.mark.fault("B6")
async def test_silent_peer_fails_its_call_and_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_link, "NEW_CONNECTION_MAX_IDLE_S", 0.2)
    async with behind_proxy("sse") as (fake, proxy):
        server = Server(url=proxy.url_for("/sse"), health=HealthCheck(timeout=1.5))
        async with lab({"bad": server}) as bench:
            fake.server.effects_path = str(bench.effects)
            call = bench.start("bad.sleep", {"seconds": 0.3}, timeout=1)
            await asyncio.sleep(0.1)
            proxy.freeze()
            (await call).expect(CallTimeout, "unknown")
            await bench.until(lambda: bench.hub.status()["bad"].restarts == 1, 5)
            (await bench.call("bad.counter")).expect(None)
            await proxy.cut_connections()


@pytest.mark.fault("B13")
async def test_resume_without_result_is_tried_once() -> None:
    async def react(turn: Turn) -> None:
        assert isinstance(turn, SseTurn)
        turn.take_effect()
        await turn.send(b"id: 7\n" + event({"jsonrpc": "2.0", "method": "notifications/x"}))
        await turn.conn.send(response(202))
        turn.server.streams[-1].writer.close()  # type: ignore[attr-defined]

    async with scripted("sse", react) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        outcome = (await bench.call("bad.act", {"effect": True}, timeout=10)).expect(OutcomeUnknown, "unknown")
        assert outcome.seconds < within(3)
        asked = [r.headers["last-event-id"] for r in server.requests if "last-event-id" in r.headers]
        assert asked == ["7"]


@pytest.mark.fault("B15")
async def test_progress_over_the_rate_is_dropped() -> None:
    reports: list[float] = []

    async def react(turn: Turn) -> None:
        assert isinstance(turn, SseTurn)
        await turn.conn.send(response(202))
        token = turn.request.json["params"]["_meta"]["progressToken"]
        params = {"progressToken": token, "progress": 1}
        report = event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        for _ in range(30):
            await turn.send(report * 50)
        await turn.send(event(turn.message))

    async with scripted("sse", react) as server, lab({"bad": server.url}) as bench:
        outcome = await bench.call("bad.look", progress_callback=lambda p, t, m: reports.append(p))
        outcome.expect(None)
        assert 0 < len(reports) < 1400


@pytest.mark.fault("B16")
async def test_bad_answer_fails_only_its_own_call() -> None:
    async with lab({"bad": web("sse")}) as bench:
        for mode in SPOILT:
            beside = [bench.start("bad.sleep", {"seconds": 0.05}) for _ in range(3)]
            outcome = (await bench.call("bad.bad", {"mode": mode, "effect": True})).expect(ProtocolError, "unknown")
            assert bench.happened(outcome) == 1, mode
            for call in beside:
                (await call).expect(None)
            await calm_down(bench)
        assert bench.hub.status()["bad"].restarts == 0


@pytest.mark.fault("B16", "B26")
@pytest.mark.usefixtures("short_limits")
async def test_slow_responses_and_events_fail_their_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy_sse_stream, "MIN_EVENT_RATE", (1024, 1.0))

    async def react(turn: Turn) -> None:
        assert isinstance(turn, SseTurn)
        turn.take_effect()
        if turn.request.json["params"]["name"] == "look":
            await crawling(turn.conn, b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n" + b"X: y\r\n" * 100)
        else:
            await turn.conn.send(response(202))
            stream = turn.server.streams[-1]  # type: ignore[attr-defined]
            await crawling(stream, b"".join(chunk(bytes([byte])) for byte in event(turn.message)), 6)

    async with scripted("sse", react) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        head = (await bench.call("bad.look", {"effect": True}, max_attempts=1)).expect(OutcomeUnknown, "unknown")
        body = (await bench.call("bad.act", {"effect": True}, max_attempts=1)).expect(ProtocolError, "unknown")
        for outcome in (head, body):
            assert 0.9 < outcome.seconds < within(5)
            assert bench.happened(outcome) == 1


@pytest.mark.fault("B26")
@pytest.mark.usefixtures("short_limits")
async def test_stream_with_slow_head_fails() -> None:
    async def crawl(conn) -> None:
        await conn.request()
        await crawling(conn, b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000)

    async with peer(crawl) as other, lab({}) as bench:
        await bench.add("bad", Server(url=other.url, sse=True))
        outcome = (await bench.call("bad.act", timeout=10, max_attempts=1)).expect(ServerUnavailable, "no")
        assert outcome.error is not None and outcome.error.code == "E-HTTP-SLOW"
        assert outcome.seconds < within(5)


@pytest.mark.fault("B18")
async def test_answers_with_invalid_ids_are_dropped() -> None:
    ids = (None, True, 1.5, [7], {"id": 7}, "", 10**30, -1, 999_999)

    async def react(turn: Turn) -> None:
        assert isinstance(turn, SseTurn)
        await turn.conn.send(response(202))
        for id_ in ids:
            await turn.send(event({**turn.message, "id": id_, "result": {"structuredContent": {"nonce": "forged"}}}))
        await turn.send(event(turn.message) * 2)

    async with scripted("sse", react) as server, lab({"bad": server.url}) as bench:
        for _ in range(2):
            (await bench.call("bad.act")).expect(None)
        assert bench.hub.status()["bad"].restarts == 0


@pytest.mark.fault("B19")
async def test_acknowledgement_without_answer_is_unknown() -> None:
    async with lab({"bad": web("sse")}) as bench:
        page = (await bench.call("bad.bad", {"mode": "html", "effect": True})).expect(ProtocolError, "unknown")
        assert (page.seconds < within(1), bench.happened(page)) == (True, 1)
        for mode in ("empty_202", "no_content"):
            outcome = await bench.call("bad.bad", {"mode": mode, "effect": True}, timeout=0.3)
            outcome.expect(CallTimeout, "unknown")
            assert bench.happened(outcome) == 1
            await calm_down(bench)


@pytest.mark.fault("B20")
async def test_cross_origin_message_endpoint_is_never_connected() -> None:
    async def never(conn) -> None:
        raise AssertionError("another origin was connected to")

    async with peer(never) as other, AsyncExitStack() as stack:
        places = (other.url, f"//127.0.0.1:{other.port}/x", "http://169.254.169.254/latest", "https://127.0.0.1/x", "")
        servers = [await stack.enter_async_context(serve_legacy_sse(endpoint=place)) for place in places]
        secret = {"Authorization": "Bearer canary"}
        async with lab(
            {f"bad-{n}": Server(url=s.url, headers=secret, sse=True) for n, s in enumerate(servers)}
        ) as bench:
            for number, server in enumerate(servers):
                outcome = (await bench.call(f"bad-{number}.act", max_attempts=1)).expect(ServerUnavailable, "no")
                assert outcome.error is not None and outcome.error.code == "E-SSE-ENDPOINT"
                assert (other.connections, server.posts) == (0, [])


@pytest.mark.fault("B22")
async def test_two_entries_of_one_server_never_share_a_session() -> None:
    fake = FakeHttp(transport="sse")
    seen: dict[str, set[str]] = {"ann": set(), "ben": set()}
    serve = fake.endpoint.serve

    async def watch(exchange):
        if exchange.request.method == "POST" and "session=" in exchange.request.target:
            seen[exchange.request.headers["x-caller"]].add(exchange.request.target)
        await serve(exchange)

    fake.endpoint.serve = watch  # type: ignore[method-assign]
    async with lab({"ann": Served(fake, {"headers": {"X-Caller": "ann"}})}) as bench:
        await bench.add("ben", Server(url=fake.url, headers={"X-Caller": "ben"}))
        for name in ("ann", "ben", "ann", "ben"):
            (await bench.call(f"{name}.counter")).expect(None)
    assert (len(seen["ann"]), len(seen["ben"])) == (1, 1)
    assert not seen["ann"] & seen["ben"]


@pytest.mark.fault("B24")
@pytest.mark.parametrize("now", ["http", "sse"])
async def test_transport_change_is_detected_without_execution(now: str) -> None:
    """At one address: a server that was updated, or put back."""
    fake = FakeHttp()
    kinds = {"http": lambda: Endpoint(fake.server, fake.endpoint.faults, "json"), "sse": lambda: _old(fake)}
    fake.endpoint = kinds["sse" if now == "http" else "http"]()
    async with lab({"bad": fake}) as bench:
        (await bench.call("bad.counter")).expect(None)
        before = bench.hub.status()["bad"].transport
        await fake.stop()
        fake.server.era, fake.endpoint = "both", kinds[now]()
        await fake.start()
        if now == "http":  # the end of the stream is seen at once
            await bench.until(lambda: bench.hub.status()["bad"].restarts, 10)
        await bench.until(lambda: bench.hub.status()["bad"].state == "ready", 10)
        if now == "sse":
            outcome = await bench.call("bad.counter", max_attempts=1)
            assert (outcome.ok, outcome.executed) in ((False, "no"), (True, "yes"))
            await restarted(bench)
        (await bench.call("bad.counter")).expect(None)
        assert (before, bench.hub.status()["bad"].transport) == ("sse" if now == "http" else "http", now)


def _old(fake: FakeHttp) -> SseEndpoint:
    made = SseEndpoint(fake.server, fake.endpoint.faults, "json")
    made.path = "/mcp"
    return made


@pytest.mark.fault("B24")
async def test_handshake_with_unknown_version_is_unavailable() -> None:
    async with serve_legacy_sse() as server, lab({}) as bench:
        answer = server.answer
        server.answer = lambda request: {  # type: ignore[method-assign]
            **answer(request),
            "result": {"protocolVersion": "1999-12-31", "capabilities": {}, "serverInfo": {}},
        }
        await bench.add("bad", Server(url=server.url, timeout=Timeout(start=5)))
        outcome = (await bench.call("bad.act", timeout=10)).expect(ServerUnavailable, "no")
        assert "1999-12-31" in str(outcome.error)


@pytest.mark.fault("B29")
async def test_ambiguous_http_response_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy_sse, "LATE_RESULT_TIMEOUT_S", 0.05)

    async def react(turn: Turn) -> None:
        how = turn.request.json["params"]["arguments"].get("how")
        if not how:
            await turn.answer_well()
            return
        turn.take_effect()
        await turn.conn.send(answers(b"Accepted")[how].replace(b"200 OK", b"202 Accepted"))
        turn.conn.writer.close()

    async with scripted("sse", react) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        for how in answers(b""):
            outcome = await bench.call("bad.act", {"how": how, "effect": True}, timeout=0.5)
            # A head that can be read in one way says that the call was taken, whatever follows it.
            outcome.expect(CallTimeout if "chunk" in how.split() and "length" not in how else ProtocolError, "unknown")
            for _ in range(2):  # so no breaker opens
                (await bench.call("bad.act", {"effect": True})).expect(None)


@pytest.mark.fault("B29")
async def test_non_ascii_event_id_is_not_used_to_resume() -> None:
    async def react(turn: Turn) -> None:
        assert isinstance(turn, SseTurn)
        turn.take_effect()
        await turn.conn.send(response(202))
        await turn.send("id: ünïcode\ndata: {}\n\n".encode())
        turn.server.streams[-1].writer.close()  # type: ignore[attr-defined]

    async with scripted("sse", react) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        outcome = await bench.call("bad.act", {"effect": True}, timeout=5)
        assert (outcome.ok, outcome.executed, outcome.seconds < within(2)) == (False, "unknown", True)
        assert not [request for request in server.requests if "last-event-id" in request.headers]
