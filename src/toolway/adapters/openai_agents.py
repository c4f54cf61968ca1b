"""Tools of a hub for the OpenAI Agents SDK: `FunctionTool`s.

    agent = Agent(name="helper", tools=await openai_agents.tools(hub, "github.*"))
    result = await Runner.run(agent, "…")

With `approve` and without `ask`, a call that needs an approval interrupts the run (`result.interruptions`), as for any
tool of the SDK.
"""

from __future__ import annotations

from typing import Any, Unpack

from toolway.adapters import require
from toolway.adapters.toolset import ModelTool, ToolOptions, Toolset
from toolway.hub.hub import Hub


async def tools(hub: Hub, *patterns: str, **options: Unpack[ToolOptions]) -> list[Any]:
    """Return a hub's tools as function tools. This takes the same arguments as `toolway.adapters.openai.tools`.

    `approve` works without `ask`: calls that need an approval interrupt the run.

    Example:
        agent = Agent(name="helper", tools=await openai_agents.tools(hub, "github.*", approve="unsafe"))
    """
    sdk = require("agents", "openai-agents")
    toolset = await Toolset.load(hub, patterns, has_approvals=True, **options)
    return [_function_tool(sdk, toolset, each) for each in toolset.tools]


def _function_tool(sdk: Any, toolset: Toolset, tool: ModelTool) -> Any:
    interrupts = tool.needs_approval and toolset.ask is None

    async def call(context: Any, arguments: str) -> str:
        # The SDK runs a tool that interrupts only after its approval.
        return (await toolset.call(tool.name, arguments, approved=interrupts)).text

    return sdk.FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=tool.schema,
        on_invoke_tool=call,
        strict_json_schema=False,
        needs_approval=interrupts,
    )
