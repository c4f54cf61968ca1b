"""Alarms: they ring in time and in order, end nobody else's work, and leave nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from tests.sim.loop import run
from toolway._async import MAX_CANCELLED, Timers


def now() -> float:
    return asyncio.get_running_loop().time()


async def rings_after(alarms: Timers, seconds: float) -> float:
    began = now()
    with pytest.raises(TimeoutError), alarms.start(began + seconds):
        await asyncio.Event().wait()
    return now() - began


def test_each_rings_at_its_own_time_in_whatever_order_they_were_set() -> None:
    async def main() -> list[float]:
        alarms = Timers()
        return await asyncio.gather(*(rings_after(alarms, seconds) for seconds in (3.0, 1.0, 2.0, 1.0, 0.0)))

    assert run(main()) == pytest.approx([3.0, 1.0, 2.0, 1.0, 0.0])


def test_what_is_done_in_time_hears_nothing() -> None:
    async def main() -> str:
        alarms = Timers()
        with alarms.start(now() + 1.0):
            await asyncio.sleep(0.5)
        await asyncio.sleep(5.0)
        assert await rings_after(alarms, 1.0) == pytest.approx(1.0)
        return "done"

    assert run(main()) == "done"


def test_the_inner_of_two_alarms_ends_the_inner_work_only() -> None:
    async def main() -> float:
        alarms = Timers()
        with alarms.start(now() + 5.0):
            assert await rings_after(alarms, 1.0) == pytest.approx(1.0)
            await asyncio.sleep(1.0)
        return now()

    assert run(main()) == pytest.approx(2.0)


def test_the_outer_of_two_alarms_ends_both() -> None:
    async def main() -> float:
        alarms = Timers()
        with pytest.raises(TimeoutError), alarms.start(now() + 1.0), alarms.start(now() + 5.0):
            await asyncio.Event().wait()
        return now()

    assert run(main()) == pytest.approx(1.0)


def test_who_is_cancelled_is_not_told_that_his_time_was_over() -> None:
    async def cancelled(when: float) -> BaseException | None:
        task = asyncio.ensure_future(rings_after(Timers(), 1.0))
        asyncio.get_running_loop().call_at(now() + when, task.cancel)
        await asyncio.wait({task})
        return asyncio.CancelledError() if task.cancelled() else task.exception()

    assert isinstance(run(cancelled(0.5)), asyncio.CancelledError)
    assert isinstance(run(cancelled(1.0)), asyncio.CancelledError)  # at the same time


def test_a_task_whose_alarm_rang_is_not_cancelled_any_more() -> None:
    async def main() -> int:
        await rings_after(Timers(), 1.0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert run(main()) == 0


def test_another_failure_is_told_as_it_is() -> None:
    async def main() -> None:
        with Timers().start(now() + 1.0):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(main())


def test_alarms_that_were_put_out_are_swept_away() -> None:
    async def quick(alarms: Timers, calls: int) -> None:
        for _ in range(calls):
            with alarms.start(now() + 60.0):
                assert len(alarms) <= 2 * MAX_CANCELLED

    async def main() -> float:
        alarms = Timers()
        late = asyncio.create_task(rings_after(alarms, 1.0))
        await quick(alarms, 20 * MAX_CANCELLED)
        return await late

    assert run(main()) == pytest.approx(1.0)


def test_they_ring_in_another_loop_too() -> None:
    alarms = Timers()

    async def left_behind() -> None:
        with alarms.start(now() + 1.0):
            return

    async def main() -> Any:
        work: Awaitable[float] = rings_after(alarms, 2.0)
        return await work

    run(left_behind())
    assert run(main()) == pytest.approx(2.0)
