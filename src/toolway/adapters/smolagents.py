"""Tools of a hub for smolagents: `Tool`s over a `SyncHub`, because smolagents calls tools in threads.

    with SyncHub("mcp.json") as hub:
        agent = ToolCallingAgent(tools=smolagents.tools(hub, "github.*"), model=model)
        print(agent.run("…"))

smolagents knows the types of the top level only, and names that are Python variables. It cannot cancel a call.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, Final, Unpack

from toolway.adapters import require
from toolway.adapters.toolset import ModelTool, ToolOptions, Toolset
from toolway.hub.sync import SyncHub
from toolway.protocol.tool_names import with_hash_suffix
from toolway.types import Json

_TYPES: Final = frozenset({"string", "boolean", "integer", "number", "array", "object", "null"})
_FLAT_KEYS: Final = frozenset({"type", "description", "title", "default"})  # of an argument without a nested schema


@cache
def _tool_class() -> Any:
    base = require("smolagents", "smolagents").Tool

    class HubTool(base):  # type: ignore[misc, valid-type] # a base class that is loaded late
        """A smolagents tool that calls one of a hub's tools."""

        name = "tool"
        description = ""
        inputs: Json = {}  # noqa: RUF012
        output_type = "string"
        skip_forward_signature_validation = True

        def __init__(self, hub: SyncHub, toolset: Toolset, tool: ModelTool) -> None:
            self.name = _variable_name(tool)
            self.description = tool.description
            self.inputs = _inputs(tool.schema)
            self._hub = hub
            self._toolset = toolset
            self._model_name = tool.name
            super().__init__()

        def forward(self, **arguments: Any) -> str:
            return self._hub._run(self._toolset.call(self._model_name, arguments)).text

    return HubTool


def tools(hub: SyncHub, *patterns: str, **options: Unpack[ToolOptions]) -> list[Any]:
    """Return a hub's tools as smolagents tools. This takes the same arguments as `toolway.adapters.openai.tools`.

    Not a coroutine: the hub is a `SyncHub`. `ask` runs in the thread of its event loop.

    Example:
        agent = ToolCallingAgent(tools=smolagents.tools(hub, "github.*"), model=model)
    """
    create = _tool_class()
    toolset = hub._run(Toolset.load(hub._hub, patterns, **options))
    return [create(hub, toolset, each) for each in toolset.tools]


def _variable_name(tool: ModelTool) -> str:
    """Return a tool's name as a valid Python variable name, with a hash at the end if it had to be changed."""
    name = re.sub(r"\W", "_", tool.name, flags=re.ASCII)
    if name == tool.name and name.isidentifier():
        return name
    return with_hash_suffix(name if name[:1].isalpha() else f"t_{name}", tool.tool.server, tool.tool.name)


def _inputs(schema: Json) -> Json:
    """Return a tool's arguments as smolagents describes them: name, type, and description."""
    required = schema.get("required", [])
    found: Json = {}
    for name, value in schema["properties"].items():
        value = value if isinstance(value, dict) else {}
        kinds = value.get("type")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        known = [each for each in kinds if each in _TYPES]
        description = str(value.get("description") or name)
        if value.keys() - _FLAT_KEYS:
            description += f" JSON Schema: {json.dumps(value)[:1000]}"
        found[name] = {"type": (known if len(known) > 1 else known[0]) if known else "any", "description": description}
        if name not in required:
            found[name]["nullable"] = True
    return found
