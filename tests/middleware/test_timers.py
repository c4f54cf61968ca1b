"""Timers fire in time and in order, end only their own work, and leave nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from tests.sim.loop import run
from toolway._async import MAX_CANCELLED, Timers


def now() -> float:
    return asyncio.get_running_loop().time()


async def seconds_until_timeout(alarms: Timers, seconds: float) -> float:
    began = now()
    with pytest.raises(TimeoutError), alarms.start(began + seconds):
        await asyncio.Event().wait()
    return now() - began


def test_timers_fire_at_their_own_time_in_any_order() -> None:
    async def main() -> list[float]:
        alarms = Timers()
        return await asyncio.gather(*(seconds_until_timeout(alarms, seconds) for seconds in (3.0, 1.0, 2.0, 1.0, 0.0)))

    assert run(main()) == pytest.approx([3.0, 1.0, 2.0, 1.0, 0.0])


def test_work_finished_in_time_is_not_interrupted() -> None:
    async def main() -> str:
        alarms = Timers()
        with alarms.start(now() + 1.0):
            await asyncio.sleep(0.5)
        await asyncio.sleep(5.0)
        assert await seconds_until_timeout(alarms, 1.0) == pytest.approx(1.0)
        return "done"

    assert run(main()) == "done"


def test_inner_timer_ends_the_inner_work_only() -> None:
    async def main() -> float:
        alarms = Timers()
        with alarms.start(now() + 5.0):
            assert await seconds_until_timeout(alarms, 1.0) == pytest.approx(1.0)
            await asyncio.sleep(1.0)
        return now()

    assert run(main()) == pytest.approx(2.0)


def test_outer_timer_ends_both() -> None:
    async def main() -> float:
        alarms = Timers()
        with pytest.raises(TimeoutError), alarms.start(now() + 1.0), alarms.start(now() + 5.0):
            await asyncio.Event().wait()
        return now()

    assert run(main()) == pytest.approx(1.0)


def test_cancelled_task_gets_no_timeout_error() -> None:
    async def cancelled(when: float) -> BaseException | None:
        task = asyncio.ensure_future(seconds_until_timeout(Timers(), 1.0))
        asyncio.get_running_loop().call_at(now() + when, task.cancel)
        await asyncio.wait({task})
        return asyncio.CancelledError() if task.cancelled() else task.exception()

    assert isinstance(run(cancelled(0.5)), asyncio.CancelledError)
    assert isinstance(run(cancelled(1.0)), asyncio.CancelledError)  # at the same time


def test_fired_timer_leaves_no_cancellation_request() -> None:
    async def main() -> int:
        await seconds_until_timeout(Timers(), 1.0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert run(main()) == 0


def test_other_exception_passes_through_unchanged() -> None:
    async def main() -> None:
        with Timers().start(now() + 1.0):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(main())


def test_cancelled_timers_are_removed() -> None:
    async def quick(alarms: Timers, calls: int) -> None:
        for _ in range(calls):
            with alarms.start(now() + 60.0):
                assert len(alarms) <= 2 * MAX_CANCELLED

    async def main() -> float:
        alarms = Timers()
        late = asyncio.create_task(seconds_until_timeout(alarms, 1.0))
        await quick(alarms, 20 * MAX_CANCELLED)
        return await late

    assert run(main()) == pytest.approx(1.0)


def test_timers_work_in_another_loop() -> None:
    alarms = Timers()

    async def left_behind() -> None:
        with alarms.start(now() + 1.0):
            return

    async def main() -> Any:
        work: Awaitable[float] = seconds_until_timeout(alarms, 2.0)
        return await work

    run(left_behind())
    assert run(main()) == pytest.approx(2.0)
