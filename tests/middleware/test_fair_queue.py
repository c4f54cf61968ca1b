"""Lines before a server: in turns between callers, bounded, and closed while the server asks us to stay away."""

from __future__ import annotations

import asyncio

import pytest

from tests.middleware.chain_lab import Clock, End, HeldEnd, a_call, a_reply, failure, turns
from tests.sim.loop import run
from toolway.config.schema import Limits
from toolway.errors import Certainty, Overloaded
from toolway.middleware.concurrency import MAX_PAUSE_S, ConcurrencyLimiter, concurrency
from toolway.types import Middleware

pytestmark = pytest.mark.anyio


class Line:
    """Callers who want slots, and the order in which they got them."""

    def __init__(self, concurrent: int, waiting: int) -> None:
        self.slots = ConcurrencyLimiter(Limits(max_concurrent=concurrent, max_queued=waiting))
        self.served: list[str] = []
        self.refused: list[str] = []

    async def come(self, *callers: str) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._want(caller)) for caller in callers]
        await turns()
        return tasks

    async def _want(self, caller: str) -> None:
        (self.served if await self.slots.acquire(caller) else self.refused).append(caller)

    async def give_back(self, caller: str) -> None:
        self.slots.release(caller)
        await turns()


async def test_callers_are_served_in_turns_in_their_own_order() -> None:
    line = Line(1, 10)
    await line.come("a")
    await line.come("a", "a", "b", "c")
    for caller in "aabc":
        await line.give_back(caller)
    assert "".join(line.served) == "aabca"


async def test_newcomer_gets_a_slot_before_a_waiting_busy_caller() -> None:
    line = Line(4, 10)
    await line.come(*"aaaaaa")
    assert line.served == ["a"] * 3
    await line.come("b")
    assert line.served[-1] == "b"


async def test_free_slot_goes_to_the_caller_with_fewest() -> None:
    line = Line(4, 10)
    await line.come(*"aaabaabb")
    assert line.served == [*"aaab"]
    await line.give_back("a")
    assert line.served[-1] == "b"


@pytest.mark.parametrize(("slots", "most"), [(1, 1), (2, 2), (3, 3), (4, 3), (8, 7), (16, 13), (128, 103)])
async def test_lone_caller_gets_most_slots_and_the_hub_owner_all(slots: int, most: int) -> None:
    for caller, expected in (("a", most), ("", slots)):
        line = Line(slots, 300)
        await line.come(*[caller] * 200)
        assert len(line.served) == line.slots.in_use == expected


async def test_full_queue_displaces_the_caller_with_most_entries() -> None:
    line = Line(1, 3)
    await line.come("a")
    await line.come(*"aaa")
    await line.come("b")
    assert (line.refused, line.slots.queued) == (["a"], 3)
    await line.give_back("a")
    await line.give_back("a")
    assert line.served == ["a", "a", "b"]


async def test_full_queue_displaces_no_caller_for_an_equal_one() -> None:
    line = Line(1, 2)
    await line.come("a")
    await line.come(*"ab")
    await line.come("b", "a")
    assert sorted(line.refused) == ["a", "b"]


async def test_displaced_leaving_caller_takes_no_slot() -> None:
    line = Line(1, 2)
    await line.come("a")
    *_, last = await line.come(*"aa")
    newcomer = asyncio.create_task(line._want("b"))
    await asyncio.sleep(0)
    last.cancel()
    await turns()
    assert last.cancelled() or line.refused == ["a"]
    for caller in "aab":
        await line.give_back(caller)
    assert newcomer.done()
    assert line.slots.acquire_nowait("c")


async def test_slot_given_to_a_leaving_caller_goes_to_the_next() -> None:
    line = Line(1, 5)
    await line.come("a")
    leaving, _ = await line.come("b", "c")
    leaving.cancel()
    line.slots.release("a")
    await turns()
    assert line.served == ["a", "c"]
    assert line.slots.queued == 0


# -- a server that asks us to stay away --------------------------------------------------------------------------------


def refusing(seconds: float) -> Overloaded:
    return Overloaded("429", certainty=Certainty.REJECTED, retry_after=seconds)


def a_stage(slots: ConcurrencyLimiter, queue: float = 5.0) -> Middleware:
    return concurrency(lambda _: slots, lambda _: queue, asyncio.get_running_loop().time)


async def soon(stage: Middleware, error: Exception) -> None:
    await asyncio.gather(stage(a_call(deadline=1e9), End(error)), return_exceptions=True)


def test_new_calls_wait_as_long_as_the_server_asked() -> None:
    async def main() -> float:
        stage = a_stage(ConcurrencyLimiter(Limits()))
        await soon(stage, refusing(3.0))
        began = asyncio.get_running_loop().time()
        await stage(a_call(deadline=1e9), End(a_reply()))
        return asyncio.get_running_loop().time() - began

    assert run(main()) == pytest.approx(3.0)


@pytest.mark.parametrize(("asked", "queue", "left"), [(6.0, 5.0, 1e9), (3.0, 5.0, 2.0)], ids=["queue", "deadline"])
def test_call_that_cannot_wait_so_long_gets_retry_after(asked, queue, left) -> None:
    async def main() -> Overloaded:
        stage, end = a_stage(ConcurrencyLimiter(Limits()), queue), End(a_reply())
        await soon(stage, refusing(asked))
        with pytest.raises(Overloaded) as caught:
            await stage(a_call(deadline=asyncio.get_running_loop().time() + left), end)
        assert end.calls == []
        return caught.value

    error = run(main())
    assert error.retry_after == pytest.approx(asked)
    assert (error.executed, error.retryable) == ("no", False)


@pytest.mark.promise("C7")
def test_server_pause_is_limited_to_a_day() -> None:
    async def main() -> float:
        slots = ConcurrencyLimiter(Limits())
        await soon(a_stage(slots), refusing(1e9))
        return slots.paused_until - asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(MAX_PAUSE_S) == 86_400


async def test_only_a_rejection_with_retry_after_pauses_the_server() -> None:
    slots = ConcurrencyLimiter(Limits())
    clock = Clock()
    stage = concurrency(lambda _: slots, lambda _: 5.0, clock)
    await soon(stage, failure(Certainty.UNKNOWN, retry_after=9.0))
    await soon(stage, Overloaded("429", certainty=Certainty.REJECTED))
    assert slots.paused_until == 0.0


async def test_slot_is_given_back_however_the_call_ends() -> None:
    slots, end = ConcurrencyLimiter(Limits(max_concurrent=1)), HeldEnd()
    stage = concurrency(lambda _: slots, lambda _: 5.0, Clock())
    for error in (failure(Certainty.UNKNOWN), ZeroDivisionError(), asyncio.CancelledError()):
        await soon(stage, error)  # type: ignore[arg-type]
    leaving = asyncio.ensure_future(stage(a_call(), end))
    await end.reached()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert (await stage(a_call(), End(a_reply()))).text == "done"
