"""Idle connections, and slow ones that send byte by byte, next to working callers.

500 of them; 10,000 with TOOLWAY_LONG=1 (`make long-tests ARGS=idle`). The gateway is its own process, so we measure
only its side.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.edge_lab import MODERN, modern
from tests.gateway.program import Program, program
from tests.http.raw_client import Raw, connected
from toolway.testing import fake_server

pytestmark = [pytest.mark.anyio, pytest.mark.alone, pytest.mark.dear]

COUNT = 10_000 if os.environ.get("TOOLWAY_LONG") else 500
SLOW = COUNT // 10  # of them send a head, and as many a body, a byte at a time
CALLS = 400
GREW = 0.050  # seconds that the p99 of a caller may grow by
EACH = 24 * 1024  # bytes of memory that a connection may cost
AT_ONCE = 200  # connections being opened
ADDRESSES = 4  # of ours that they come from, so ports do not run out


@pytest.fixture(autouse=True)
def _enough_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = COUNT + 1000
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            pytest.skip(f"this system lets a process have {hard} open files; {wanted} are needed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@pytest.mark.fault("C2")
@pytest.mark.timeout(600)
async def test_idle_and_slow_connections_do_not_slow_down_callers(tmp_path: Path, dice: random.Random) -> None:
    async with program(tmp_path / "gateway", {"fake": fake_server()}) as run, connected(run.port) as caller:
        await _calls(run, caller, 50)
        before, memory = await _calls(run, caller, CALLS), _rss(run.pid)
        async with _idle_connections(run, dice) as idle:
            await _until_open(run, COUNT - SLOW)
            during = await _calls(run, caller, CALLS)
            grown = _rss(run.pid) - memory
            open_ = await _connections(run)
            assert open_ >= COUNT - 2 * SLOW  # silent connections may stay
        print(
            f"\n{open_} connections, {idle.trickled} of their bytes: p50 {_at(before, 50) * 1000:.1f} → "
            f"{_at(during, 50) * 1000:.1f} ms, p99 {_at(before, 99) * 1000:.1f} → {_at(during, 99) * 1000:.1f} ms, "
            f"{grown / open_ / 1024:.1f} KiB each"
        )
        assert _at(during, 99) <= _at(before, 99) + GREW
        assert grown <= open_ * EACH + 16 * 1024 * 1024
        assert idle.trickled > SLOW
        await _until_open(run, 0, most=5)
        assert len(await _calls(run, caller, 20)) == 20  # on the same connection as ever


async def _calls(run: Program, caller: Raw, count: int) -> list[float]:
    """How long calls take, one after the other, on one connection."""
    body, fields = modern("tools/call", {"name": "fake__echo", "arguments": {"text": "x"}})
    data = _request(run, body, fields)
    took = []
    for _ in range(count):
        began = time.perf_counter()
        answer = await caller.ask(data)
        took.append(time.perf_counter() - began)
        assert answer.status == 200, answer
        await asyncio.sleep(0.005)
    return sorted(took)


def _request(run: Program, body: object, fields: dict[str, str]) -> bytes:
    data = json.dumps(body).encode()
    lines = {
        "Host": f"127.0.0.1:{run.port}",
        "Authorization": f"Bearer {run.token}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Content-Length": str(len(data)),
        **fields,
    }
    return b"POST /mcp HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items()).encode() + b"\r\n" + data


class IdleConnections:
    """Connections that send nothing useful."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.socks: list[socket.socket] = []
        self.trickled = 0
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def open(self, source: int, begin: bytes = b"") -> socket.socket:
        async with self._gate:
            sock = socket.socket()
            sock.setblocking(False)
            sock.bind((f"127.0.0.{source + 2}", 0))
            self.socks.append(sock)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", self.port))
            if begin:
                await loop.sock_sendall(sock, begin)
            return sock

    async def trickle(self, socks: list[socket.socket]) -> None:
        """A byte for each of them in every second, for as long as they are let."""
        while True:
            for number, sock in enumerate(socks):
                with contextlib.suppress(OSError):
                    self.trickled += sock.send(b"x")
                if number % 50 == 49:
                    await asyncio.sleep(0)
            await asyncio.sleep(1)

    def close(self) -> None:
        for sock in self.socks:
            sock.close()


@contextlib.asynccontextmanager
async def _idle_connections(run: Program, dice: random.Random) -> AsyncIterator[IdleConnections]:
    idle = IdleConnections(run.port)
    head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{run.port}\r\nX: ".encode()
    body = _request(run, {}, {"Content-Length": "100000", "Mcp-Protocol-Version": MODERN})  # from a client with a token
    begins = [head] * SLOW + [body] * SLOW + [b""] * (COUNT - 2 * SLOW)
    dice.shuffle(begins)
    trickling = None
    try:
        opened = await asyncio.gather(*(idle.open(n % ADDRESSES, begin) for n, begin in enumerate(begins)))
        slow = [sock for sock, begin in zip(opened, begins, strict=True) if begin]
        trickling = asyncio.create_task(idle.trickle(slow))
        yield idle
    finally:
        if trickling is not None:
            trickling.cancel()
        idle.close()


async def _connections(run: Program) -> int:
    _, facts = await run.get("/admin")
    return int(facts["connections"])


async def _until_open(run: Program, least: int, most: int = 1_000_000) -> None:
    async with asyncio.timeout(60):
        while not least <= await _connections(run) <= most:
            await asyncio.sleep(0.1)


def _rss(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


def _at(took: list[float], percent: int) -> float:
    return took[min(len(took) - 1, len(took) * percent // 100)]
