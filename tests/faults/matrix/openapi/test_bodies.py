"""HTTP APIs whose connections and bodies end early, crawl, or carry too much."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from tests.faults.fault_lab import lab
from tests.faults.matrix.http.web_servers import short_limits
from tests.faults.matrix.openapi.api_server import React, Turn, api
from tests.timing import within
from tests.upstream.raw_http import EVENTS, chunk, json_response, response
from toolway import OutcomeUnknown, ProtocolError

pytestmark = pytest.mark.anyio
__all__ = ["short_limits"]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
EVENT = b'data: {"part": 1}\n\n'


def sending(data: bytes, *, ends: str = "") -> React:
    async def react(turn: Turn) -> None:
        turn.take_effect()
        await turn.conn.send(data)
        if ends == "reset":
            turn.conn.reset()
        elif ends == "close":
            turn.conn.writer.close()

    return react


@pytest.mark.fault("B4")
async def test_reset_fails_only_its_own_call_of_fifty() -> None:
    async def react(turn: Turn) -> None:
        turn.take_effect()
        await asyncio.sleep(0.05)
        if turn.arguments.get("word") == "reset":
            turn.conn.reset()
        else:
            await turn.conn.send(turn.good)

    async with api(react) as server, lab({"bad": server.entry()}) as bench:
        server.effects = str(bench.effects)
        beside = [bench.start("bad.act", {"effect": True}) for _ in range(49)]
        outcome = (await bench.call("bad.act", {"effect": True, "word": "reset"})).expect(OutcomeUnknown, "unknown")
        assert bench.happened(outcome) == 1
        for call in beside:
            (await call).expect(None)


@pytest.mark.fault("B4")
async def test_read_is_repeated_after_reset() -> None:
    async def react(turn: Turn) -> None:
        if turn.number < 2:
            turn.conn.reset()
        else:
            await turn.answer_well()

    async with api(react) as server, lab({"bad": server.entry()}) as bench:
        outcome = (await bench.call("bad.look")).expect(None)
        assert outcome.reply is not None and outcome.reply.attempts == 3


@pytest.mark.fault("B5")
async def test_connection_closed_between_calls_fails_no_call() -> None:
    async def react(turn: Turn) -> None:
        await turn.answer_well()
        turn.conn.writer.close()

    async with api(react) as server, lab({"bad": server.entry()}) as bench:
        server.effects = str(bench.effects)
        for _ in range(10):
            outcome = (await bench.call("bad.act", {"effect": True}, max_attempts=1)).expect(None)
            assert bench.happened(outcome) == 1
            await asyncio.sleep(0.02)


@pytest.mark.fault("B13", "B14")
async def test_event_stream_counts_as_answer_only_when_complete() -> None:
    whole = EVENTS + chunk(EVENT) + chunk(EVENT) + b"0\r\n\r\n"
    async with api(sending(whole)) as server, lab({"bad": server.entry()}) as bench:
        server.effects = str(bench.effects)
        outcome = (await bench.call("bad.talk", {"effect": True}, echoes=False)).expect(None)
        assert outcome.text.count("part") == 2
        for cut in (len(EVENTS), len(EVENTS) + 3, len(EVENTS) + len(chunk(EVENT)), len(whole) - 5):
            for ends in ("reset", "close"):
                server.react = sending(whole[:cut], ends=ends)
                outcome = await bench.call("bad.talk", {"effect": True}, echoes=False)
                assert type(outcome.error) in (OutcomeUnknown, ProtocolError)
                assert (outcome.executed, bench.happened(outcome)) == ("unknown", 1)
            server.react = sending(whole)
            for _ in range(2):
                (await bench.call("bad.talk", echoes=False)).expect(None)
        assert len(server.turns) == 1 + 8 + 8  # nothing was asked for again


@pytest.mark.fault("B15", "B16")
async def test_stream_or_body_over_the_limit_is_rejected() -> None:
    async def flood(turn: Turn) -> None:
        turn.take_effect()
        await turn.conn.send(EVENTS)
        while not turn.conn.writer.is_closing():
            await turn.conn.send(chunk(b": nothing\n" * 10_000))
            await asyncio.sleep(0)

    async with (
        api(flood) as server,
        lab({"bad": server.entry(limits={"maxMessageBytes": 1_000_000})}, memory=24) as bench,
    ):
        server.effects = str(bench.effects)
        outcome = (await bench.call("bad.talk", {"effect": True})).expect(ProtocolError, "unknown")
        assert outcome.error is not None and outcome.error.code == "E-HTTP-LIMIT"
        server.react = sending(HEAD + b"Content-Length: 1000000000\r\n\r\n" + b" " * 100_000)
        (await bench.call("bad.act", {"effect": True})).expect(ProtocolError, "unknown")


@pytest.mark.fault("B16")
async def test_bad_body_fails_only_its_own_call() -> None:
    good = b'{"nonce": "x"}'
    bodies = {
        "cut": HEAD + b"Content-Length: 100\r\n\r\n" + good,
        "chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
        "utf8": json_response({"nonce": "x"}).replace(b"x", b"\xe9"),
        "bom": response(200, b"\xef\xbb\xbf" + good, Content_Type="application/json"),
        "deep": response(200, b"[" * 10_000 + b"]" * 10_000, Content_Type="application/json"),
        "twice": response(200, b'{"nonce": "a", "nonce": "b"}', Content_Type="application/json"),
        "huge": response(200, b'{"nonce": 1e999}', Content_Type="application/json"),
        "trailing": response(200, good + b"garbage", Content_Type="application/json"),
    }
    async with api() as server, lab({"bad": server.entry()}) as bench:
        server.effects = str(bench.effects)
        for name, data in bodies.items():

            async def react(turn: Turn, name: str = name, data: bytes = data) -> None:
                if turn.arguments.get("word") != "bad":
                    await turn.answer_well()
                    return
                turn.take_effect()
                await turn.conn.send(data)
                if name == "cut":
                    turn.conn.writer.close()

            server.react = react
            beside = [bench.start("bad.act", {"effect": True}) for _ in range(3)]
            outcome = await bench.call("bad.act", {"effect": True, "word": "bad"})
            assert type(outcome.error) in (OutcomeUnknown, ProtocolError), name
            assert (outcome.executed, bench.happened(outcome)) == ("unknown", 1), name
            for call in beside:
                (await call).expect(None)


@pytest.mark.fault("B16")
async def test_bytes_after_an_answer_are_not_the_next_answer() -> None:
    async def react(turn: Turn) -> None:
        turn.take_effect()
        surplus = [b"", b"x", b"\r\n\r\n", json_response({"nonce": "forged"}), response(200)][turn.number % 5]
        await turn.conn.send(turn.good + surplus)

    async with api(react) as server, lab({"bad": server.entry()}) as bench:
        server.effects = str(bench.effects)
        for _ in range(10):
            (await bench.call("bad.act", {"effect": True})).expect(None)
            await asyncio.sleep(0.01)


@pytest.mark.fault("B16", "B26")
@pytest.mark.usefixtures("short_limits")
async def test_slow_bodies_and_heads_fail_their_calls() -> None:
    async def react(turn: Turn) -> None:
        turn.take_effect()
        body = turn.arguments.get("word") == "body"
        await turn.conn.send(HEAD + b"Content-Length: 1000\r\n" + (b"\r\n" if body else b""))
        while not turn.conn.writer.is_closing():
            await turn.conn.send(b" " if body else b"X-More: 1\r\n")
            await asyncio.sleep(0.1)

    async with api(react) as server, lab({"bad": server.entry()}) as bench:
        server.effects = str(bench.effects)
        calls = [bench.start("bad.act", {"effect": True, "word": word}, timeout=20) for word in ("body", "head")]
        for call in calls:
            outcome = (await call).expect(OutcomeUnknown, "unknown")
            assert 0.9 < outcome.seconds < within(5)
            assert bench.happened(outcome) == 1


@pytest.mark.fault("B17")
async def test_unrequested_encoding_and_gzip_bomb_are_rejected() -> None:
    bomb = gzip.compress(b" " * 200_000_000, 9)
    async with api() as server, lab({"bad": server.entry(), "packed": server.entry(limits={"compression": True})}) as b:
        server.effects = str(b.effects)
        for body in (gzip.compress(b'{"nonce": "x"}'), bomb):
            data = response(200, body, Content_Type="application/json", Content_Encoding="gzip")
            server.react = sending(data)
            (await b.call("bad.act", {"effect": True})).expect(ProtocolError, "unknown")
        outcome = (await b.call("packed.act", {"effect": True})).expect(ProtocolError, "unknown")
        assert outcome.error is not None and outcome.error.code == "E-HTTP-LIMIT"
