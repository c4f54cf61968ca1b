"""Three times as many calls as a server can take: what it still does, and how fast the others are refused."""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.gateway.load_clients import Failed, LoadClient, load_client
from tests.gateway.program import Program, program
from toolway.testing import fake_server

SLOTS = 8
TAKES = 0.1  # seconds for one call
CAPACITY = SLOTS / TAKES  # calls a second, at best
OVERLOADED = -31003


@dataclass
class Report:
    seconds: float
    peak: float = 0.0  # answers a second with just enough callers
    goodput: float = 0.0  # answers a second with three times as many calls
    refused: list[float] = field(default_factory=list)  # seconds until each rejection
    other: list[str] = field(default_factory=list)  # anything else that was said
    recovery: float = 0.0  # seconds until calls take their usual time again

    @property
    def kept(self) -> float:
        return self.goodput / self.peak if self.peak else 0.0

    def slowest(self, share: float) -> float:
        """Seconds within which this share of rejections arrived."""
        ordered = sorted(self.refused)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0

    def __str__(self) -> str:
        median, p99, longest = (1000 * self.slowest(share) for share in (0.5, 0.99, 1))
        return "\n".join(
            [
                f"  peak      {self.peak:.0f}/s of {CAPACITY:.0f}/s",
                f"  goodput   {self.goodput:.0f}/s at three times that for {self.seconds:g} s: {self.kept:.0%}",
                f"  refused   {len(self.refused)}: median {median:.1f} ms, p99 {p99:.1f} ms, longest {longest:.1f} ms",
                f"  recovery  {self.recovery:.2f} s",
                *(f"  other     {each}" for each in self.other[:5]),
            ]
        )


class Flood:
    """Calls that come when their time has come, whether or not the earlier ones are answered."""

    def __init__(self, run: Program, report: Report) -> None:
        self._run = run
        self._report = report
        self._free: list[LoadClient] = []
        self._made = 0
        self.answered = 0

    async def steadily(self, rate: float, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        began, tasks = loop.time(), []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - loop.time()))
            tasks.append(loop.create_task(self.call()))
        await asyncio.gather(*tasks)

    async def call(self) -> None:
        client = self._free.pop() if self._free else self._fresh()
        began = time.monotonic()
        try:
            await client.call("fake__sleep", {"seconds": TAKES})
        except Failed as failed:
            if failed.code == OVERLOADED and failed.status in (200, 503) and failed.executed == "no":
                self._report.refused.append(time.monotonic() - began)
            else:
                self._report.other.append(str(failed))
        else:
            self.answered += 1
        self._free.append(client)

    def _fresh(self) -> LoadClient:
        self._made += 1
        return load_client(("modern", "legacy")[self._made % 2], self._run.port, self._run.token)

    def close(self) -> None:
        for client in self._free:
            client.close()


async def run(seconds: float) -> Report:
    report = Report(seconds)
    with tempfile.TemporaryDirectory() as folder:
        server = {**fake_server(era="modern"), "limits": {"maxConcurrent": SLOTS, "maxQueued": 2 * SLOTS}}
        async with program(Path(folder) / "gateway", {"fake": server}) as gateway:
            calm = Flood(gateway, report)
            began = time.monotonic()
            await asyncio.gather(*(_in_a_row(calm, seconds / 2) for _ in range(SLOTS)))
            report.peak = calm.answered / (time.monotonic() - began)
            report.refused.clear()
            flood = Flood(gateway, report)
            began = time.monotonic()
            await flood.steadily(3 * CAPACITY, seconds)
            report.goodput = flood.answered / (time.monotonic() - began)
            report.recovery = await _recovery(gateway)
            calm.close()
            flood.close()
            await gateway.stop()
    return report


async def _in_a_row(flood: Flood, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await flood.call()


async def _recovery(gateway: Program) -> float:
    client = load_client("modern", gateway.port, gateway.token)
    began = time.monotonic()
    async with asyncio.timeout(30):
        while True:
            sent = time.monotonic()
            try:
                await client.call("fake__sleep", {"seconds": TAKES})
            except Failed:
                await asyncio.sleep(0.05)
                continue
            if time.monotonic() - sent < TAKES * 2:
                client.close()
                return time.monotonic() - began
