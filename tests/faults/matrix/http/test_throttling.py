"""Servers that ask us to wait, in every form, including with a wrong clock."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from email.utils import format_datetime

import pytest

from tests.faults.fault_lab import ERAS, WAYS, lab
from tests.faults.matrix.http.scripted_server import Turn, scripted
from tests.faults.matrix.http.web_servers import web
from tests.timing import within
from tests.upstream.raw_http import json_response, response
from toolway import Overloaded
from toolway.events import ServerPaused

pytestmark = pytest.mark.anyio

SLACK = 1.5  # seconds that a busy machine may add
DAY = dt.timedelta(days=1)


def date(offset: dt.timedelta = dt.timedelta()) -> str:
    return format_datetime(dt.datetime.now(dt.UTC).replace(microsecond=0) + offset, usegmt=True)


class Throttle:
    """Refuses the first calls with this header, and remembers nothing else."""

    def __init__(self, status: int, times: int = 1, **headers: str) -> None:
        self._refusal = response(status, b"slower", **headers)
        self._times = times

    async def __call__(self, turn: Turn) -> None:
        if turn.number < self._times:
            await turn.conn.send(self._refusal)
        else:
            await turn.answer_well()


@WAYS
@pytest.mark.fault("B9")
async def test_retry_after_in_seconds_is_kept_exactly(era: str) -> None:
    async with scripted(era, Throttle(429, Retry_After="1")) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        (await bench.call("bad.act", {"effect": True})).expect(None)
        refused, taken = server.turns
        assert 1.0 <= taken.at - refused.at < 1.1 + SLACK


@WAYS
@pytest.mark.fault("B9", "B25")
async def test_retry_after_date_is_read_by_the_servers_clock(era: str) -> None:
    async with scripted(era) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        for clock in (-DAY, dt.timedelta(), DAY):
            server.turns.clear()
            server.react = Throttle(429, Date=date(clock), Retry_After=date(clock + dt.timedelta(seconds=1)))
            (await bench.call("bad.act", {"effect": True})).expect(None)
            refused, taken = server.turns
            assert 1.0 <= taken.at - refused.at < 1.1 + SLACK


@ERAS
@pytest.mark.fault("B25")
async def test_wrong_server_clock_has_no_other_effect(era: str) -> None:
    async def react(turn: Turn) -> None:
        turn.take_effect()
        clock = DAY if turn.number % 2 else -DAY
        headers = {"Date": date(clock), "Expires": date(clock), "Last_Modified": date(clock)}
        await turn.conn.send(json_response(turn.message, 200, **headers))

    async with scripted(era, react) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        for _ in range(4):
            (await bench.call("bad.act", {"effect": True})).expect(None)


UNREADABLE = ("soon", "-5", "", "1e3", "5; 6", "0x10", "Mon, 99 Foo 2026 99:99:99 GMT", "9" * 400)


@WAYS
@pytest.mark.fault("B9")
async def test_unreadable_retry_after_is_ignored(era: str) -> None:
    """Without one, the wait is ours: random, up to a second."""
    async with scripted(era) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        for value in UNREADABLE:
            server.turns.clear()
            server.react = Throttle(429, Retry_After=value)
            refused = (await bench.call("bad.act", max_attempts=1)).expect(Overloaded, "no")
            assert refused.error is not None and refused.error.retry_after is None
        server.turns.clear()
        outcome = (await bench.call("bad.act", {"effect": True}, timeout=10)).expect(None)
        assert outcome.seconds < within(1 + SLACK)


@WAYS
@pytest.mark.fault("B9")
@pytest.mark.parametrize(("value", "timeout"), [("1000000000", 60.0), ("30", 5.0)])
async def test_retry_after_beyond_timeout_fails_at_once(era: str, value: str, timeout: float) -> None:
    async with scripted(era, Throttle(429, 100, Retry_After=value)) as server, lab({"bad": server.url}) as bench:
        outcome = (await bench.call("bad.act", timeout=timeout)).expect(Overloaded, "no")
        assert outcome.error is not None
        assert (outcome.error.retry_after, outcome.error.attempts) == (float(value), 1)
        assert outcome.seconds < within(SLACK)
        later = (await bench.call("bad.look", timeout=timeout)).expect(Overloaded, "no")
        assert later.seconds < within(SLACK)
        assert later.error is not None and later.error.retry_after is not None
        assert 0 < later.error.retry_after <= float(value)
        assert len(server.turns) == 1, "a call was sent while the server wanted none"


@WAYS
@pytest.mark.fault("B9")
async def test_new_calls_wait_until_retry_after_has_passed(era: str) -> None:
    async with scripted(era, Throttle(429, Retry_After="1")) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        first = bench.start("bad.act", {"effect": True})
        await bench.until(lambda: server.turns, 5)
        await asyncio.sleep(0.1)
        others = [bench.start("bad.look", {"effect": True}) for _ in range(5)]
        for call in (first, *others):
            (await call).expect(None)
        refused, *taken = server.turns
        assert all(turn.at - refused.at >= 1.0 for turn in taken)


@WAYS
@pytest.mark.fault("B9")
async def test_throttling_server_does_not_open_the_breaker(era: str) -> None:
    fake = web(era)
    async with lab({"bad": fake}) as bench:
        for _ in range(8):
            (await bench.call("bad.bad", {"mode": "status=429"}, max_attempts=1)).expect(Overloaded, "no")
        (await bench.call("bad.counter", max_attempts=1)).expect(None)
        (await bench.call("bad.bad", {"effect": True}, max_attempts=1)).expect(None)


@ERAS
@pytest.mark.fault("B9")
async def test_restart_clears_a_huge_retry_after(era: str) -> None:
    async with scripted(era, Throttle(429, Retry_After="1000000000")) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        (await bench.call("bad.act")).expect(Overloaded, "no")
        bench.hub.restart_server("bad")
        await bench.until(lambda: bench.hub.status()["bad"].restarts == 1, 5)
        await bench.until(lambda: bench.hub.status()["bad"].state == "ready", 5)
        (await bench.call("bad.act", {"effect": True})).expect(None)


@WAYS
@pytest.mark.fault("C14")
@pytest.mark.promise("B28")
async def test_configured_rate_is_never_exceeded_and_calls_wait(era: str) -> None:
    async with scripted(era, Throttle(429, 0)) as server:
        entry = {"url": server.url, "rateLimit": "3/s", **({"type": "sse"} if era == "sse" else {})}
        async with lab({"bad": entry}) as bench:
            server.effects = str(bench.effects)
            began = time.monotonic()
            calls = [bench.start("bad.act", {"effect": True}, timeout=20) for _ in range(9)]
            for call in calls:
                (await call).expect(None)
            assert server.turns[-1].at - began >= 2.0, "nine calls at three per second take two seconds"


@ERAS
@pytest.mark.fault("C14")
@pytest.mark.promise("B28")
async def test_call_beyond_the_rate_is_rejected_with_retry_after(era: str) -> None:
    async with scripted(era, Throttle(429, 0)) as server:
        entry = {"url": server.url, "rateLimit": "100/day", "tools": {"act": {"rateLimit": "2/h"}}}
        async with lab({"bad": entry}) as bench:
            server.effects = str(bench.effects)
            for _ in range(2):
                (await bench.call("bad.act", {"effect": True})).expect(None)
            refused = (await bench.call("bad.act", {"effect": True})).expect(Overloaded, "no")
            assert refused.error is not None and refused.error.code == "E-RATE-LIMIT"
            assert refused.error.retry_after is not None and 3500 < refused.error.retry_after <= 3600
            assert refused.seconds < within(SLACK)
            (await bench.call("bad.look", {"effect": True})).expect(None)
            assert len(server.turns) == 3
            assert bench.hub.status()["bad"].paused_for == 0


@WAYS
@pytest.mark.fault("B9")
@pytest.mark.promise("C7")
async def test_retry_after_of_an_hour_is_kept_and_reported(era: str) -> None:
    async with scripted(era, Throttle(429, Retry_After="3600")) as server, lab({"bad": server.url}) as bench:
        events = bench.hub.events(ServerPaused)
        (await bench.call("bad.act")).expect(Overloaded, "no")
        refused = (await bench.call("bad.look")).expect(Overloaded, "no")
        assert refused.error is not None and refused.error.code == "E-RETRY-AFTER"
        assert "asked us to pause until" in refused.error.message
        assert "maxConcurrent" not in refused.error.hint
        assert refused.error.retry_after is not None and 3500 < refused.error.retry_after <= 3600
        status = bench.hub.status()["bad"]
        assert 3500 < status.paused_for <= 3600
        assert "it asked us to pause until" in status.why
        assert await anext(events) == ServerPaused("bad", 3600.0)
        assert len(server.turns) == 1
