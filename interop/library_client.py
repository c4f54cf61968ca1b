"""Use one client library with a gateway: count the tools, make one call, print one JSON object.

    python interop/library_client.py sdk|fastmcp MODE URL TOKEN TOOL ARGUMENTS

It runs in the environment of that library, so it imports nothing of Toolway.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import sys
from typing import Any

TIMEOUT_S = 110.0  # seconds


async def sdk(mode: str, url: str, token: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=TIMEOUT_S) as http,
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
    # Installed only in the environment that runs this function.
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
    use_library = {"sdk": sdk, "fastmcp": fastmcp}[library]
    async with asyncio.timeout(TIMEOUT_S):
        print(json.dumps(await use_library(mode, url, token, tool, json.loads(arguments))))


asyncio.run(main())
