"""The gate: a few at a time, no one held up by the silent, and the urgent first."""

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


async def test_released_permit_admits_next_start() -> None:
    door, calm = StartLimiter(2), LightEvent()
    first, _ = await door.acquire(calm), await door.acquire(calm)
    third = asyncio.create_task(door.acquire(calm))
    await asyncio.sleep(0.01)
    assert not third.done()
    first.release()
    first.release()
    (await asyncio.wait_for(third, 30)).release()


async def test_unreleased_permit_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_policy, "MAX_PERMIT_HOLD_S", 0.05)
    door, calm = StartLimiter(1), LightEvent()
    await door.acquire(calm)
    await asyncio.wait_for(door.acquire(calm), 30)


async def test_urgent_start_skips_the_queue() -> None:
    door, urgent = StartLimiter(1), LightEvent()
    held = await door.acquire(LightEvent())
    hurried = asyncio.create_task(door.acquire(urgent))
    await asyncio.sleep(0.01)
    urgent.set()
    (await asyncio.wait_for(hurried, 30)).release()
    held.release()
    await asyncio.wait_for(door.acquire(LightEvent()), 30)


async def test_cancelled_start_takes_no_permit() -> None:
    door, calm = StartLimiter(1), LightEvent()
    held = await door.acquire(calm)
    leaving = asyncio.create_task(door.acquire(calm))
    await asyncio.sleep(0.01)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    held.release()
    await asyncio.wait_for(door.acquire(calm), 30)
