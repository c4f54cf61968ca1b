import asyncio

from toolway import CallError, Hub, Timeout


async def main() -> None:
    async with Hub("examples/mcp.json", timeout=Timeout(30)) as hub:
        for tool in await hub.list_tools():
            print(tool.qualified_name, "-", tool.description)
        try:
            result = await hub.call_tool("demo.sleep", {"seconds": 60}, timeout=0.5)
            print(result.text)
        except CallError as error:
            print(error, "- executed:", error.executed)
        print(hub.status()["demo"].why)


asyncio.run(main())
