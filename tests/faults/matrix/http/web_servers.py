"""HTTP servers for the HTTP rows: behind a proxy that breaks connections, and in their own processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.faults.fault_lab import Bench
from toolway import Server
from toolway.config.schema import RestartPolicy
from toolway.testing import FakeHttp, FaultProxy
from toolway.upstream.transports import streamable_http


def web(era: str, **options: Any) -> FakeHttp:
    """A fake server of an era, or of the transport that one of them began with."""
    return FakeHttp(transport="sse", **options) if era == "sse" else FakeHttp(era=era, **options)


def often(url: str) -> Server:
    """A server whose connections are cut again and again: where all answers come on one, that ends the link too."""
    return Server(url=url, restart=RestartPolicy(initial_backoff=0.01, max_backoff=0.05, max_restarts=10_000))


@asynccontextmanager
async def behind_proxy(era: str, **options: Any) -> AsyncIterator[tuple[FakeHttp, FaultProxy]]:
    """A fake server and the proxy that leads to it."""
    async with web(era, **options) as fake, FaultProxy(fake.host, fake.port) as proxy:
        yield fake, proxy


async def lose_connections(proxy: FaultProxy) -> None:
    """End them all, and let the hub see it: what it does while it cannot know is another row."""
    await proxy.cut_connections()
    await asyncio.sleep(0.05)


class Apart:
    """A fake server in its own process, which can be killed and started again on the same port."""

    def __init__(self, era: str, effects: str) -> None:
        self.port = 0
        self._path = "/sse" if era == "sse" else "/mcp"
        kind = ["--transport", "sse"] if era == "sse" else ["--era", era]
        self._words = ["-m", "toolway.testing.http_server", *kind, "--effects", effects]
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self._path}"

    async def start(self) -> None:
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, *self._words, "--port", str(self.port), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        self.port = int((await process.stdout.readline()).split()[1])

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.communicate()


@asynccontextmanager
async def apart(era: str, effects: str = "") -> AsyncIterator[Apart]:
    server = Apart(era, effects)
    try:
        await server.start()
        yield server
    finally:
        await server.kill()


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules for slow heads and bodies, in one second instead of ten."""
    limits = streamable_http.client_limits_for
    monkeypatch.setattr(
        streamable_http,
        "client_limits_for",
        lambda server: msgspec.structs.replace(limits(server), head_timeout=1.0, min_rate_window=1.0),
    )


async def calm_down(bench: Bench, server: str = "bad") -> None:
    """Good calls of the tool that fails, so no breaker opens where another fault is the point."""
    for tool in ("bad", "bad_read", "bad"):
        (await bench.call(f"{server}.{tool}", {"effect": True})).expect(None)
