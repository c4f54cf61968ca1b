"""Start a gateway and call a tool through it with the client of the MCP SDK."""

import asyncio
import json
import os
import subprocess
import tempfile

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def call_gateway(url: str, headers: dict[str, str]) -> None:
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(url, http_client=http)) as mcp,
    ):
        print(len((await mcp.list_tools()).tools), "tools")
        result = await mcp.call_tool("demo__add", {"a": 1, "b": 2})
        print(result.structured_content)


with tempfile.TemporaryDirectory() as state:
    environ = {**os.environ, "TOOLWAY_STATE": state}  # a separate token for this example
    serve = ["toolway", "serve", "--config", "examples/mcp.json", "--port", "0", "--json", "--quiet"]
    with subprocess.Popen(serve, env=environ, stdout=subprocess.PIPE) as gateway:
        assert gateway.stdout is not None
        try:
            next(line for line in gateway.stdout if line == b"}\n")  # it prints its URL as JSON when it is ready
            export = ["toolway", "connect", "generic", "--print", "--json"]
            client = json.loads(subprocess.check_output(export, env=environ))
            asyncio.run(call_gateway(client["url"], client["headers"]))
        finally:
            gateway.terminate()
