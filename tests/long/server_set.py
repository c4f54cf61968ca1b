"""A hub over many real servers of both kinds and both eras, and the faults they can be asked for."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toolway import Hub, RestartPolicy, Server
from toolway.testing import fake_server

ERAS: Final = ("modern", "legacy")

#: What goes wrong with one call. The same on every server of its kind.
STDIO_FAULTS: Final = (
    "exit_mid_call",
    "exit_held_stdout",
    "closes_stdout",
    "bad_utf8=inside",
    "truncated",
    "duplicate_keys",
    "garbage",
    "twice",
    "unknown_id",
    "never",
)
HTTP_FAULTS: Final = (
    "reset_before_response",
    "close_before_response",
    "close_after_response",
    "cut_body",
    "cut_sse=between",
    "cut_sse=inside",
    "status=500",
    "status=503",
    "status=503;retry_after=0.2",
    "status=429;retry_after=0.2",
    "id_of_other",
    "bad_utf8",
    "html",
    "empty_202",
    "drop_sessions",
    "never",
)
#: By these a server says that it has done nothing, so it must not do anything first.
REFUSALS: Final = frozenset({"status=503;retry_after=0.2", "status=429;retry_after=0.2"})

# Servers die far more often here than the limit allows that gives up on one.
_TIRELESS: Final = RestartPolicy(max_restarts=1_000_000, max_backoff=0.2)


@dataclass(frozen=True)
class Fleet:
    hub: Hub
    faults: Mapping[str, tuple[str, ...]]  # by server


@asynccontextmanager
async def fleet(effects: Path, stdio: int = 6, http: int = 4) -> AsyncIterator[Fleet]:
    """A hub with that many servers of each kind, all ready."""
    async with AsyncExitStack() as stack:
        servers: dict[str, Server] = {}
        faults: dict[str, tuple[str, ...]] = {}
        for number in range(stdio):
            entry = fake_server(era=ERAS[number % 2], effects=str(effects))
            name = f"pipe-{number}"
            servers[name], faults[name] = Server(**entry, restart=_TIRELESS), STDIO_FAULTS
        for number in range(http):
            url = await stack.enter_async_context(fake_http(ERAS[number % 2], effects))
            name = f"web-{number}"
            servers[name], faults[name] = Server(url=url, restart=_TIRELESS), HTTP_FAULTS
        async with Hub(servers, catalog_storage=None) as hub:
            await hub.wait_ready(timeout=60)
            yield Fleet(hub, faults)


@asynccontextmanager
async def fake_http(era: str, effects: Path | None = None, answer: str = "json") -> AsyncIterator[str]:
    """The URL of a fake HTTP server in its own process."""
    words = ["-m", "toolway.testing.http_server", "--era", era, "--answer", answer]
    words += ["--effects", str(effects)] if effects is not None else []
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = int((await process.stdout.readline()).split()[1])
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        await process.communicate()


def restarts(hub: Hub) -> int:
    return sum(status.restarts for status in hub.status().values())


def table(rows: Mapping[str, Any]) -> str:
    """Names and values, one line each."""
    width = max(map(len, rows), default=0)
    return "\n".join(f"  {name:{width}}  {value}" for name, value in rows.items())
