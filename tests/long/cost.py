"""What the stages of the pipeline cost: the same call with all of them and with none, side by side."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from mcp.server import MCPServer

from tests.long.server_set import table
from toolway import Hub, Server
from toolway.hub.core import HubCore
from toolway.hub.environment import HubEnvironment
from toolway.middleware.chain import compose
from toolway.testing import fake_server
from toolway.types import Call, CallResult, Era, Json
from toolway.upstream.transport import Disconnect, InboundHandler, Request, TransportInfo

GOAL: Final = 0.7  # of the bare throughput
_TOOL: Final[Json] = {"name": "echo", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
_RESULTS: Final[dict[str, Json]] = {
    "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
    "tools/list": {"tools": [_TOOL]},
    "tools/call": {"content": [{"type": "text", "text": "x"}]},
}

Make = Callable[[], Awaitable[CallResult]]


class Instant:
    """A link that answers at once, so nothing but our own work is measured."""

    async def open(self, inbound: InboundHandler) -> None: ...

    async def request(self, request: Request) -> Json:
        return _RESULTS[request.method]

    async def notify(self, method: str, params: Json) -> None: ...

    def set_protocol(self, era: Era, version: str) -> None: ...

    def reset_session(self) -> None: ...

    async def wait_closed(self) -> Disconnect:
        await asyncio.Event().wait()
        raise AssertionError

    def info(self) -> TransportInfo:
        return TransportInfo()

    async def close(self) -> None: ...


def _instant(*_: Any) -> Instant:
    return Instant()


@dataclass(frozen=True)
class Report:
    way: str  # to the server
    rates: dict[str, float]  # calls a second of our CPU time, by what was measured

    @property
    def ratio(self) -> float:
        return self.rates["all stages"] / self.rates["no stage"]

    def __str__(self) -> str:
        bare = self.rates["no stage"]
        rows = {
            name: f"{1e6 / rate:6.1f} µs of CPU  {rate:8.0f}/s  {rate / bare:6.2f} of the bare call"
            for name, rate in self.rates.items()
        }
        return f"{self.way}\n{table(rows)}"


async def instantly(rounds: int = 30, calls: int = 1000) -> Report:
    """Over a link that answers at once: nothing but our own work."""
    server, world = Server(command="instant", era="modern"), HubEnvironment(create_transport=_instant)
    return Report("a link that answers at once", await _measure(server, world, rounds, calls))


async def over_a_pipe(rounds: int = 20, calls: int = 300) -> Report:
    """Over a real process: what the same work weighs in a real call."""
    return Report("a process on a pipe", await _measure(Server(**fake_server()), HubEnvironment(), rounds, calls))


async def in_process(rounds: int = 20, calls: int = 200) -> Report:
    """Over the in-process transport, to a server object of the SDK."""
    sdk = MCPServer("s")

    @sdk.tool()
    def echo(text: str) -> str:
        return text

    return Report(
        "a server object in this process", await _measure(Server(instance=sdk), HubEnvironment(), rounds, calls)
    )


async def _measure(server: Server, world: HubEnvironment, rounds: int, calls: int) -> dict[str, float]:
    async with Hub._from_core(HubCore({"s": server}, catalog_storage=None, environment=world)) as hub:
        await hub.wait_ready()
        ways = _ways(hub)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, make in ways.items():  # in turns, so a busy machine is as busy for all of them
                taken[name].append(await _time(make, calls))
        return {name: calls / statistics.median(times) for name, times in taken.items()}


def _ways(hub: Hub) -> dict[str, Make]:
    """The ways to make the same call."""
    bare = compose([], hub._core.calls._dispatcher.dispatch)
    params: Json = {"name": "echo", "arguments": {"text": "x"}}
    keys = iter(range(10**9))

    def call(**more: Any) -> Call:
        return Call("s.echo", "tools/call", params, **more)

    return {
        "no stage": lambda: bare(call(server="s", name="echo")),
        "all stages": lambda: hub._core.calls._chain(call()),
        "all stages, with a key": lambda: hub._core.calls._chain(call(idempotency_key=f"key-{next(keys)}")),
        "call_tool": lambda: hub.call_tool("s.echo", {"text": "x"}),
    }


async def _time(make: Make, calls: int) -> float:
    """CPU time of this process: what others do on the machine does not count."""
    gc.collect()
    gc.disable()
    try:
        began = time.process_time()
        for _ in range(calls):
            await make()
        return time.process_time() - began
    finally:
        gc.enable()
