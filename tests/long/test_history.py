"""The long checks in their short forms. `make history` and `make long ARGS=…` run them in full."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.long import cost, cycles, history, neighbour, soak
from toolway import CallError, Hub
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio


async def test_every_call_under_load_is_answered_once_and_truthfully() -> None:
    report = await history.run(calls=2000, seed=1)
    assert not report.wrong, str(report)
    assert report.calls == 2000
    assert report.faults.total() > 5
    assert report.outcomes["ok"] > 200


async def test_steady_load_leaves_nothing_behind() -> None:
    report = await soak.run(seconds=10, rate=200, warm_up=3, seed=1)
    assert (report.broken, report.left) == ([], ""), str(report)
    assert report.calls == 2000
    assert report.last - report.first < 16


async def test_starting_and_stopping_leaves_nothing_behind() -> None:
    report = await cycles.run(cycles=8, warm_up=3)
    assert not report.left
    assert report.growth < 8


@pytest.mark.parametrize("fault", neighbour.FAULTS)
async def test_faults_barely_slow_down_a_neighbor(fault: str) -> None:
    row = await neighbour.measure(fault, seconds=1.0)
    assert row.strikes, "nothing happened"
    assert row.harmless, str(row)


async def test_stages_cost_less_than_half_a_millisecond() -> None:
    """Not the goal, which a busy machine cannot show in a second; a stage gone wrong is far beyond this."""
    report = await cost.instantly(rounds=5, calls=300)
    added = 1 / report.rates["all stages"] - 1 / report.rates["no stage"]
    assert added < 0.0005, str(report)


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_restarted_process_is_called_again(era: str, tmp_path: Path) -> None:
    async with Hub({"s": fake_server(era=era)}, catalog_storage=None) as hub:
        await hub.wait_ready()
        work = [asyncio.create_task(hub.call_tool("s.bad", {"mode": "never"}, timeout=5)) for _ in range(10)]
        await asyncio.sleep(0.2)
        with pytest.raises(CallError):
            await hub.call_tool("s.crash")
        await asyncio.gather(*work, return_exceptions=True)
        async with asyncio.timeout(10):
            while hub.status()["s"].state != "ready":
                await asyncio.sleep(0.02)
        assert (await hub.call_tool("s.echo", {"text": "back"})).text == "back"


def test_slope_of_a_line() -> None:
    assert soak.slope([1.0, 3.0, 5.0, 7.0]) == pytest.approx(2.0)
    assert soak.slope([4.0]) == 0.0
