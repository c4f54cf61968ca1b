import asyncio

from agents import Agent, Runner

from toolway import Hub
from toolway.adapters import openai_agents


async def main() -> None:
    async with Hub("examples/mcp.json") as hub:
        agent = Agent(name="helper", model="gpt-5", tools=await openai_agents.tools(hub, "demo.*"))
        result = await Runner.run(agent, "What is 1 + 2?")
        print(result.final_output)


asyncio.run(main())
