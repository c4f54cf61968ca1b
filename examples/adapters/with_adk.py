import asyncio

from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner

from toolway import Hub
from toolway.adapters import adk


async def main() -> None:
    async with Hub("examples/mcp.json") as hub:
        agent = LlmAgent(name="helper", model="gemini-2.5-flash", tools=[await adk.tools(hub, "demo.*")])
        events = await InMemoryRunner(agent).run_debug("What is 1 + 2?", quiet=True)
        print(events[-1].content.parts[0].text)


asyncio.run(main())
