"""Tools of a hub for AutoGen: a `Workbench`.

    agent = AssistantAgent("helper", model_client, workbench=await autogen.tools(hub, "github.*"))

The hub belongs to the program: `start` and `stop` of the workbench neither open nor close it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cache
from typing import Any, Unpack

from toolway.adapters import require
from toolway.adapters.toolset import ToolOptions, Toolset
from toolway.hub.hub import Hub
from toolway.types import Json


@cache
def _workbench_class() -> Any:
    core = require("autogen_core.tools", "autogen-core")

    class HubWorkbench(core.Workbench):  # type: ignore[misc, name-defined] # a base class that is loaded late
        """An AutoGen workbench with selected tools of a hub. They are selected again for each of the model's turns."""

        component_type = "workbench"

        def __init__(self, toolset: Toolset) -> None:
            self.toolset = toolset

        async def list_tools(self) -> list[Json]:
            return [
                {"name": each.name, "description": each.description, "parameters": each.schema, "strict": False}
                for each in await self.toolset.refresh()
            ]

        async def call_tool(
            self,
            name: str,
            arguments: Mapping[str, Any] | None = None,
            cancellation_token: Any = None,
            call_id: str | None = None,
        ) -> Any:
            call = asyncio.ensure_future(self.toolset.call(name, dict(arguments or {})))
            if cancellation_token is not None:
                cancellation_token.link_future(call)
            try:
                reply = await call
            finally:
                call.cancel()
            content = [core.TextResultContent(content=reply.text)]
            return core.ToolResult(name=name, result=content, is_error=reply.is_error)

        async def start(self) -> None:
            """Do nothing: the program has opened the hub already."""

        async def stop(self) -> None:
            """Do nothing: the program closes the hub."""

        async def reset(self) -> None:
            """Do nothing, because a hub keeps no conversation state that could be reset."""

        async def save_state(self) -> Mapping[str, Any]:
            return {}

        async def load_state(self, state: Mapping[str, Any]) -> None:
            """Do nothing: the workbench has no state to load."""

    return HubWorkbench


async def tools(hub: Hub, *patterns: str, **options: Unpack[ToolOptions]) -> Any:
    """Return a hub's tools as a workbench. This takes the same arguments as `toolway.adapters.openai.tools`.

    Example:
        agent = AssistantAgent("helper", model_client, workbench=await autogen.tools(hub, "github.*"))
    """
    create = _workbench_class()
    return create(await Toolset.load(hub, patterns, **options))
