import asyncio

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient

from toolway import Hub
from toolway.adapters import agent_framework


async def main() -> None:
    async with Hub("examples/mcp.json") as hub:
        tools = await agent_framework.tools(hub, "demo.*")
        agent = Agent(OpenAIChatClient(model="gpt-5"), tools=tools)
        print((await agent.run("What is 1 + 2?")).text)


asyncio.run(main())
