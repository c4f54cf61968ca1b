"""Many calls held open at once, and as many streams that listen; how quick the gateway stays."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gateway.load_clients import ModernLoadClient, load_client
from tests.gateway.program import program
from toolway.testing import fake_server

TOGETHER = 50  # connections that are opened at once
BEYOND = 60.0  # seconds for all of it, on top of the time that calls are held

#: Its own process: what it measures is the loop of the gateway, and not the loop of a thousand clients.
_PROBE = """
import json, socket, sys, time
port, seconds = int(sys.argv[1]), float(sys.argv[2])
found, end = [], time.monotonic() + seconds
with socket.create_connection(("127.0.0.1", port)) as peer:
    while time.monotonic() < end:
        began = time.perf_counter()
        peer.sendall(b"GET /healthz HTTP/1.1\\r\\nhost: 127.0.0.1\\r\\n\\r\\n")
        assert peer.recv(65536).startswith(b"HTTP/1.1 200")
        found.append(time.perf_counter() - began)
        time.sleep(0.005)
found.sort()
print(json.dumps([found[len(found) // 2], found[int(len(found) * 0.99)], found[-1], len(found)]))
"""


@dataclass
class Report:
    calls: int
    listens: int
    seconds: float = 0.0
    answered: int = 0
    at_once: int = 0  # calls that the server had at the same time
    heard: int = 0  # streams that got a notification
    completed: int = 0  # streams that were ended in order
    lag: tuple[float, float, float, int] = (0, 0, 0, 0)  # seconds: median, p99, longest; and how often
    code: int = -1

    @property
    def whole(self) -> bool:
        each = (self.answered == self.at_once == self.calls, self.heard == self.completed == self.listens)
        return all(each) and self.code == 0

    def __str__(self) -> str:
        median, p99, longest = (1000 * each for each in self.lag[:3])
        return "\n".join(
            [
                f"  calls held      {self.calls}, {self.at_once} at the same time, in {self.seconds:.1f} s",
                f"  answered        {self.answered}, lost {self.calls - self.answered}",
                f"  listen streams  {self.listens}: {self.heard} heard of a change, {self.completed} ended in order",
                f"  loop lag        median {median:.1f} ms, p99 {p99:.1f} ms, longest {longest:.1f} ms",
                f"  exit            {self.code}",
            ]
        )


async def run(calls: int, listens: int, seconds: float) -> Report:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    report = Report(calls, listens)
    limits = {"maxConcurrent": calls + 10, "maxQueued": calls}
    with tempfile.TemporaryDirectory() as folder:
        server = {**fake_server(era="modern"), "limits": limits}
        async with program(Path(folder) / "gateway", {"fake": server}) as gateway:
            gate = asyncio.Semaphore(TOGETHER)

            async def hold(number: int) -> None:
                era = ("modern", "legacy")[number % 2]
                client = load_client(era, gateway.port, gateway.token)
                async with gate:
                    connection = await client.begin(
                        1,
                        "tools/call",
                        {"name": "fake__sleep", "arguments": {"seconds": seconds, "nonce": str(number)}},
                    )
                result = await client._answer(connection, 1, *await connection.head())
                report.answered += result.data["nonce"] == str(number)
                client.close()

            async def listen() -> tuple[Any, AsyncIterator[dict[str, Any]]]:
                async with gate:
                    connection, stream = await ModernLoadClient(gateway.port, gateway.token).listen()
                    assert (await anext(stream))["method"] == "notifications/subscriptions/acknowledged"
                    return connection, stream

            async with asyncio.timeout(seconds + BEYOND):
                streams = await asyncio.gather(*(listen() for _ in range(listens)))
                began = time.monotonic()
                held = [asyncio.create_task(hold(number)) for number in range(calls)]
                while (found := (await gateway.servers())["fake"]["in_flight"]) < calls:
                    report.at_once = max(report.at_once, found)
                    assert not any(task.done() for task in held), "the first calls ended before the last had begun"
                    await asyncio.sleep(0.05)
                report.at_once = found
                report.lag = await _probe(gateway.port, max(0.5, (seconds - (time.monotonic() - began)) * 0.8))
                await asyncio.gather(*held)
                report.seconds = time.monotonic() - began
                changer = load_client("modern", gateway.port, gateway.token)
                await changer.call("fake__change_tools", {})
                changer.close()
                first = await asyncio.gather(*(anext(stream) for _, stream in streams))
                report.heard = sum(each.get("method") == "notifications/tools/list_changed" for each in first)
                gateway.signal()
                last = await asyncio.gather(*(_last(stream) for _, stream in streams))
                report.completed = sum(each.get("result", {}).get("resultType") == "complete" for each in last)
                report.code = await gateway.ended()
    return report


async def _last(stream: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    return [message async for message in stream][-1]


async def _probe(port: int, seconds: float) -> tuple[float, float, float, int]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PROBE, str(port), str(seconds), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    median, p99, longest, times = json.loads(out)
    return median, p99, longest, times
