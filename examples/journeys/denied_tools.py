"""A manager with deny lists: denied tools are in no list and can't be called, and the lists change while it runs."""

import asyncio

from toolway import AccessDenied, Hub
from toolway.testing import fake_server


async def main() -> None:
    async with Hub({"files": {**fake_server(), "deniedTools": ["crash", "big*"]}}) as hub:
        names = {tool.name for tool in await hub.list_tools()}
        print("echo" in names, "crash" in names)  # True False
        try:
            await hub.call_tool("files.crash")
        except AccessDenied as error:
            print(error.executed, error.code)  # no E-TOOL-DENIED

        hub.set_denied_tools("files", ["echo"])
        print("echo" in {tool.name for tool in await hub.list_tools()})  # False
        hub.set_denied_tools("files", None)

        await hub.add_server("notes", fake_server())
        await hub.wait_ready("notes")
        print((await hub.find_tool("notes.echo")).qualified_name)  # notes.echo
        print(sorted({tool.server for tool in await hub.list_tools()}))  # ['files', 'notes']


asyncio.run(main())
