import asyncio

from anthropic import AsyncAnthropic

from toolway import Hub
from toolway.adapters import anthropic


async def main() -> None:
    async with Hub("examples/mcp.json") as hub, AsyncAnthropic() as client:
        tools = await anthropic.tools(hub, "demo.*")
        question = {"role": "user", "content": "What is 1 + 2?"}
        runner = client.beta.messages.tool_runner(
            model="claude-sonnet-5", max_tokens=1000, messages=[question], tools=tools.runnable()
        )
        print((await runner.until_done()).content[0].text)


asyncio.run(main())
