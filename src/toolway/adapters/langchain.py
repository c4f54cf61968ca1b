"""Tools of a hub for LangChain and LangGraph: `BaseTool`s, asynchronous.

    agent = create_agent(model, await langchain.tools(hub, "github.*"))
    answer = await agent.ainvoke({"messages": [{"role": "user", "content": "…"}]})

A failed call is a `ToolException`, which becomes a `ToolMessage` with the status "error". The artifact of a message is
the `Reply`, with the result of the hub. Only langchain-core is needed.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Unpack

from toolway.adapters import require
from toolway.adapters.toolset import Reply, ToolOptions, Toolset
from toolway.hub.hub import Hub


@cache
def _tool_class() -> Any:
    core = require("langchain_core.tools", "langchain-core")

    class HubTool(core.BaseTool):  # type: ignore[misc, name-defined] # a base class that is loaded late
        """A LangChain tool that calls one of a hub's tools."""

        toolset: Any
        response_format: str = "content_and_artifact"
        handle_tool_error: bool = True

        def _run(self, **arguments: Any) -> Any:
            raise NotImplementedError("tools of a Hub are asynchronous: use ainvoke or astream")

        async def _arun(self, **arguments: Any) -> tuple[str, Reply]:
            reply: Reply = await self.toolset.call(self.name, arguments)
            if reply.is_error:
                raise core.ToolException(reply.text)
            return reply.text, reply

    return HubTool


async def tools(hub: Hub, *patterns: str, **options: Unpack[ToolOptions]) -> list[Any]:
    """Return a hub's tools as LangChain tools. This takes the same arguments as `toolway.adapters.openai.tools`.

    Example:
        agent = create_agent(model, await langchain.tools(hub, "github.*"))
    """
    create = _tool_class()
    toolset = await Toolset.load(hub, patterns, **options)
    return [
        create(
            name=each.name,
            description=each.description,
            args_schema=each.schema,
            toolset=toolset,
            metadata={"tool": each.tool.qualified_name, "effect": str(each.effect)},
        )
        for each in toolset.tools
    ]
