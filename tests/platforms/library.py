"""`Hub` and `SyncHub` in a program of a user."""

from __future__ import annotations

from tests.platforms.checks import check
from tests.platforms.home import Home

HUB = """
import asyncio, sys
from toolway import Hub, ToolwayError

FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}

async def main():
    async with Hub({"mcpServers": {"fake": FAKE}}, audit_log="audit.jsonl") as hub:
        await hub.wait_ready()
        assert len(await hub.list_tools()) > 10
        assert len((await hub.call_tool("fake.big", {"n": 3_000_000})).text) == 3_000_000
        assert len((await hub.call_tool("fake.echo", {"text": "ü" * 500_000})).text) == 500_000
        calls = (hub.call_tool("fake.echo", {"text": str(number)}) for number in range(200))
        assert [each.text for each in await asyncio.gather(*calls)] == [str(number) for number in range(200)]
        try:
            await hub.call_tool("fake.crash", {"code": 3})
        except ToolwayError as exc:
            assert "exit code 3" in str(exc), exc
        else:
            raise AssertionError("no error")
        assert (await hub.call_tool("fake.echo", {"text": "again"})).text == "again"
    return type(asyncio.get_running_loop()).__name__

print(asyncio.run(main()))
"""
SYNC = """
import sys
from concurrent.futures import ThreadPoolExecutor
from toolway import SyncHub

with SyncHub({"fake": {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}}) as hub:
    with ThreadPoolExecutor(8) as pool:
        sums = list(pool.map(lambda n: hub.call_tool("fake.add", {"a": n, "b": 1}).text, range(80)))
    assert sums == [str(n + 1) for n in range(80)], sums
    assert hub.call_tool("fake.echo", {"text": "ü"}).text == "ü"
print("80 calls from 8 threads")
"""
CANCEL = """
import asyncio, sys
from toolway import Hub, ToolwayError

FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}

async def main():
    async with Hub({"fake": FAKE}) as hub:
        try:
            await hub.call_tool("fake.sleep", {"seconds": 60}, timeout=0.5)
        except ToolwayError as exc:
            assert "timed out" in str(exc), exc
        task = asyncio.ensure_future(hub.call_tool("fake.sleep", {"seconds": 60}))
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert (await hub.call_tool("fake.echo", {"text": "x"})).text == "x"

asyncio.run(main())
print("the server answers the next call")
"""


@check("Library", "`Hub`: big results and arguments, 200 calls at once, a crash, a restart, an audit log", quick=True)
def hub(home: Home) -> str:
    return home.run_program(HUB)


@check("Library", "`SyncHub`: calls from several threads", quick=True)
def sync_hub(home: Home) -> str:
    return home.run_program(SYNC)


@check("Library", "`Hub`: a call that times out, and one that is cancelled")
def cancel(home: Home) -> str:
    return home.run_program(CANCEL)
