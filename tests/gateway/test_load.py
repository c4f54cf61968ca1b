"""The long checks of the gateway in their short forms. `make history ARGS=gateway` and `make long` run them in full."""

from __future__ import annotations

import pytest

from tests.gateway import held_calls, load_run

pytestmark = pytest.mark.anyio


async def test_every_call_under_load_is_answered_once_and_truthfully() -> None:
    report = await load_run.run(calls=1500, seed=1)
    assert not report.wrong, str(report)
    assert report.calls == 1500
    assert report.faults.total() > 5
    assert report.outcomes["ok"] > 200


async def test_hundred_calls_and_hundred_streams_are_held_open() -> None:
    report = await held_calls.run(calls=100, listens=100, seconds=5)
    assert report.whole, str(report)
