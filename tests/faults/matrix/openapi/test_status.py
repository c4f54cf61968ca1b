"""What the HTTP status of an API says about a call, by its method."""

from __future__ import annotations

import datetime as dt
from email.utils import format_datetime
from typing import Any

import pytest

from tests.faults.fault_lab import lab
from tests.faults.matrix.openapi.api_server import Api, React, Turn, api
from tests.timing import within
from tests.upstream.raw_http import json_response, peer, response
from toolway import AccessDenied, OutcomeUnknown, Overloaded, ProtocolError, ServerUnavailable

pytestmark = pytest.mark.anyio

SLACK = 1.5  # seconds that a busy machine may add


def failing(status: int, times: int = 10**6, *, effect: bool = True, body: bytes = b"", **headers: str) -> React:
    """Answers the first calls with this status, the rest well."""

    async def react(turn: Turn) -> None:
        if turn.number >= times:
            await turn.answer_well()
            return
        if effect:
            turn.take_effect()
        await turn.conn.send(response(status, body, **headers))

    return react


async def calm_down(server: Api, bench: Any) -> None:
    """Good calls, so no breaker opens where another fault is the point."""
    react, server.react = server.react, failing(200, 0)
    for name in ("act", "mend", "look"):
        (await bench.call(f"bad.{name}", {"effect": True})).expect(None)
    server.react = react


@pytest.mark.fault("B7", "B8")
@pytest.mark.parametrize("name", ["act", "mend"])
async def test_failed_unsafe_operation_is_unknown_and_not_repeated(name: str) -> None:
    async with api() as server, lab({"bad": server.entry()}) as bench:
        server.effects = str(bench.effects)
        for status in (500, 501, 502, 503, 504, 507, 599, 408, 425):
            server.react = failing(status)
            outcome = (await bench.call(f"bad.{name}", {"effect": True})).expect(OutcomeUnknown, "unknown")
            assert outcome.error is not None
            assert (outcome.error.attempts, bench.happened(outcome)) == (1, 1)
            assert str(status) in str(outcome.error)
            await calm_down(server, bench)


@pytest.mark.fault("B7", "B8")
@pytest.mark.parametrize("name", ["look", "put", "drop"])
async def test_idempotent_methods_are_repeated_after_failure(name: str) -> None:
    async with api() as server, lab({"bad": server.entry()}) as bench:
        server.effects = str(bench.effects)
        for status in (500, 502, 503, 504):
            server.turns.clear()
            server.react = failing(status, 2)
            outcome = (await bench.call(f"bad.{name}")).expect(None)
            assert outcome.reply is not None
            assert (outcome.reply.attempts, len(server.turns)) == (3, 3)
            await calm_down(server, bench)


@pytest.mark.fault("B8")
async def test_status_503_with_retry_after_is_retried() -> None:
    async with api(failing(503, 1, effect=False, Retry_After="1")) as server, lab({"bad": server.entry()}) as bench:
        server.effects = str(bench.effects)
        outcome = (await bench.call("bad.act", {"effect": True})).expect(None)
        assert outcome.reply is not None
        assert (outcome.reply.attempts, bench.happened(outcome)) == (2, 1)
        assert 1.0 <= outcome.seconds < within(1.1 + SLACK)
        server.react = failing(503, effect=False, Retry_After="30")
        refused = (await bench.call("bad.act", timeout=5)).expect(Overloaded, "no")
        assert refused.error is not None and refused.error.retry_after == 30
        assert refused.seconds < within(1)


@pytest.mark.fault("B9")
async def test_status_429_is_retried_after_the_requested_wait() -> None:
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    until = format_datetime(now + dt.timedelta(seconds=1), usegmt=True)
    ways: list[Any] = [{"Retry_After": "1"}, {"Date": format_datetime(now, usegmt=True), "Retry_After": until}]
    for headers in ways:
        react = failing(429, 1, effect=False, **headers)
        async with api(react) as server, lab({"bad": server.entry()}) as bench:
            server.effects = str(bench.effects)
            calls = [bench.start("bad.act", {"effect": True}) for _ in range(5)]
            for call in calls:
                (await call).expect(None)
            # Later calls waited too: no request was sent before the wait was over.
            refused, *taken = server.turns
            assert min(turn.at for turn in taken if turn.at - refused.at > 0.3) - refused.at >= 0.99


@pytest.mark.fault("B9")
@pytest.mark.parametrize("value", ["soon", "-5", "1e3", "9" * 400])
async def test_unreadable_retry_after_is_ignored(value: str) -> None:
    react = failing(429, 1, effect=False, Retry_After=value)
    async with api(react) as server, lab({"bad": server.entry()}) as bench:
        server.effects = str(bench.effects)
        outcome = (await bench.call("bad.act", {"effect": True})).expect(None)
        assert outcome.seconds < within(1 + SLACK)


@pytest.mark.fault("B9")
async def test_retry_after_of_years_fails_at_once() -> None:
    react = failing(429, effect=False, Retry_After="1000000000")
    async with api(react) as server, lab({"bad": server.entry()}) as bench:
        outcome = (await bench.call("bad.act")).expect(Overloaded, "no")
        assert outcome.seconds < within(1) and len(server.turns) == 1


@pytest.mark.fault("B7")
async def test_client_error_status_is_returned_as_tool_error() -> None:
    problem = b'{"title": "out of stock", "detail": "try blue"}'
    async with api() as server, lab({"bad": server.entry()}) as bench:
        server.effects = str(bench.effects)
        for status in (400, 402, 404, 409, 410, 412, 418, 422, 423, 428, 451):
            for name in ("act", "look", "put"):
                server.turns.clear()
                server.react = failing(status, effect=False, body=problem, Content_Type="application/problem+json")
                outcome = (await bench.call(f"bad.{name}", {"effect": True})).expect(None)
                assert outcome.reply is not None and outcome.reply.is_error
                assert "try blue" in outcome.reply.text and str(status) in outcome.reply.text
                assert "structuredContent" not in outcome.reply.raw
                assert (outcome.reply.attempts, len(server.turns)) == (1, 1)
        server.react = failing(200, 0)  # and after thirty of them no breaker is open
        (await bench.call("bad.act", {"effect": True})).expect(None)


