"""Worker of workflow runs on a Temporal server: python -m tests.workflows.temporal_worker ADDRESS EFFECTS."""

from __future__ import annotations

import asyncio
import sys

from tests.workflows.kill_runner import SERVER_FILE


async def main() -> None:
    from temporalio.client import Client

    from toolway import Hub, Server
    from toolway.workflows.temporal import TemporalWorkflows

    server = Server(command=sys.executable, args=(str(SERVER_FILE), sys.argv[2]), idempotency_meta_key="key")
    async with Hub({"s": server}) as hub, TemporalWorkflows(hub, await Client.connect(sys.argv[1])):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
