import asyncio

from google import genai

from toolway import Hub
from toolway.adapters import gemini


async def main() -> None:
    async with Hub("examples/mcp.json") as hub, genai.Client().aio as client:
        tools = await gemini.tools(hub, "demo.*")
        contents = [genai.types.Content(role="user", parts=[genai.types.Part(text="What is 1 + 2?")])]
        how = genai.types.GenerateContentConfig(**tools.config)
        while contents[-1].role != "model":
            answer = await client.models.generate_content(model="gemini-3-flash", contents=contents, config=how)
            contents += await tools.answer(answer)
        print(contents[-1].parts[0].text)


asyncio.run(main())