@pytest.mark.fault("B7")
async def test_rejected_request_reports_not_executed() -> None:
    kinds: dict[int, type[Any]] = {401: AccessDenied, 403: AccessDenied}
    async with api() as server, lab({"bad": server.entry()}) as bench:
        for status in (401, 403, 405, 406, 413, 415, 421):
            server.turns.clear()
            server.react = failing(status, effect=False, body=b"because")
            outcome = (await bench.call("bad.act", {"effect": True})).expect(kinds.get(status, ProtocolError), "no")
            assert outcome.error is not None and "because" in outcome.error.detail
            assert (outcome.error.attempts, len(server.turns)) == (1, 1)


@pytest.mark.fault("B19")
async def test_invalid_success_body_is_unknown() -> None:
    page = response(200, b"<html>log in</html>", Content_Type="text/html")
    torn = response(200, b'{"nonce": ', Content_Type="application/json")
    async with api() as server, lab({"bad": server.entry()}) as bench:
        server.effects = str(bench.effects)
        for data in (page, torn, response(200, b"{}{}", Content_Type="application/json")):

            async def react(turn: Turn, data: bytes = data) -> None:
                turn.take_effect()
                await turn.conn.send(data)

            server.react = react
            outcome = (await bench.call("bad.act", {"effect": True})).expect(ProtocolError, "unknown")
            assert bench.happened(outcome) == 1
            await calm_down(server, bench)


@pytest.mark.fault("B19")
async def test_answer_violating_output_schema_counts_as_executed() -> None:
    async def react(turn: Turn) -> None:
        turn.take_effect()
        await turn.conn.send(json_response({"nonce": 7}))

    async with api(react) as server, lab({"bad": server.entry()}) as bench:
        server.effects = str(bench.effects)
        outcome = (await bench.call("bad.act", {"effect": True})).expect(ProtocolError, "yes")
        assert outcome.error is not None and outcome.error.code == "E-OUTPUT-SCHEMA"
    loose = {"openapi": {"outputs": False}}
    async with api(react) as server, lab({"bad": server.entry(**loose)}) as bench:
        (await bench.call("bad.act", echoes=False)).expect(None)


@pytest.mark.fault("B2")
async def test_unreachable_api_reports_not_executed() -> None:
    async with api() as server, lab({"bad": server.entry(retryDelayMs=10)}) as bench:
        server.effects = str(bench.effects)
        (await bench.call("bad.act", {"effect": True})).expect(None)
        port = server.peer.port
    async with api() as other:
        entry = {**other.entry(), "url": f"http://127.0.0.1:{port}/api/v1"}
        async with lab({"bad": entry}) as bench:
            outcome = (await bench.call("bad.act", {"effect": True})).expect(ServerUnavailable, "no")
            assert outcome.seconds < within(5)
            assert not other.turns


@pytest.mark.fault("B20")
async def test_same_origin_redirect_is_followed_with_one_effect() -> None:
    async def react(turn: Turn) -> None:
        if turn.request.target.startswith("/api/v1"):
            moved = turn.request.target.replace("/api/v1", "/else")
            await turn.conn.send(response(codes[turn.request.method], Location=moved))
        else:
            await turn.answer_well()

    async with api(react) as server, lab({"bad": server.entry()}) as bench:
        server.effects = str(bench.effects)
        for get, post in ((301, 307), (302, 308), (303, 307), (307, 308), (308, 307)):
            codes = {"GET": get, "POST": post}
            for name in ("act", "look"):
                outcome = (await bench.call(f"bad.{name}", {"effect": True}, max_attempts=1)).expect(None)
                assert bench.happened(outcome) == 1
        assert [turn.request.method for turn in server.turns[:4]] == ["POST", "POST", "GET", "GET"]


@pytest.mark.fault("B20")
@pytest.mark.attack("held-44")
async def test_cross_origin_redirect_is_not_followed() -> None:
    async def never(conn: Any) -> None:
        raise AssertionError("the other origin was connected to")

    secret = {"headers": {"X-Key": "canary"}, "openapi": {"security": {"type": "http", "token": "canary-token"}}}
    async with peer(never) as other, api() as server, lab({"bad": server.entry(**secret)}) as bench:
        server.effects = str(bench.effects)
        places = (other.url, f"//127.0.0.1:{other.port}/", "http://169.254.169.254/", "file:///etc/passwd", "http:///")
        for to in places:
            for status in (301, 302, 303, 307, 308):
                server.react = failing(status, effect=False, Location=to)
                (await bench.call("bad.look")).expect(ProtocolError, "no")
                kind, executed = (ProtocolError, "no") if status >= 307 else (OutcomeUnknown, "unknown")
                outcome = await bench.call("bad.act", idempotent=False)
                outcome.expect(kind, executed)  # "see there" may be said when the work is done
                assert "canary" not in str(outcome.error)
                if status < 307:
                    await calm_down(server, bench)
        assert other.connections == 0


@pytest.mark.fault("B20")
async def test_redirect_loop_ends() -> None:
    async with api(failing(307, effect=False, Location="/api/v1/act")) as server, lab({"bad": server.entry()}) as bench:
        (await bench.call("bad.act")).expect(ProtocolError, "no")
        assert len(server.turns) == 4
