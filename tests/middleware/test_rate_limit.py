"""Rates towards a server: no period sees more calls than allowed; a call waits, or gets the time to retry."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence

import pytest

from tests.middleware.chain_lab import Clock, End, a_call, a_reply
from toolway.config.schema import Rate, Server, ToolSettings
from toolway.config.server_entry import parse_entry_with_issues
from toolway.errors import ConfigError, Overloaded
from toolway.middleware.rate_limit import MAX_ENTRIES, RateWindow, RateWindows, rate_limit
from toolway.types import Middleware

pytestmark = pytest.mark.anyio


def a_stage(clock: Clock, *limits: tuple[str, str]) -> Middleware:
    return rate_limit(lambda _: limits, clock, clock.sleep, lambda seconds: f"in {seconds:.0f} s")


def most_in_a_period(times: Sequence[float], period: float) -> int:
    return max(bisect_left(times, at + period - 1e-6) - index for index, at in enumerate(times))


@pytest.mark.parametrize("text", ["1/s", "5/s", "3/min", "100/day", "2500/h", "12345/min"])
@pytest.mark.parametrize("seed", range(5))
def test_rate_is_never_exceeded_in_any_period(text: str, seed: int) -> None:
    dice, rate = random.Random(seed), Rate.parse(text)
    window, now, times = RateWindow(rate), 0.0, []
    for _ in range(min(3 * rate.calls, 6000)):
        now += dice.choice((0.0, 0.0, rate.period_s / rate.calls / 2, rate.period_s / 3 if dice.random() < 0.01 else 0))
        times.append(window.reserve(now))
    assert times == sorted(times)
    assert most_in_a_period(times, rate.period_s) <= rate.calls
    assert times[: min(rate.calls, MAX_ENTRIES)][0] == pytest.approx(times[0])
    idle = now + 10 * rate.period_s
    assert window.next_time(idle) == idle


def test_allowed_calls_pass_at_once() -> None:
    for text in ("5/s", "1000/h", "9999/day"):
        rate = Rate.parse(text)
        window = RateWindow(rate)
        passed = sum(window.reserve(7.0) == 7.0 for _ in range(rate.calls))
        assert passed >= 0.99 * rate.calls
        assert window.next_time(7.0) == 7.0 + rate.period_s


@pytest.mark.promise("B28")
async def test_call_waits_for_its_turn_within_its_deadline() -> None:
    clock, end = Clock(), End(a_reply())
    stage = a_stage(clock, ("", "2/min"))
    for _ in range(2):
        await stage(a_call(deadline=clock() + 60), end)
    assert clock.naps == []
    await stage(a_call(deadline=clock() + 60), end)
    assert clock.naps == [60.0]
    assert len(end.calls) == 3


@pytest.mark.promise("B28")
async def test_call_that_cannot_wait_so_long_gets_retry_after() -> None:
    clock, end = Clock(), End(a_reply())
    stage = a_stage(clock, ("", "100/day"), ("t", "1/h"))
    await stage(a_call(deadline=clock() + 60), end)
    with pytest.raises(Overloaded) as caught:
        await stage(a_call(deadline=clock() + 60), end)
    error = caught.value
    assert (error.code, error.executed, error.retryable, error.retry_after) == ("E-RATE-LIMIT", "no", False, 3600.0)
    assert "until in 3600 s" in error.message
    assert "tools.t.rateLimit is 1/h" in error.detail
    assert (clock.naps, len(end.calls)) == ([], 1)
    clock.now += 3600
    await stage(a_call(deadline=clock() + 60), end)


async def test_call_without_a_limit_passes() -> None:
    end = End(a_reply())
    assert (await a_stage(Clock())(a_call(), end)).raw == a_reply().raw


def test_changed_rate_gets_a_new_window() -> None:
    windows = RateWindows()
    first = windows.get("s", "", "1/s")
    assert windows.get("s", "", "1/s") is first
    assert windows.get("s", "", "2/s") is not first
    assert windows.get("s", "t", "1/s") is not first


@pytest.mark.promise("B28")
def test_rates_are_read_from_entries_and_bad_ones_rejected() -> None:
    entry = {"command": "x", "rateLimit": "100/day", "tools": {"search": {"rateLimit": "5/s"}}}
    server, issues = parse_entry_with_issues(entry, {})
    assert (server.rate_limit, server.tools["search"].rate_limit, issues) == ("100/day", "5/s", [])
    for bad in ("often", "0/s", "5/week", "5 / s"):
        with pytest.raises(ConfigError, match="invalid rate limit"):
            Server(command="x", rate_limit=bad)
        with pytest.raises(ConfigError):
            ToolSettings(rate_limit=bad)
