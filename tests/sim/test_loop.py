"""The loop of the simulation: its time, its order, and what it forbids."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.sim.loop import Deadlock, Spinning, VirtualLoop, run
from tests.timing import within


def test_hour_passes_at_once():
    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    before = time.monotonic()
    assert run(main(), VirtualLoop(start=1000.0)) == 4600.0
    assert time.monotonic() - before < within(1)


def test_time_stands_still_while_a_task_can_run():
    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run(main()) == 0.0


def test_timers_fire_at_their_scheduled_time():
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        fired: list[float] = []
        for delay in (0.25, 0.125, 0.25):
            loop.call_later(delay, lambda: fired.append(loop.time()))
        await asyncio.sleep(1)
        return fired

    assert run(main()) == [0.125, 0.25, 0.25]


def test_waiting_for_nothing_is_a_deadlock_naming_the_task():
    async def waits_in_vain() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="waits_in_vain"):
        run(waits_in_vain())


def test_endless_running_is_noticed():
    async def restless() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Spinning, match="restless"):
        run(restless())


def test_threads_are_rejected():
    async def main() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(RuntimeError, match="thread"):
        run(main())


def test_set_of_tasks_is_iterated_in_the_same_order_every_time():
    async def main() -> list[int]:
        order: list[int] = []

        async def step(number: int, gate: asyncio.Future[None]) -> None:
            await gate
            order.append(number)

        gates = {asyncio.get_running_loop().create_future(): number for number in range(50)}
        tasks = [asyncio.create_task(step(number, gate)) for gate, number in gates.items()]
        await asyncio.sleep(0)
        for gate in set(gates):
            gate.set_result(None)
        await asyncio.gather(*tasks)
        return order

    assert run(main()) == run(main())


def test_uncaught_exception_is_kept():
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    loop = VirtualLoop()
    run(main(), loop)
    assert len(loop.complaints) == 1 and "ZeroDivisionError" in loop.complaints[0]
