"""Program for tests: start an agent run, or continue it, until it ends or asks.

python -m tests.agents.run_once JOURNAL EFFECTS MODEL URL [APPROVE]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from tests.workflows.kill_runner import SERVER_FILE
from toolway import Hub, Server
from toolway.agents import Agent, Budget

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY")


async def main(journal: str, effects: str, model: str, url: str, approve: str = "none") -> None:
    os.environ.update(dict.fromkeys(KEYS, "none"))
    server = Server(command=sys.executable, args=(str(SERVER_FILE), effects))
    async with Hub({"s": server}) as hub:
        agent = Agent(
            model,
            hub,
            base_url=url,
            approve=approve,  # type: ignore[arg-type] # one of its words
            budget=Budget(requests=20),
            journal=Path(journal),
        )
        async with agent:
            run = await agent.start("Pay it", key="the-run")
            if approve == "answer":
                await run.approve(by="ann")
            record = await run.wait()
            print(json.dumps({"state": record.state, "output": record.output, "error": record.error}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
