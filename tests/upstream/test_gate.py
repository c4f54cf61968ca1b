"""The gate: a few at a time, nobody held up by the silent, and the urgent first."""

from __future__ import annotations

import asyncio

import pytest

from toolway.upstream import gate
from toolway.upstream.flag import Flag
from toolway.upstream.gate import StartGate

pytestmark = pytest.mark.anyio


async def test_a_turn_that_ends_lets_the_next_one_in() -> None:
    door, calm = StartGate(2), Flag()
    first, _ = await door.enter(calm), await door.enter(calm)
    third = asyncio.create_task(door.enter(calm))
    await asyncio.sleep(0.01)
    assert not third.done()
    first.end()
    first.end()
    (await asyncio.wait_for(third, 1)).end()


async def test_a_silent_server_keeps_its_turn_only_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "HOLD", 0.05)
    door, calm = StartGate(1), Flag()
    await door.enter(calm)
    await asyncio.wait_for(door.enter(calm), 1)


async def test_whoever_is_waited_for_passes_the_line() -> None:
    door, urgent = StartGate(1), Flag()
    held = await door.enter(Flag())
    hurried = asyncio.create_task(door.enter(urgent))
    await asyncio.sleep(0.01)
    urgent.set()
    (await asyncio.wait_for(hurried, 0.5)).end()
    held.end()
    await asyncio.wait_for(door.enter(Flag()), 0.5)


async def test_whoever_leaves_the_line_takes_no_turn_with_him() -> None:
    door, calm = StartGate(1), Flag()
    held = await door.enter(calm)
    leaving = asyncio.create_task(door.enter(calm))
    await asyncio.sleep(0.01)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    held.end()
    await asyncio.wait_for(door.enter(calm), 0.5)
