import asyncio
import sys

from toolway import Hub, InvalidArguments

servers = {"demo": f"{sys.executable} -m toolway.testing.stdio_main"}


async def main() -> None:
    async with Hub(servers) as hub:
        for tool in await hub.list_tools():
            print(tool.qualified_name, "-", tool.description)
        results = await asyncio.gather(*(hub.call_tool("demo.add", {"a": 1, "b": n}) for n in range(3)))
        print([result.text for result in results])  # ['1', '2', '3']
        try:
            await hub.call_tool("demo.add", {"a": 1, "b": "two"})
        except InvalidArguments as error:
            print(error.violations[0])  # $.b is a string, expected a number


asyncio.run(main())
