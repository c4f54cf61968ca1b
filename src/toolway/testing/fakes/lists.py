"""Bad lists of tools: functions of the server, at its start. They serve both transports."""

from __future__ import annotations

from toolway.testing.fakes import modes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from toolway.testing.fakes.modes import Setting
    from toolway.testing.fakes.server import Server

LISTS: modes.Table = {}


@modes.mode(LISTS, "malformed_tool", on=("start",))
def _malformed_tool(server: Server, setting: Setting) -> None:
    """Tools with a null schema, no name, too long a name, a number for a description; among good ones."""
    schema = {"type": "object"}
    server.malformed_tools = [
        {"name": "null_schema", "inputSchema": None},
        {"description": "no name", "inputSchema": schema},
        {"name": "n" * 300, "inputSchema": schema},
        {"name": "odd_description", "description": 7, "inputSchema": schema, "annotations": "none"},
    ]


@modes.mode(LISTS, "many_tools", on=("start",))
def _many_tools(server: Server, setting: Setting) -> None:
    """VALUE more tools (2000)."""
    server.extra_tools += [f"many_{number:05}" for number in range(int(setting.number(2000)))]
