"""A hub that is started and stopped again and again leaves nothing behind."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tests.faults.footprint import Footprint, back_to, rss
from tests.long.server_set import ERAS, fake_http, table
from toolway import Hub
from toolway.testing import fake_server

SETTLE = 10.0  # seconds after which nothing may be left of a hub


@dataclass(frozen=True)
class Report:
    cycles: int
    seconds: float
    slowest_stop: float
    left: str  # what there is more than before, in words
    growth: float  # MiB since the warm-up

    def __str__(self) -> str:
        return table(
            {
                "cycles": f"{self.cycles} in {self.seconds:.0f} s",
                "slowest stop": f"{self.slowest_stop:.2f} s",
                "left behind": self.left or "nothing",
                "memory since the tenth cycle": f"{self.growth:+.1f} MiB",
            }
        )


async def run(cycles: int, warm_up: int = 10) -> Report:
    async with fake_http("modern") as url:
        before, weight, slowest = Footprint.now(), rss(), 0.0
        began = time.monotonic()
        for number in range(cycles):
            slowest = max(slowest, await _cycle(url))
            if number == min(warm_up, cycles) - 1:
                weight = rss()
        left = await back_to(before, SETTLE)
        return Report(cycles, time.monotonic() - began, slowest, left, rss() - weight)


async def _cycle(url: str) -> float:
    """Start, call every server, stop. How long the stop took."""
    pipes = {f"pipe-{number}": fake_server(era=era) for number, era in enumerate((*ERAS, "both"))}
    async with Hub({"web": url, **pipes}, catalog_storage=None) as hub:
        await hub.wait_ready(timeout=30)
        for name in ("web", *pipes):
            assert (await hub.call_tool(f"{name}.echo", {"text": name})).text == name
        stopping = time.monotonic()
    return time.monotonic() - stopping
