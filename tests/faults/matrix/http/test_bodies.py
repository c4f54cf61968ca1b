"""Bodies that are too long, too short, too slow, compressed, or another call's."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from tests.faults.fault_lab import ERAS, WAYS, lab
from tests.faults.matrix.http.scripted_server import Turn, scripted
from tests.faults.matrix.http.web_servers import apart, calm_down, short_limits
from tests.timing import within
from tests.upstream.raw_http import END, EVENTS, event, json_response, response
from toolway import Limits, OutcomeUnknown, ProtocolError, Server
from toolway.testing import FakeHttp

pytestmark = pytest.mark.anyio
__all__ = ["short_limits"]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@ERAS
@pytest.mark.fault("B16")
async def test_bad_body_fails_only_its_own_call(era: str) -> None:
    modes = {
        "cut_body": OutcomeUnknown,
        "chunk_error": ProtocolError,
        "wrong_length=-10": ProtocolError,
        "bad_utf8": ProtocolError,
        "bom": ProtocolError,
        "deep": ProtocolError,
        "duplicate_keys": ProtocolError,
        "huge_number": ProtocolError,
        "truncated": ProtocolError,
        "both_result_and_error": ProtocolError,
    }
    async with lab({"bad": FakeHttp(era=era)}) as bench:
        for mode, error in modes.items():
            beside = [bench.start("bad.sleep", {"seconds": 0.05}) for _ in range(3)]
            outcome = (await bench.call("bad.bad", {"mode": mode, "effect": True})).expect(error, "unknown")
            assert bench.happened(outcome) == 1, mode
            for call in beside:
                (await call).expect(None)
            await calm_down(bench)


@WAYS
@pytest.mark.fault("B16")
async def test_body_over_the_limit_is_rejected(era: str) -> None:
    async with apart(era) as server, lab({"bad": server.url}, memory=24) as bench:
        for mode in ("body_mb=9", "body_mb=100"):
            outcome = await bench.call("bad.bad", {"mode": mode}, timeout=20)
            outcome.expect(ProtocolError, "unknown")
            (await bench.call("bad.echo")).expect(None)


@WAYS
@pytest.mark.fault("B16")
async def test_large_body_within_the_limit_delays_no_other_call(era: str) -> None:
    async with apart(era) as server, lab({"bad": server.url}, memory=96) as bench:
        (await bench.call("bad.bad", {"mode": "body_mb=7"}, timeout=20)).expect(None)


@ERAS
@pytest.mark.fault("B16", "B18")
async def test_bytes_after_an_answer_are_not_the_next_answer(era: str) -> None:
    """Bytes after the end of a response could be taken for the response to the next request on that connection."""

    async def react(turn: Turn) -> None:
        turn.take_effect()
        id_ = turn.request.json["id"]
        forged = [json_response(turn.server.answer(id_ + n, {"structuredContent": {}})) for n in range(3)]
        surplus = [b"", b"x", b"\r\n\r\n", *forged, response(200)][turn.number % 7]
        await turn.conn.send(turn.good + surplus)

    async with scripted(era, react) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        for _ in range(14):
            (await bench.call("bad.act", {"effect": True})).expect(None)
            await asyncio.sleep(0.01)


@ERAS
@pytest.mark.fault("B16", "B26")
@pytest.mark.usefixtures("short_limits")
async def test_slow_bodies_and_heads_fail_their_calls(era: str) -> None:
    async with lab({"bad": FakeHttp(era=era)}) as bench:
        modes = ("slow_body=0.1", "slow_head=0.1", "wrong_length=10")
        calls = [bench.start("bad.bad", {"mode": mode, "effect": True}, timeout=20) for mode in modes]
        for call in calls:
            outcome = (await call).expect(OutcomeUnknown, "unknown")
            assert 0.9 < outcome.seconds < within(5)
            assert bench.happened(outcome) == 1


@ERAS
@pytest.mark.fault("B26")
@pytest.mark.usefixtures("short_limits")
async def test_endless_head_fails_its_call(era: str) -> None:
    async def endless_lines(turn: Turn) -> None:
        turn.take_effect()
        await turn.conn.send(HEAD)
        if turn.number:
            await turn.conn.send(b"X-Long: " + b"x" * 100_000)
        while not turn.conn.writer.is_closing():
            await turn.conn.send(b"X-More: and more\r\n")
            await asyncio.sleep(0.01)

    async with scripted(era, endless_lines) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        outcome = await bench.call("bad.act", {"effect": True}, timeout=20)
        assert type(outcome.error) in (OutcomeUnknown, ProtocolError)
        assert (outcome.executed, outcome.seconds < within(5)) == ("unknown", True)
        (await bench.call("bad.act", {"effect": True}, timeout=20)).expect(ProtocolError, "unknown")


def with_and_without(url: str) -> dict[str, Server]:
    """One server as two entries: compression refused, which is the default, and accepted."""
    return {"plain": Server(url=url), "packed": Server(url=url, limits=Limits(compression=True))}


@ERAS
@pytest.mark.fault("B17")
async def test_gzip_bomb_is_rejected_within_memory_limit(era: str) -> None:
    async with apart(era) as server, lab(with_and_without(server.url), memory=24) as bench:
        for name in ("plain", "packed"):
            outcome = await bench.call(f"{name}.bad", {"mode": "gzip_bomb=200"}, timeout=20)
            outcome.expect(ProtocolError, "unknown")
            assert outcome.seconds < within(5)
            (await bench.call(f"{name}.bad")).expect(None)


@ERAS
@pytest.mark.fault("B17")
async def test_unsupported_encodings_are_rejected(era: str) -> None:
    once = gzip.compress(b" " * (4 << 20), 9)
    twice = gzip.compress(once)
    codings = {"br": once, "zstd": once, "gzip, gzip": twice, "deflate, gzip": twice}

    async def react(turn: Turn) -> None:
        turn.take_effect()
        coding = list(codings)[turn.number % len(codings)]
        await turn.conn.send(response(200, codings[coding], Content_Type="application/json", Content_Encoding=coding))

    async with scripted(era, react) as server, lab(with_and_without(server.url), memory=16) as bench:
        server.effects = str(bench.effects)
        for name in ("plain", "packed"):
            for _ in codings:
                outcome = (await bench.call(f"{name}.act", {"effect": True})).expect(ProtocolError, "unknown")
                assert bench.happened(outcome) == 1


@ERAS
@pytest.mark.fault("B18")
async def test_answer_with_id_of_another_call_fails_its_own_call(era: str) -> None:
    async def react(turn: Turn) -> None:
        turn.take_effect()
        if turn.number == 0:  # answered well, but only after the others have been answered with its id
            await asyncio.sleep(0.5)
            await turn.conn.send(turn.good)
            return
        message = {**turn.message, "id": turn.server.turns[0].request.json["id"]}
        stolen = json_response(message) if turn.number == 1 else EVENTS + event(message) + END
        await turn.conn.send(stolen)

    async with scripted(era, react) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        victim = bench.start("bad.act", {"effect": True})
        await bench.until(lambda: server.turns, 5)
        for _ in ("as JSON", "as an event"):
            (await bench.call("bad.act", {"effect": True})).expect(ProtocolError, "unknown")
        assert not victim.done()
        (await victim).expect(None)


@ERAS
@pytest.mark.fault("B18")
async def test_invalid_answer_ids_fail_their_calls(era: str) -> None:
    ids = (None, True, 1.5, [7], {"id": 7}, "", 10**30, -1)

    async def react(turn: Turn) -> None:
        turn.take_effect()
        await turn.conn.send(json_response({**turn.message, "id": ids[turn.number]}))

    async with scripted(era, react) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        for tool in ["act", "look"] * (len(ids) // 2):  # in turns, so the breaker of neither opens
            (await bench.call(f"bad.{tool}", {"effect": True}, max_attempts=1)).expect(ProtocolError, "unknown")
