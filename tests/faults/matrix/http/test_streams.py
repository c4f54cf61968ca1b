"""Event streams that are cut, end without an answer, or never end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.fault_lab import ERAS, WAYS, Served, lab
from tests.faults.matrix.http.scripted_server import Turn, event, scripted
from tests.faults.matrix.http.web_servers import apart, calm_down, web
from tests.timing import within
from tests.upstream.raw_http import END, EVENTS, chunk
from toolway import CallTimeout, OutcomeUnknown, ProtocolError

pytestmark = pytest.mark.anyio

CUTS = ("before", "between", "inside")
OFTEN = {"maxRestarts": 1000}  # where all answers come on one stream, its end is the link's


@WAYS
@pytest.mark.fault("B13")
async def test_cut_stream_is_unknown_and_reads_are_repeated(era: str) -> None:
    fake = web(era)
    async with lab({"bad": Served(fake, OFTEN)}) as bench:
        for where in CUTS:
            outcome = await bench.call("bad.bad", {"mode": f"cut_sse={where}", "effect": True})
            outcome.expect(OutcomeUnknown, "unknown")
            assert bench.happened(outcome) == 1
            await calm_down(bench)
            fake.set_mode(f"cut_sse={where};on=bad_read;times=1")
            read = (await bench.call("bad.bad_read", {"effect": True})).expect(None)
            assert bench.happened(read) == 2
        assert not fake.stats.resumes


@WAYS
@pytest.mark.fault("B13")
async def test_cut_stream_with_event_ids_resumes_in_legacy_era(era: str) -> None:
    fake = web(era)
    async with lab({"bad": fake}) as bench:
        for number, where in enumerate(CUTS, 1):
            arguments = {"mode": f"cut_sse={where}", "ids": "1", "effect": True}
            outcome = await bench.call("bad.bad", arguments, timeout=10)
            assert bench.happened(outcome) == 1
            if era == "modern":
                outcome.expect(OutcomeUnknown, "unknown")
                assert not fake.stats.resumes
            else:
                outcome.expect(None)
                assert len(fake.stats.resumes) == number
            await calm_down(bench)


@pytest.mark.fault("B13")
async def test_resume_without_result_is_tried_once() -> None:
    async def react(turn: Turn) -> None:
        turn.take_effect()
        await turn.conn.send(EVENTS + chunk(b"id: 7\n" + event({"jsonrpc": "2.0", "method": "notifications/x"})))
        turn.conn.writer.close()

    async with scripted("legacy", react) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        outcome = (await bench.call("bad.act", {"effect": True}, timeout=10)).expect(OutcomeUnknown, "unknown")
        assert outcome.seconds < within(3)
        asked = [r.headers["last-event-id"] for r in server.requests if "last-event-id" in r.headers]
        assert asked == ["7"]


@WAYS
@pytest.mark.fault("B14")
async def test_stream_ending_without_answer_is_unknown(era: str) -> None:
    async with lab({"bad": Served(web(era), OFTEN)}) as bench:
        for where in CUTS:
            arguments = {"mode": f"cut_sse={where}", "clean": "1", "effect": True}
            outcome = (await bench.call("bad.bad", arguments)).expect(OutcomeUnknown, "unknown")
            assert bench.happened(outcome) == 1
            await calm_down(bench)


@ERAS
@pytest.mark.fault("B14", "B18")
async def test_answer_after_the_end_of_its_stream_is_dropped(era: str) -> None:
    async def react(turn: Turn) -> None:
        turn.take_effect()
        if turn.number == 0:
            await turn.conn.send(EVENTS + END + chunk(event(turn.message)) + turn.good)
        else:
            await turn.conn.send(turn.good)

    async with scripted(era, react) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        (await bench.call("bad.act", {"effect": True})).expect(OutcomeUnknown, "unknown")
        for _ in range(3):
            (await bench.call("bad.act", {"effect": True})).expect(None)
        assert server.turns[0].conn is not server.turns[1].conn


@pytest.mark.parametrize("era", ["legacy", "sse"])
@pytest.mark.fault("B14", "B18")
async def test_late_answer_on_session_stream_is_dropped(era: str) -> None:
    fake = web(era)
    async with lab({"bad": fake}) as bench:
        await bench.until(lambda: [s for s in fake.sessions.values() if s.streams], 5)
        (session,) = fake.sessions.values()
        never = bench.start("bad.bad", {"mode": "never", "effect": True}, timeout=0.3)
        await bench.until(lambda: fake.endpoint.in_flight_ids, 2)
        (id_,) = fake.endpoint.in_flight_ids
        other = bench.start("bad.sleep", {"seconds": 0.5})
        (await never).expect(CallTimeout, "unknown")
        forged: dict[str, Any] = {"content": [], "structuredContent": {"nonce": "forged"}}
        # Where all answers come on one stream, as on a pipe, the id of another running call cannot be told from a true
        # one: such links are never shared by two callers.
        for late in (id_, id_ + 1 if isinstance(id_, int) and era == "legacy" else id_):
            session.send({"jsonrpc": "2.0", "id": late, "result": forged})
        (await other).expect(None)
        (await bench.call("bad.counter")).expect(None)


@WAYS
@pytest.mark.alone
@pytest.mark.fault("B15")
async def test_huge_comments_and_events_delay_no_other_call(era: str) -> None:
    """They come from its own process, so the time it takes to make them is not ours."""
    async with apart(era) as server, lab({"bad": server.url}) as bench:
        (await bench.call("bad.bad", {"mode": "sse_comment_flood=8"}, timeout=20)).expect(None)
        for mode in ("sse_event_mb=10", "sse_event_mb=50"):
            (await bench.call("bad.bad", {"mode": mode}, timeout=20)).expect(ProtocolError, "unknown")
            (await bench.call("bad.echo")).expect(None)
        endless = await bench.call("bad.bad", {"mode": "sse_comment_flood=100000"}, timeout=1)
        endless.expect(CallTimeout, "unknown")
        (await bench.call("bad.echo", timeout=5)).expect(None)


@WAYS
@pytest.mark.alone
@pytest.mark.fault("B15")
async def test_flood_of_progress_delays_no_other_call(era: str) -> None:
    async with apart(era) as server, lab({"bad": server.url}) as bench:
        (await bench.call("bad.bad", {"mode": "progress_flood=20000"}, timeout=20)).expect(None)
        endless = await bench.call("bad.bad", {"mode": "progress_flood=100000000"}, timeout=1)
        endless.expect(CallTimeout, "unknown")
        if era == "sse":  # all answers come on one stream, behind whatever else the server puts there
            bench.hub.restart_server("bad")
        (await bench.call("bad.echo", timeout=5)).expect(None)


@ERAS
@pytest.mark.fault("B15")
async def test_progress_over_the_rate_is_dropped(era: str) -> None:
    reports: list[float] = []

    async def react(turn: Turn) -> None:
        token = turn.request.json["params"]["_meta"]["progressToken"]
        params = {"progressToken": token, "progress": 1}
        report = event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        await turn.conn.send(EVENTS)
        for _ in range(30):
            await turn.conn.send(chunk(report * 50))
        await turn.conn.send(chunk(event(turn.message)) + END)

    async with scripted(era, react) as server, lab({"bad": server.url}) as bench:
        outcome = await bench.call("bad.look", progress_callback=lambda p, t, m: reports.append(p))
        outcome.expect(None)
        assert 0 < len(reports) < 1400
