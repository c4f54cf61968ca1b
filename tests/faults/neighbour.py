"""A healthy server next to the bad one, called all the time.

Calls are due at fixed times, whether or not earlier ones have been answered, and each counts from when it was due. So
an event loop that stands still for half a second shows as many slow calls, not as one. On a machine that is not quiet
no call is made while AT_ONCE are open: where both processes starve, they would fill the queue of the server.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.faults.footprint import kept_waiting, rss
from tests.timing import QUIET
from toolway import CallError, Hub

NAME = "neighbour"
TICK = 0.005 if QUIET else 0.04  # seconds between two calls
AT_ONCE = math.inf if QUIET else 20  # open calls
BASELINE = 20 if QUIET else 5  # calls before the fault
LEAST = 25 if QUIET else 6  # calls to judge by
ENOUGH = (
    400 if QUIET else 100
)  # calls to judge by if the first ones were slow: then one pause of the machine is not p99
ALLOWED = 0.05 if QUIET else 0.5  # seconds that a fault elsewhere may add at p99


class Neighbour:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._calls: set[asyncio.Task[None]] = set()
        self._runner: asyncio.Task[None] | None = None
        self._pid = hub.status()[NAME].pid or 0
        self._waited = self._kept_waiting()
        self._mark = 0
        self.latencies: list[float] = []
        self.errors: list[str] = []
        self.baseline = 0.0
        self.memory = 0.0  # the most that was seen

    async def begin(self) -> None:
        """Start calling, and find out how quick it is when all is well."""
        self._start()
        await self._more(BASELINE)
        self.baseline = p99(self.latencies)
        self._mark = len(self.latencies)
        self.memory = rss()

    async def end(self) -> None:
        """Call until there is enough to judge by, then stop. Where it was slow, look once more, and longer."""
        await self._more(self._mark + LEAST - len(self.latencies))
        if self.slowness() > self.baseline + ALLOWED:
            after = len(self.latencies)
            await self._more(max(LEAST, self._mark + ENOUGH - after))
            self.baseline = max(self.baseline, p99(self.latencies[after:]))
        await self.stop()

    def slowness(self) -> float:
        """p99 since the fault began."""
        return p99(self.latencies[self._mark :])

    @asynccontextmanager
    async def silent(self) -> AsyncIterator[None]:
        """No calls for a while, to measure what else the hub does."""
        await self.stop()
        yield
        self._start()

    def _start(self) -> None:
        self._waited = self._kept_waiting()
        self._runner = self._loop.create_task(self._run())

    async def stop(self) -> None:
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
            self._runner = None
        await asyncio.gather(*self._calls)

    async def _more(self, calls: int) -> None:
        enough = len(self.latencies) + len(self.errors) + calls
        while len(self.latencies) + len(self.errors) < enough:
            await asyncio.sleep(TICK)

    async def _run(self) -> None:
        due = self._loop.time()
        while True:
            waited, self._waited = self._waited, self._kept_waiting()
            self.memory = max(self.memory, rss())
            while due <= self._loop.time():
                if len(self._calls) < AT_ONCE:
                    call = self._loop.create_task(self._call(due, waited))
                    self._calls.add(call)
                    call.add_done_callback(self._calls.discard)
                due += TICK
            await asyncio.sleep(due - self._loop.time())

    async def _call(self, due: float, waited: float) -> None:
        self._number += 1
        nonce = f"{NAME}-{self._number}"
        try:
            reply = await self._hub.call_tool(f"{NAME}.echo", {"text": nonce, "nonce": nonce}, timeout=20)
        except CallError as exc:
            self.errors.append(str(exc))
            return
        if reply.text != nonce:
            self.errors.append(f"asked with {nonce}, was answered {reply.text}")
        took = self._loop.time() - due
        self.latencies.append(max(0.0, took - (self._kept_waiting() - waited)))

    def _kept_waiting(self) -> float:
        return kept_waiting("self", self._pid)


def p99(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(0.99 * len(values)) - 1] if values else 0.0
