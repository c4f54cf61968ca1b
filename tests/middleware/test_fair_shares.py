"""Slots shared by callers that come at any time and hold them for any time, on virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.loop import run
from toolway.config.schema import Limits
from toolway.middleware.concurrency import ConcurrencyLimiter

LONGEST = 10.0  # seconds for which a call holds its slot
CALLERS = ("", "a", "b", "c", "d")
#: caller, start, number of parallel calls, and how long each holds its slot
visits = st.tuples(
    st.sampled_from(CALLERS), st.integers(0, 40), st.integers(1, 40), st.floats(0.5, LONGEST, allow_nan=False)
)


class Slots(ConcurrencyLimiter):
    """Slots that look after each grant whether it was fair."""

    def __init__(self, slots: int) -> None:
        super().__init__(Limits(max_concurrent=slots, max_queued=10_000))
        self.held: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self.waits: dict[str, list[float]] = {}  # seconds that callers without a slot waited

    async def use(self, caller: str, seconds: float) -> None:
        clock = asyncio.get_running_loop().time
        began, held_nothing = clock(), not self.held[caller] and not self.waiting[caller]
        if not self.acquire_nowait(caller):
            self.waiting[caller] += 1
            assert await self.acquire(caller)
            self.waiting[caller] -= 1
        self.held[caller] += 1
        if held_nothing:
            self.waits.setdefault(caller, []).append(clock() - began)
        assert self.held.total() <= self.in_use <= self.capacity
        await asyncio.sleep(seconds)
        self.held[caller] -= 1
        self.release(caller)

    def acquire_nowait(self, caller: str = "") -> bool:
        before = self._in_use_by.get(caller, 0)
        if not super().acquire_nowait(caller):
            return False
        self._check(caller, before)
        return True

    def _next_caller(self) -> str | None:
        caller = super()._next_caller()
        if caller is not None:
            self._check(caller, self._in_use_by.get(caller, 0))
        return caller

    def _check(self, caller: str, held: int) -> None:
        for other in self._queues:
            assert held <= self._in_use_by.get(other, 0), f"{caller} got the slot for which {other} waited"


async def _play(slots: Slots, seen: list[tuple[str, int, int, float]]) -> None:
    async def visit(caller: str, at: int, count: int, seconds: float) -> None:
        await asyncio.sleep(at)
        await asyncio.gather(*(slots.use(caller, seconds) for _ in range(count)))

    await asyncio.gather(*(visit(*each) for each in seen))


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 32), st.lists(visits, min_size=1, max_size=12))
def test_idle_caller_waits_for_at_most_one_round_of_calls(count: int, seen: list[tuple[str, int, int, float]]) -> None:
    """Everyone is served, the limit is kept, and a slot goes to the caller with fewest."""
    slots = Slots(count)
    run(_play(slots, seen))
    assert slots.in_use == 0 and slots.queued == 0 and not +slots.waiting
    # Each slot becomes free within the longest call, and goes to a waiting caller without a slot.
    rounds = -(-len(CALLERS) // count)
    assert max((max(each) for each in slots.waits.values()), default=0.0) <= rounds * LONGEST


@settings(max_examples=100, deadline=None)
@given(st.integers(4, 128), st.sampled_from(CALLERS[1:]), st.integers(1, 300))
def test_lone_caller_leaves_a_slot_for_the_next_one(count: int, greedy: str, calls: int) -> None:
    async def main() -> None:
        slots = Slots(count)
        tasks = [asyncio.create_task(slots.use(greedy, LONGEST)) for _ in range(calls)]
        await asyncio.sleep(0.1)
        assert slots.in_use >= min(calls, count * 3 // 4)
        assert slots.acquire_nowait("newcomer")
        slots.release("newcomer")
        await asyncio.gather(*tasks)

    run(main())
