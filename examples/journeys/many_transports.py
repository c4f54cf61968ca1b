"""A hub with many transports: one list of tools, tools found by name or by task, and errors as JSON-RPC."""

import asyncio

from toolway import Hub, NotFound, to_json_rpc
from toolway.testing import FakeHttp, FakeWebSocket, fake_server


async def main() -> None:
    async with FakeHttp() as http, FakeHttp(transport="sse") as sse, FakeWebSocket() as websocket:
        config = {
            "mcpServers": {
                "local": fake_server(tools=1),
                "modern": {"type": "streamable-http", "url": http.url, "keepAliveInterval": 60000},
                "older": {"type": "sse", "url": sse.url},
                "socket": {"type": "websocket", "url": websocket.url},
            }
        }
        async with Hub(config) as hub:
            for server in config["mcpServers"]:
                result = await hub.call_tool(f"{server}.add", {"a": 1, "b": 2})
                print(server, result.text)  # local 3 … modern 3 … older 3 … socket 3
            print(len({tool.server for tool in await hub.list_tools()}))  # 4
            found = await hub.search_tools("sum of two numbers", limit=1)
            print(found[0].tool.name)  # add
            try:
                await hub.call_tool("socket.ech", {})
            except NotFound as error:
                print(to_json_rpc(error)["code"], error.hint)  # -32602 did you mean socket.echo …


asyncio.run(main())
