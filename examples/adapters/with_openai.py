import asyncio

from openai import AsyncOpenAI

from toolway import Hub
from toolway.adapters import openai


async def main() -> None:
    async with Hub("examples/mcp.json") as hub, AsyncOpenAI() as client:
        tools = await openai.tools(hub, "demo.*")
        messages = [{"role": "user", "content": "What is 1 + 2?"}]
        while messages[-1]["role"] != "assistant":
            response = await client.chat.completions.create(model="gpt-5", messages=messages, tools=tools.chat)
            messages += await tools.answer_chat(response)  # the message of the model, and an answer to each call
        print(messages[-1]["content"])


asyncio.run(main())
