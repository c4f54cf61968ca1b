"""Tools of a hub for LlamaIndex: asynchronous tools for its agents and workflows.

agent = FunctionAgent(tools=await llamaindex.tools(hub, "github.*"), llm=llm)
answer = await agent.run("…")
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, Unpack

from toolway.adapters import require
from toolway.adapters.toolset import ModelTool, ToolOptions, Toolset
from toolway.hub.hub import Hub
from toolway.types import Json

MAX_DESCRIPTION_CHARS: Final = 1024  # LlamaIndex rejects a longer one


@cache
def _tool_class() -> Any:
    core = require("llama_index.core.tools.types", "llama-index-core")

    class HubMetadata(core.ToolMetadata):  # type: ignore[misc, name-defined] # a base class that is loaded late
        """LlamaIndex metadata for a hub's tool: name, description, and the JSON schema instead of a Python type."""

        def __init__(self, tool: ModelTool) -> None:
            super().__init__(description=tool.description[:MAX_DESCRIPTION_CHARS], name=tool.name, fn_schema=None)
            self._schema = tool.schema

        def get_parameters_dict(self) -> Json:
            return self._schema

    class HubTool(core.AsyncBaseTool):  # type: ignore[misc, name-defined] # a base class that is loaded late
        """A LlamaIndex tool that calls one of a hub's tools."""

        def __init__(self, toolset: Toolset, tool: ModelTool) -> None:
            self._toolset = toolset
            self._metadata = HubMetadata(tool)

        @property
        def metadata(self) -> Any:
            return self._metadata

        def call(self, *args: Any, **arguments: Any) -> Any:
            raise NotImplementedError("tools of a Hub are asynchronous: use acall")

        async def acall(self, *args: Any, **arguments: Any) -> Any:
            reply = await self._toolset.call(self._metadata.name, arguments)
            return core.ToolOutput(
                content=reply.text,
                tool_name=self._metadata.name,
                raw_input=arguments,
                raw_output=reply,
                is_error=reply.is_error,
            )

    return HubTool


async def tools(hub: Hub, *patterns: str, **options: Unpack[ToolOptions]) -> list[Any]:
    """Return a hub's tools as LlamaIndex tools. This takes the same arguments as `toolway.adapters.openai.tools`.

    Example:
        agent = FunctionAgent(tools=await llamaindex.tools(hub, "github.*"), llm=llm)
    """
    create = _tool_class()
    toolset = await Toolset.load(hub, patterns, **options)
    return [create(toolset, each) for each in toolset.tools]
