import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

from toolway import Hub
from toolway.adapters import autogen


async def main() -> None:
    async with Hub("examples/mcp.json") as hub:
        client = OpenAIChatCompletionClient(model="gpt-4o")
        tools = await autogen.tools(hub, "demo.*")
        agent = AssistantAgent("helper", client, workbench=tools, max_tool_iterations=5)
        print((await agent.run(task="What is 1 + 2?")).messages[-1].content)


asyncio.run(main())
