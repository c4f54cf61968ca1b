"""Steady load with faults: broken promises, growth of memory, and what is left at the end."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.faults.footprint import Footprint, back_to, rss
from tests.long.load import Load
from tests.long.server_set import Fleet, fleet, restarts, table
from toolway.testing import History
from toolway.testing.history import find_violations

SAMPLE = 1.0  # seconds between two looks at the memory
PART = 10.0  # seconds of load that are checked together
SETTLE = 10.0  # seconds after which nothing may be left of a hub


@dataclass(frozen=True)
class Report:
    """Result of a soak."""

    calls: int
    answered: int
    seconds: float
    faults: int
    restarts: int
    broken: list[str]
    left: str  # tasks, descriptors and processes that remain after the hub was closed; empty if there are none
    first: float  # MiB after the warm-up
    last: float  # MiB at the end
    slope: float  # MiB per hour after the warm-up

    def __str__(self) -> str:
        return "\n".join([table(self.rows()), *self.broken[:20]])

    def rows(self) -> dict[str, object]:
        """Return the figures by their names."""
        return {
            "calls": f"{self.calls:,} in {self.seconds:,.0f} s, {self.calls / self.seconds:.0f} per second",
            "answered": f"{self.answered:,} ({self.answered / self.calls:.1%})",
            "injected faults": f"{self.faults:,}",
            "restarts of servers": f"{self.restarts:,}",
            "promises broken": len(self.broken),
            "memory": f"{self.first:.1f} MiB after the warm-up, {self.last:.1f} MiB at the end",
            "growth after the warm-up": f"{self.slope:+.1f} MiB per hour",
            "left at the end": self.left or "nothing",
        }


@dataclass
class Sums:
    calls: int = 0
    answered: int = 0
    faults: int = 0
    restarts: int = 0
    broken: list[str] = field(default_factory=list)


async def run(seconds: float, rate: float, warm_up: float, seed: int) -> Report:
    before, memory, sums = Footprint.now(), list[float](), Sums()
    with tempfile.TemporaryDirectory() as folder:
        effects = Path(folder) / "effects"
        async with fleet(effects, stdio=2, http=2) as ships:
            watch = asyncio.create_task(_watch(memory))
            for part in range(max(1, int(seconds / PART))):
                await _part(ships, effects, rate, min(PART, seconds), Random(f"{seed} {part}"), sums)
            sums.restarts = restarts(ships.hub)
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
    settled = memory[min(int(warm_up / SAMPLE), len(memory) - 2) :]
    return Report(
        **vars(sums),
        seconds=len(memory) * SAMPLE,
        left=await back_to(before, SETTLE),
        first=settled[0],
        last=settled[-1],
        slope=slope(settled) * 3600 / SAMPLE,
    )


async def _part(ships: Fleet, effects: Path, rate: float, seconds: float, dice: Random, sums: Sums) -> None:
    """Run a part of the load, check its history and drop it, so the records of the test are not growth."""
    effects.unlink(missing_ok=True)
    history = History(effects)
    load = Load(ships, history, dice)
    await load.steadily(rate, seconds)
    outcomes = history.count_outcomes()
    sums.calls += outcomes.total()
    sums.answered += outcomes["ok"]
    sums.faults += load.faults.total()
    sums.broken += [str(violation) for violation in find_violations(history)]


async def _watch(memory: list[float]) -> None:
    while True:
        memory.append(rss())
        await asyncio.sleep(SAMPLE)


def slope(values: Sequence[float]) -> float:
    """Return the slope of the least-squares line through the values, per value."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    spread = sum((at - middle) ** 2 for at in range(len(values)))
    return sum((at - middle) * (value - mean) for at, value in enumerate(values)) / spread if spread else 0.0
