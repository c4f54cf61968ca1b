"""A process that calls a guarded server, and processes of that kind.

    async with caller(url) as one:
        await one.ready()
        outcomes = await one.call(100)

It shares the store of tokens with whoever started it, as programs of one user do.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class Caller:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def call(self, number: int) -> Counter[str]:
        """So many calls at once, and how they ended: `ok`, or the code of an error."""
        await self.begin(number)
        return await self.outcomes()

    async def begin(self, number: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n".encode())
        await self._process.stdin.drain()

    async def outcomes(self) -> Counter[str]:
        assert self._process.stdout is not None
        return Counter(json.loads(await self._process.stdout.readline()))

    def kill(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)


@asynccontextmanager
async def caller(url: str) -> AsyncIterator[Caller]:
    """Ready for its first call, but it has called no one."""
    pipe = asyncio.subprocess.PIPE
    root = Path(__file__).resolve().parents[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.auth.callers", url, stdin=pipe, stdout=pipe, cwd=root
    )
    try:
        made = Caller(process)
        assert await made.outcomes() == {}
        yield made
    finally:
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(20):
            await process.wait()


async def _call(url: str) -> None:
    from toolway import Hub, ToolwayError

    async def one(hub: Hub) -> str:
        try:
            return "tool failed" if (await hub.call_tool("guarded.echo", timeout=60)).is_error else "ok"
        except ToolwayError as exc:
            return exc.code

    async with Hub({"guarded": {"url": url, "lazy": True}}, catalog_storage=None) as hub:
        print("{}", flush=True)
        while number := (await asyncio.to_thread(sys.stdin.readline)).strip():
            outcomes = await asyncio.gather(*(one(hub) for _ in range(int(number))))
            print(json.dumps(Counter(outcomes)), flush=True)


if __name__ == "__main__":
    asyncio.run(_call(sys.argv[1]))
