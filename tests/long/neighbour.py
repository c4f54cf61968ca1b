"""How slow a healthy server's calls become while another server does its worst: without it and with it, in turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from tests.faults.matrix.http.scripted_server import Turn, scripted
from tests.faults.neighbour import ALLOWED, NAME, Neighbour
from tests.long.server_set import fake_http
from tests.upstream.raw_http import json_response
from toolway import CallError, Hub, Limits, Server
from toolway.testing import fake_server

#: The call that does harm, and how long it may take.
FAULTS: Final[dict[str, tuple[str, dict[str, Any], float]]] = {
    "100,000 list_changed": ("pipe.bad", {"mode": "list_changed_flood=100000"}, 5.0),
    "a line of 50 MB": ("pipe.bad", {"mode": "line_mb=50"}, 5.0),
    "an endless line": ("pipe.bad", {"mode": "endless_line"}, 2.0),
    "a gzip bomb of 200 MB": ("web.bad", {"mode": "gzip_bomb=200"}, 5.0),
    "a catastrophic pattern": ("regex.slow", {}, 5.0),
}
_PATTERN: Final = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}}
_SLOW: Final = {"name": "slow", "inputSchema": {"type": "object"}, "outputSchema": _PATTERN}


@dataclass(frozen=True)
class Row:
    fault: str
    strikes: int
    without: float  # p99, seconds
    during: float
    errors: int

    @property
    def harmless(self) -> bool:
        return self.during <= self.without + ALLOWED and not self.errors

    def __str__(self) -> str:
        verdict = "" if self.harmless else "  TOO SLOW"
        return (
            f"  {self.fault:24} {self.strikes:4}  {self.without * 1e3:7.1f} ms  {self.during * 1e3:7.1f} ms"
            f"  {(self.during - self.without) * 1e3:+7.1f} ms{verdict}"
        )


@dataclass(frozen=True)
class Report:
    rows: list[Row]

    def __str__(self) -> str:
        head = f"  {'neighbour of':24} {'times':>4}  {'without':>10}  {'with':>10}  {'added':>10}"
        return "\n".join([head, *map(str, self.rows)])


async def run(seconds: float) -> Report:
    return Report([await measure(fault, seconds) for fault in FAULTS])


async def measure(fault: str, seconds: float) -> Row:
    async with _hub() as hub:
        strikes = 0

        async def strike() -> None:
            nonlocal strikes
            tool, arguments, timeout = FAULTS[fault]
            try:
                await hub.call_tool(tool, arguments, timeout=timeout, max_attempts=1)
            except CallError as exc:
                strikes -= exc.executed == "no"  # it was held back, so nothing happened
            strikes += 1
            for _ in range(2):  # good calls, so no breaker protects the neighbour
                with suppress(CallError):
                    await hub.call_tool(tool, {}, timeout=5)
            await asyncio.sleep(0.05)

        without = await _watch(hub, seconds, lambda: asyncio.sleep(0.1))
        during = await _watch(hub, seconds, strike)
        errors = len(without.errors) + len(during.errors)
        return Row(fault, strikes, without.slowness(), during.slowness(), errors)


async def _watch(hub: Hub, seconds: float, work: Callable[[], Awaitable[None]]) -> Neighbour:
    """The neighbour's calls while `work` is done again and again."""
    neighbour = Neighbour(hub)
    await neighbour.begin()
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        await work()
    await neighbour.stop()
    return neighbour


@asynccontextmanager
async def _hub() -> AsyncIterator[Hub]:
    async def spoiled(turn: Turn) -> None:
        message = turn.message
        message["result"]["structuredContent"] = {"text": "a" * 30 + "!"}
        await turn.conn.send(json_response(message))

    async with AsyncExitStack() as stack:
        web = await stack.enter_async_context(fake_http("modern"))
        regex = await stack.enter_async_context(scripted("modern", spoiled, tools=[_SLOW]))
        servers = {
            NAME: fake_server(),
            "pipe": fake_server(),
            "web": Server(url=web, limits=Limits(compression=True)),
            "regex": Server(url=regex.url),
        }
        hub = await stack.enter_async_context(Hub(servers, catalog_storage=None))
        await hub.wait_ready(timeout=30)
        yield hub
