"""Tools of a hub for Microsoft's Agent Framework: `FunctionTool`s.

    agent = Agent(client, tools=await agent_framework.tools(hub, "github.*"))
    answer = await agent.run("…")

With `approve` and without `ask`, a tool that needs an approval has `approval_mode="always_require"`.
"""

from __future__ import annotations

from typing import Any, Unpack

from toolway.adapters import require
from toolway.adapters.toolset import ModelTool, ToolOptions, Toolset
from toolway.hub.hub import Hub


async def tools(hub: Hub, *patterns: str, **options: Unpack[ToolOptions]) -> list[Any]:
    """Return a hub's tools as function tools. This takes the same arguments as `toolway.adapters.openai.tools`.

    `approve` works without `ask`: the framework requests the approval.

    Example:
        agent = Agent(client, tools=await agent_framework.tools(hub, "github.*", approve="unsafe"))
    """
    framework = require("agent_framework", "agent-framework-core")
    toolset = await Toolset.load(hub, patterns, has_approvals=True, **options)
    return [_function_tool(framework, toolset, each) for each in toolset.tools]


def _function_tool(framework: Any, toolset: Toolset, tool: ModelTool) -> Any:
    requests = tool.needs_approval and toolset.ask is None

    async def call(**arguments: Any) -> str:
        # The framework runs a tool that requests an approval only after it.
        return (await toolset.call(tool.name, arguments, approved=requests)).text

    return framework.FunctionTool(
        name=tool.name,
        description=tool.description,
        input_model=tool.schema,
        func=call,
        approval_mode="always_require" if requests else "never_require",
    )
