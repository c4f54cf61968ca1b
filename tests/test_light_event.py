"""`LightEvent`: waiters continue when it is set, once, and leave nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from toolway._async import Interrupted, LightEvent, wait_unless

pytestmark = pytest.mark.anyio


async def test_all_waiters_continue_when_set() -> None:
    flag = LightEvent()
    waiting = [asyncio.create_task(flag.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    flag.set()
    await asyncio.gather(*waiting)
    assert flag.is_set()
    await flag.wait()  # at once


async def test_waiter_wakes_even_if_cleared_at_once() -> None:
    flag = LightEvent()
    waiting = asyncio.create_task(flag.wait())
    await asyncio.sleep(0)
    flag.set()
    flag.clear()
    await asyncio.wait_for(waiting, 30)
    again = asyncio.create_task(flag.wait())
    await asyncio.sleep(0)
    assert not again.done()
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)
    assert flag._waiters is None


async def test_cancelled_waiter_does_not_block_others() -> None:
    flag = LightEvent()
    leaver, stayer = asyncio.create_task(flag.wait()), asyncio.create_task(flag.wait())
    await asyncio.sleep(0)
    leaver.cancel()
    flag.set()
    await asyncio.wait_for(stayer, 30)
    assert leaver.cancelled() or (await asyncio.gather(leaver, return_exceptions=True))


async def test_future_is_done_when_set() -> None:
    flag = LightEvent()
    waiting, cancelled = flag.future(), flag.future()
    cancelled.cancel()
    flag.set()
    await asyncio.wait_for(waiting, 30)
    assert flag.future().done()
    await asyncio.sleep(0)
    assert flag._waiters is None


async def test_work_runs_unless_flag_is_set_first() -> None:
    stop = LightEvent()
    ended: list[float] = []

    async def work(seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
            return "done"
        finally:
            ended.append(seconds)

    assert await wait_unless(stop, work(0.0)) == "done"
    asyncio.get_running_loop().call_later(0.01, stop.set)
    with pytest.raises(Interrupted):
        await wait_unless(stop, work(60.0))
    assert ended == [0.0, 60.0]
