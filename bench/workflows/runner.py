"""What every runner does: execute runs of the same steps, some at a time, and write what became of them.

    python -m bench.workflows.NAME_runner FOLDER --url URL [--runs N | --seconds S] [--database URL] …

A runner is the process that is killed. It imports only the standard library and the engine that it runs, because each
engine has its own environment. A killed runner is started again with the same arguments.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

#: Name and tool of each step. A `pay` must not run twice.
STEPS = (("look", "read"), ("debit", "pay"), ("book", "pay_once"), ("credit", "pay"), ("notify", "pay"))
UNSAFE_STEPS = ("debit", "credit", "notify")
KEYED_STEPS = ("book",)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="state of the engine; the report is written to FOLDER/ended")
    parser.add_argument("--url", required=True, help="the effect server")
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0, help="instead of --runs: begin runs for so long")
    parser.add_argument("--at-once", type=int, default=20)
    parser.add_argument("--delay", type=float, default=0.0, help="of a call, before its effect and after it")
    parser.add_argument("--database", default="", help="address of the engine's database or server")
    parser.add_argument("--variant", default="")
    return parser.parse_args()


class EffectClient:
    """The cheapest client of the effect server: plain sockets that stay open."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname, parts.port)
        self._idle: weakref.WeakKeyDictionary[Any, list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = (
            weakref.WeakKeyDictionary()  # an engine may use several event loops
        )

    async def call(self, tool: str, run: str, step: str, delay: float = 0.0) -> dict[str, Any]:
        """Call a tool. The idempotency key is the run and the step, as all documentations advise."""
        name = f"{run}/{step}"
        params = {"name": tool, "arguments": {"id": name, "delay": delay}, "_meta": {"key": name}}
        reply = await self.send("POST", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        found: dict[str, Any] = reply["result"]["structuredContent"]
        return found

    async def send(self, method: str, value: Any = None) -> Any:
        idle = self._idle.setdefault(asyncio.get_running_loop(), [])
        reader, writer = idle.pop() if idle else await asyncio.open_connection(*self._address)
        body = b"" if value is None else json.dumps(value).encode()
        path = "/" if value is None else "/mcp"
        writer.write(f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        reply = json.loads(await reader.readexactly(length))
        idle.append((reader, writer))
        return reply


async def execute(
    options: argparse.Namespace,
    execute_run: Callable[[str], Awaitable[str]],
    asked: Callable[[], int] = lambda: 0,
) -> None:
    """Execute the runs and write the report. `execute_run` begins or continues a run and returns its last state."""
    if options.seconds:
        await execute_run("warm")
    (options.folder / "began").touch()
    states: Counter[str] = Counter()
    began, cpu = time.monotonic(), time.process_time()
    end = began + options.seconds if options.seconds else float("inf")
    numbers: Iterator[int] = itertools.count() if options.seconds else iter(range(options.runs))

    async def work() -> None:
        for number in numbers:
            if time.monotonic() >= end:
                return
            states[await execute_run(f"run{number}")] += 1

    await asyncio.gather(*(work() for _ in range(options.at_once)))
    report = {
        "states": dict(states),
        "seconds": time.monotonic() - began,
        "cpu": time.process_time() - cpu,
        "asked": asked(),
    }
    temporary = options.folder / "ended.part"
    temporary.write_text(json.dumps(report))
    temporary.rename(options.folder / "ended")
