"""An agent that reads and writes with the tools of a server, and asks before it writes."""

import asyncio
import sys

from toolway import Hub
from toolway.agents import Agent, Budget


async def main(model: str, base_url: str | None = None) -> None:
    async with Hub("mcp.json") as hub:
        budget = Budget(calls=20, requests=10)
        async with Agent(model, hub, tools=["notes.*"], budget=budget, base_url=base_url, journal="runs.db") as agent:
            run = await agent.start("Add a note: buy milk", key="milk-1")
            async for event in run.events():
                if event.kind == "asks":
                    answer = await asyncio.to_thread(input, f"{event.text}? [y/n] ")
                    await run.approve(event.step, yes=answer == "y")
            print((await run.result()).output)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
