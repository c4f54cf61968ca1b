"""The virtual loop, driven from outside: a machine takes a step, and looks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis.stateful import RuleBasedStateMachine

from tests.sim.loop import VirtualLoop

T = TypeVar("T")


class SteppedLoop(VirtualLoop):
    def __init__(self) -> None:
        super().__init__(1000.0)

    def jump(self) -> None:
        """A little beyond the timer, as a real clock is when it is read."""
        super().jump()
        self._now += 1e-6

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.run_until_complete(work)

    def turn(self, count: int = 20) -> None:
        """Let everything that can continue now continue."""
        self.run(_turns(count))

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.run(asyncio.sleep(seconds))
        self.turn()

    def end(self) -> None:
        """Cancel what is left, and close."""
        left = asyncio.all_tasks(self)
        for task in left:
            task.cancel()
        if left:
            self.run(_gather(left))
        self.close()


class LoopMachine(RuleBasedStateMachine):
    """A machine with its own loop, which is closed however the machine ends."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = SteppedLoop()

    def finish(self) -> None:
        """What must hold in the end."""

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            self.loop.end()
        assert self.loop.complaints == []


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _gather(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
