"""Calls of every kind to a fleet, one in a hundred of them at fault, all of them written down."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from tests.long.server_set import REFUSALS, Fleet
from toolway.testing import History
from toolway.types import CallResult

FAULTY: Final = 0.01
LIMIT: Final = 5.0  # seconds for a call
SILENCE: Final = 0.5  # for one that is never answered
REST: Final = 0.05  # before the next call, after one that failed at once


@dataclass(frozen=True)
class Order:
    """One call to be made."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    unsafe: bool = False
    effect: bool = True
    fault: str = ""


#: The calls that go well: how often, and what.
_MIX: Final = (
    (40, Order("counter", unsafe=True)),
    (20, Order("counter", options={"idempotent": True})),
    (25, Order("bad_read", {"effect": True})),
    (15, Order("echo", {"text": "x"}, effect=False)),
)


class Load:
    """Makes calls to the servers of a fleet, as the dice fall."""

    def __init__(self, fleet: Fleet, history: History, dice: Random) -> None:
        self.faults: Counter[str] = Counter()
        self._fleet = fleet
        self._history = history
        self._dice = dice
        self._servers = list(fleet.faults)

    async def callers(self, count: int, calls: int) -> None:
        """Make `calls` in all, with that many parallel callers."""
        left = iter(range(calls))

        async def caller() -> None:
            for _ in left:
                if await self.one() is None:
                    await asyncio.sleep(REST * self._dice.random())

        await asyncio.gather(*(caller() for _ in range(count)))

    async def steadily(self, rate: float, seconds: float) -> None:
        """So many a second, whether or not the earlier ones have ended."""
        loop = asyncio.get_running_loop()
        began, running = loop.time(), set[asyncio.Task[Any]]()
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - loop.time()))
            task = loop.create_task(self.one())
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)

    async def one(self) -> CallResult | None:
        server = self._dice.choice(self._servers)
        order = self._order(server)
        if order.fault:
            self.faults[order.fault] += 1
        limit = SILENCE if order.fault == "never" else LIMIT
        target = f"{server}.{order.tool}"

        async def make(nonce: str) -> CallResult:
            arguments = {**order.arguments, "nonce": nonce}
            return await self._fleet.hub.call_tool(target, arguments, timeout=limit, **order.options)

        reply: CallResult | None = await self._history.call(
            make,
            unsafe=order.unsafe,
            time_limit=limit,
            target=f"{target} {order.fault}".strip(),
            has_effect=order.effect,
        )
        return reply

    def _order(self, server: str) -> Order:
        if self._dice.random() >= FAULTY:
            shares = [share for share, _ in _MIX]
            (chosen,) = self._dice.choices([order for _, order in _MIX], shares)
            return chosen
        fault = self._dice.choice(self._fleet.faults[server])
        effect = fault not in REFUSALS
        unsafe = self._dice.random() < 0.5
        tool = "bad" if unsafe else "bad_read"
        return Order(tool, {"mode": fault, "effect": effect}, unsafe=unsafe, effect=effect, fault=fault)
