import asyncio

from pydantic_ai import Agent

from toolway import Hub
from toolway.adapters import pydantic_ai


async def main() -> None:
    async with Hub("examples/mcp.json") as hub:
        agent = Agent("openai-chat:gpt-5", toolsets=[await pydantic_ai.tools(hub, "demo.*")])
        result = await agent.run("What is 1 + 2?")
        print(result.output)


asyncio.run(main())
