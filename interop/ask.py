"""One client library asks a gateway: how many tools there are, and what one call answers. Prints one JSON object.

    python interop/ask.py sdk|fastmcp MODE URL TOKEN TOOL ARGUMENTS

It runs in the environment of the library that it is for, so it imports nothing of ours.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import sys
from typing import Any

LIMIT = 60.0  # seconds


async def sdk(mode: str, url: str, token: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=LIMIT) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        page = await client.list_tools()
        names = [each.name for each in page.tools]
        while page.next_cursor is not None:
            page = await client.list_tools(cursor=page.next_cursor)
            names += [each.name for each in page.tools]
        result = await client.call_tool(tool, arguments)
        text = "".join(getattr(block, "text", "") for block in result.content)
    return {"version": importlib.metadata.version("mcp"), "tools": len(names), "text": text}


async def fastmcp(mode: str, url: str, token: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    # Installed where this part of the file runs, and nowhere else.
    from fastmcp import Client  # type: ignore[import-not-found]
    from fastmcp.client.transports import StreamableHttpTransport  # type: ignore[import-not-found]

    transport = StreamableHttpTransport(url, headers={"Authorization": f"Bearer {token}"})
    async with Client(transport, mode=mode) as client:
        tools = await client.list_tools()
        result = await client.call_tool(tool, arguments)
        text = "".join(getattr(block, "text", "") for block in result.content)
    return {"version": importlib.metadata.version("fastmcp"), "tools": len(tools), "text": text}


async def main() -> None:
    library, mode, url, token, tool, arguments = sys.argv[1:]
    ask = {"sdk": sdk, "fastmcp": fastmcp}[library]
    async with asyncio.timeout(LIMIT):
        print(json.dumps(await ask(mode, url, token, tool, json.loads(arguments))))


asyncio.run(main())
