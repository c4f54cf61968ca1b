"""Servers behind a URL that are killed and started again under load, and how soon every client is served again.

The port is back when a connection to it succeeds. From then on it is measured how late a call was still refused.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.gateway.load_clients import Failed, Lost, load_client
from tests.gateway.program import program
from tests.long.server_set import table
from toolway import CallError, Hub

CLIENTS: Final = 20
GOAL_S: Final = 2.0
SETTLE_S: Final = 6.0  # after each return of the port
_MODULES: Final = {
    "modern": ("http_server", "--era", "modern"),
    "legacy": ("http_server", "--era", "legacy"),
    "sse": ("http_server", "--transport", "sse"),
    "websocket": ("websocket_server", "--era", "modern"),
    "openapi": ("fake_api",),
}
_URLS: Final = {"sse": "http://127.0.0.1:{}/sse", "websocket": "ws://127.0.0.1:{}/mcp"}
KINDS: Final = tuple(_MODULES)
Call = Callable[[], Awaitable[object]]


@dataclass
class Report:
    late: dict[str, list[float]] = field(default_factory=dict)  # seconds for each restart, by front and kind
    calls: int = 0

    @property
    def worst(self) -> float:
        return max(max(each) for each in self.late.values())

    def __str__(self) -> str:
        rows = {name: "  ".join(f"{seconds:5.2f}" for seconds in each) for name, each in self.late.items()}
        return "last refused call, in seconds after the port was back, for each restart\n" + table(
            {**rows, "calls": self.calls}
        )


class Process:
    """A fake server in its own process, on one port for all its lives."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", 0))
            self.port: int = sock.getsockname()[1]
        self._process: asyncio.subprocess.Process | None = None

    @property
    def entry(self) -> dict[str, Any]:
        url = _URLS.get(self._kind, "http://127.0.0.1:{}/mcp").format(self.port)
        if self._kind == "openapi":
            return {"openapi": f"http://127.0.0.1:{self.port}/openapi.json"}
        return {"url": url, "type": "sse"} if self._kind == "sse" else {"url": url}

    @property
    def tool(self) -> tuple[str, dict[str, Any]]:
        return ("list_pets", {}) if self._kind == "openapi" else ("counter", {})

    async def start(self) -> float:
        """Start it, and return the time at which its port was open."""
        module, *words = _MODULES[self._kind]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"toolway.testing.{module}",
            *words,
            "--port",
            str(self.port),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(60):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.01)
                else:
                    writer.close()
                    return time.monotonic()

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.wait()


class Load:
    """Twenty clients that call without a pause, and when their calls were refused or succeeded."""

    def __init__(self, calls: list[Call]) -> None:
        self.refused: list[float] = []
        self.succeeded: list[float] = []
        self.made = 0
        self._tasks = [asyncio.create_task(self._client(call)) for call in calls]

    async def _client(self, call: Call) -> None:
        while True:
            self.made += 1
            try:
                await call()
                self.succeeded.append(time.monotonic())
            except (CallError, Failed, Lost) as exc:
                if exc.executed == "no":
                    self.refused.append(time.monotonic())
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def run(restarts: int, down: float, kinds: tuple[str, ...] = KINDS) -> Report:
    """Restart a server of each kind, before a hub and before a gateway; it is down for `down` seconds and its start."""
    report = Report()
    for kind in kinds:
        for front in (_hub, _gateway):
            server = Process(kind)
            await server.start()
            try:
                async with front(server) as calls:
                    load = Load(calls)
                    late = [await _restart(server, load, down) for _ in range(restarts)]
                    await load.stop()
            finally:
                await server.kill()
            name = f"{front.__name__.removeprefix('_')}, {kind}"
            report.late[name] = late
            report.calls += load.made
            print(f"{name}: {'  '.join(f'{each:.2f}' for each in late)} s, {load.made} calls", flush=True)
    return report


async def _restart(server: Process, load: Load, down: float) -> float:
    """Kill the server and start it again; return how late a call was still refused."""
    await asyncio.sleep(1.0)
    await server.kill()
    await asyncio.sleep(down)
    back = await server.start()
    await asyncio.sleep(SETTLE_S)
    if not load.succeeded or load.succeeded[-1] < back:
        return float("inf")
    return max((at for at in load.refused if at >= back), default=back) - back


@asynccontextmanager
async def _hub(server: Process) -> AsyncIterator[list[Call]]:
    tool, arguments = server.tool
    async with Hub({"web": server.entry}, catalog_storage=None) as hub:
        await hub.wait_ready(timeout=60)
        yield [lambda: hub.call_tool(f"web.{tool}", arguments, timeout=20) for _ in range(CLIENTS)]


@asynccontextmanager
async def _gateway(server: Process) -> AsyncIterator[list[Call]]:
    tool, arguments = server.tool
    with tempfile.TemporaryDirectory() as folder:
        async with program(Path(folder) / "run", {"web": server.entry}) as running:
            eras = ("modern", "legacy")
            open_clients = [load_client(eras[number % 2], running.port, running.token) for number in range(CLIENTS)]
            try:
                yield [partial(each.call, f"web__{tool}", arguments) for each in open_clients]
            finally:
                for each in open_clients:
                    each.close()
