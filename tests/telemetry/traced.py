"""MCP client and MCP servers of the SDK with their own traces.

python tests/telemetry/traced.py client URL TOKEN     a root span, and calls inside it
python tests/telemetry/traced.py http                 a server on its own port, which fails its first call with 503
python tests/telemetry/traced.py stdio                a server on its pipes

Where spans go is in OTEL_EXPORTER_OTLP_ENDPOINT.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from pydantic import BaseModel


class Answer(BaseModel):
    well: bool


def record(service: str) -> None:
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def server(name: str) -> Any:
    from mcp_types import ToolAnnotations

    made = MCPServer(name)

    @made.tool(annotations=ToolAnnotations(read_only_hint=True))
    def look(at: str) -> str:
        """Look at something."""
        with trace.get_tracer("theirs").start_as_current_span("their own work"):
            return f"{name} saw {at}"

    @made.tool()
    async def ask(ctx: Context) -> str:
        """Ask the caller."""
        return str((await ctx.elicit("well?", Answer)).action)

    @made.tool()
    def fail() -> str:
        """Fail."""
        raise ValueError("it failed")

    return made


async def serve_http() -> None:
    import uvicorn

    app = server("one").streamable_http_app()
    refused = False

    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        """The first call is refused by what stands before the server."""
        nonlocal refused
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if b'"tools/call"' in body and not refused:
            refused = True
            await send({"type": "http.response.start", "status": 503, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
            return
        sent = [{"type": "http.request", "body": body}]

        async def again() -> Any:
            return sent.pop() if sent else await receive()

        await app(scope, again, send)

    running = uvicorn.Server(uvicorn.Config(refusing, port=0, log_level="error"))
    task = asyncio.create_task(running.serve())
    while not running.started:
        await asyncio.sleep(0.01)
    print(running.servers[0].sockets[0].getsockname()[1], flush=True)
    await task


async def call(url: str, token: str) -> None:
    import httpx2
    import mcp_types as types
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    headers, asked = {"authorization": f"Bearer {token}"}, []

    async def elicited(context: Any, params: Any) -> Any:
        asked.append((params.meta or {}).get("traceparent"))
        return types.ElicitResult(action="decline")

    with trace.get_tracer("theirs").start_as_current_span("agent"):
        async with (
            httpx2.AsyncClient(headers=headers, trust_env=False, timeout=30) as http,
            Client(
                streamable_http_client(url, http_client=http), mode=os.environ["ERA"], elicitation_callback=elicited
            ) as client,
        ):
            found = [await client.call_tool(f"{name}__look", {"at": os.environ["CANARY"]}) for name in ("one", "two")]
            await client.call_tool("two__fail", {})
            if os.environ["ERA"] == "legacy":
                await client.call_tool("two__ask", {})
    trace.get_tracer_provider().shutdown()  # type: ignore[attr-defined]  # of the SDK
    print(json.dumps([*(getattr(each.content[0], "text", "") for each in found), *asked]))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["client", url, token]:
            record("client")
            asyncio.run(call(url, token))
        case ["http"]:
            record("one")
            asyncio.run(serve_http())
        case ["stdio"]:
            record("two")
            server("two").run("stdio")
