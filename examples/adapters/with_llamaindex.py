import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai import OpenAI

from toolway import Hub
from toolway.adapters import llamaindex


async def main() -> None:
    async with Hub("examples/mcp.json") as hub:
        tools = await llamaindex.tools(hub, "demo.*")
        agent = FunctionAgent(tools=tools, llm=OpenAI(model="gpt-4o"), streaming=False)
        print(await agent.run("What is 1 + 2?"))


asyncio.run(main())
