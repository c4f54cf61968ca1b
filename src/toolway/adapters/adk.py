"""Tools of a hub for Google's Agent Development Kit: a `BaseToolset`.

    agent = LlmAgent(name="helper", model="gemini-3-flash", tools=[await adk.tools(hub, "github.*")])

With `approve` and without `ask`, a call that needs an approval asks for a confirmation of ADK.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Unpack

from toolway.adapters import require, texts
from toolway.adapters.toolset import ModelTool, ToolOptions, Toolset
from toolway.hub.hub import Hub
from toolway.types import Json


@cache
def _toolset_class() -> Any:
    package = "google-adk"
    base_tool = require("google.adk.tools.base_tool", package).BaseTool
    base_toolset = require("google.adk.tools.base_toolset", package).BaseToolset
    types = require("google.genai.types", package)

    class HubTool(base_tool):  # type: ignore[misc, valid-type] # a base class that is loaded late
        """An ADK tool that calls one of a hub's tools."""

        def __init__(self, toolset: Toolset, tool: ModelTool) -> None:
            super().__init__(name=tool.name, description=tool.description)
            self._toolset = toolset
            self._tool = tool

        def _get_declaration(self) -> Any:
            return types.FunctionDeclaration(
                name=self.name, description=self.description, parameters_json_schema=self._tool.schema
            )

        async def run_async(self, *, args: Json, tool_context: Any) -> Json:
            confirms = self._tool.needs_approval and self._toolset.ask is None
            if confirms:
                confirmation = tool_context.tool_confirmation
                if not confirmation:
                    tool_context.request_confirmation(hint=f"Approve or reject the call of {self.name}.")
                    tool_context.actions.skip_summarization = True
                    return {"error": f"{self.name} needs approval. It did not run."}
                if not confirmation.confirmed:
                    return {"error": texts.refusal_text(self.name)}
            reply = await self._toolset.call(self.name, args, approved=confirms)
            return {"error" if reply.is_error else "result": reply.text}

    class HubToolset(base_toolset):  # type: ignore[misc, valid-type] # a base class that is loaded late
        """An ADK toolset with the selected tools of a hub. They are selected again for each request to the model."""

        def __init__(self, toolset: Toolset) -> None:
            super().__init__()
            self.toolset = toolset

        async def get_tools(self, readonly_context: Any = None) -> list[Any]:
            return [HubTool(self.toolset, each) for each in await self.toolset.refresh()]

    return HubToolset


async def tools(hub: Hub, *patterns: str, **options: Unpack[ToolOptions]) -> Any:
    """Return a hub's tools as an ADK toolset. This takes the same arguments as `toolway.adapters.openai.tools`.

    `approve` works without `ask`: calls that need an approval ask for a confirmation.

    Example:
        agent = LlmAgent(name="helper", model="gemini-3-flash", tools=[await adk.tools(hub, "github.*")])
    """
    create = _toolset_class()
    return create(await Toolset.load(hub, patterns, has_approvals=True, **options))
