"""The gate: a few at a time, nobody held up by the silent, and the urgent first."""

from __future__ import annotations

import asyncio

import pytest

from toolway._async import LightEvent
from toolway.upstream import start_policy
from toolway.upstream.start_policy import StartLimiter

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _long_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A permit that is not released stays longer than any test waits."""
    monkeypatch.setattr(start_policy, "MAX_PERMIT_HOLD_S", 600.0)


async def test_a_turn_that_ends_lets_the_next_one_in() -> None:
    door, calm = StartLimiter(2), LightEvent()
    first, _ = await door.acquire(calm), await door.acquire(calm)
    third = asyncio.create_task(door.acquire(calm))
    await asyncio.sleep(0.01)
    assert not third.done()
    first.release()
    first.release()
    (await asyncio.wait_for(third, 30)).release()


async def test_a_silent_server_keeps_its_turn_only_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_policy, "MAX_PERMIT_HOLD_S", 0.05)
    door, calm = StartLimiter(1), LightEvent()
    await door.acquire(calm)
    await asyncio.wait_for(door.acquire(calm), 30)


async def test_whoever_is_waited_for_passes_the_line() -> None:
    door, urgent = StartLimiter(1), LightEvent()
    held = await door.acquire(LightEvent())
    hurried = asyncio.create_task(door.acquire(urgent))
    await asyncio.sleep(0.01)
    urgent.set()
    (await asyncio.wait_for(hurried, 30)).release()
    held.release()
    await asyncio.wait_for(door.acquire(LightEvent()), 30)


async def test_whoever_leaves_the_line_takes_no_turn_with_him() -> None:
    door, calm = StartLimiter(1), LightEvent()
    held = await door.acquire(calm)
    leaving = asyncio.create_task(door.acquire(calm))
    await asyncio.sleep(0.01)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    held.release()
    await asyncio.wait_for(door.acquire(calm), 30)
