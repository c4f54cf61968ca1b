"""Server of the official SDK whose tools ask the user and the model: forms, addresses, sampling."""

from __future__ import annotations

import json

from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp_types import ElicitRequestURLParams, SamplingMessage, TextContent

BOOKING = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Full name", "description": "As in your passport", "minLength": 3},
        "nights": {"type": "integer", "minimum": 1, "maximum": 14, "default": 2},
        "budget": {"type": "number"},
        "late": {"type": "boolean", "default": False},
        "room": {"type": "string", "enum": ["s", "d"], "enumNames": ["Single", "Double"]},
        "meals": {"type": "array", "items": {"type": "string", "enum": ["breakfast", "lunch", "dinner"]}},
        "pin": {"type": "string", "format": "password"},
        "note": {"type": "string"},
    },
    "required": ["name", "nights", "budget", "late", "room", "pin"],
}
server = MCPServer("asking")


@server.tool()
async def book(ctx: Context) -> str:
    """Ask for a booking and return the answer."""
    answer = await ctx.session.elicit_form("Your booking", BOOKING, ctx.request_id)
    return str(answer.model_dump_json(exclude_none=True))


@server.tool()
async def confirm(ctx: Context) -> str:
    """Ask for a yes without a form."""
    schema = {"type": "object", "properties": {}}
    return str((await ctx.session.elicit_form("Delete all?", schema, ctx.request_id)).action)


@server.tool()
async def visit(ctx: Context) -> str:
    """Ask the user to visit an address."""
    return str((await ctx.elicit_url("Log in to your bank", "https://bank.example/login?id=7", "e1")).action)


@server.tool()
async def files() -> str:
    """Demand that the user visits an address before the call."""
    params = ElicitRequestURLParams(
        mode="url", message="Let us read your files", url="https://files.example/allow", elicitation_id="e2"
    )
    raise UrlElicitationRequiredError([params])


@server.tool()
async def think(ctx: Context) -> str:
    """Ask the client's model."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text="What is the capital of Norway?"))
    result = await ctx.session.create_message([message], max_tokens=50, system_prompt="Be brief.")
    return json.dumps([result.model, result.content.text])


@server.tool()
async def slow(seconds: float) -> str:
    """Take some time."""
    import asyncio

    await asyncio.sleep(seconds)
    return "done"


if __name__ == "__main__":
    server.run()
