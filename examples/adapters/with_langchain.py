import asyncio

from langchain.agents import create_agent

from toolway import Hub
from toolway.adapters import langchain


async def main() -> None:
    async with Hub("examples/mcp.json") as hub:
        agent = create_agent("openai:gpt-5", await langchain.tools(hub, "demo.*"))
        answer = await agent.ainvoke({"messages": [{"role": "user", "content": "What is 1 + 2?"}]})
        print(answer["messages"][-1].content)


asyncio.run(main())
