"""A resilient client: several servers, retries with growing delays, health checks, and restarts."""

import asyncio
import json
import tempfile
from pathlib import Path

from toolway import Hub, OutcomeUnknown
from toolway.testing import FakeHttp, fake_server


async def main(folder: Path) -> None:
    async with FakeHttp(modes=["status=503;times=2;on=echo"]) as docs:
        config = {
            "mcpServers": {
                "github": {**fake_server(), "env": {"T": "${GITHUB_TOKEN:-none}"}, "timeout": 30000, "maxRestarts": 3},
                "docs": {"url": docs.url, "transport": "http", "timeout": 60000, "maxRetries": 3, "retryDelayMs": 10},
            }
        }
        (folder / "mcp.json").write_text(json.dumps(config))
        async with Hub(folder / "mcp.json") as hub:
            print((await hub.call_tool("docs.echo", {"text": "third try"})).text)  # third try
            try:
                await hub.call_tool("github.crash")
            except OutcomeUnknown as error:
                print(error.executed)  # unknown
            print((await hub.call_tool("docs.echo", {"text": "not affected"})).text)  # not affected
            await hub.wait_ready("github", timeout=30)
            print((await hub.call_tool("github.add", {"a": 1, "b": 2})).text)  # 3
            for name, result in (await hub.check_health()).items():
                print(name, result.ok)  # github True … docs True


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(Path(folder)))
