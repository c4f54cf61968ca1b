"""Tools of a hub for pydantic-ai: a toolset.

    agent = Agent("openai:gpt-5", toolsets=[await pydantic_ai.tools(hub, "github.*")])

With `approve` and without `ask`, a call that needs an approval is deferred: the run ends with `DeferredToolRequests`,
as for any tool of pydantic-ai. Unsafe tools are sequential. A failed call is a `ToolFailed`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Unpack

from toolway.adapters import require
from toolway.adapters.toolset import ToolOptions, Toolset
from toolway.hub.hub import Hub
from toolway.types import Effect


@cache
def _toolset_class() -> Any:
    package = "pydantic-ai-slim"
    framework = require("pydantic_ai.toolsets.abstract", package)
    failure = require("pydantic_ai.exceptions", package).ToolFailed
    definition = require("pydantic_ai.tools", package).ToolDefinition
    core = require("pydantic_core", package)
    any_arguments = core.SchemaValidator(core.core_schema.dict_schema())

    class HubToolset(framework.AbstractToolset):  # type: ignore[misc, name-defined] # a base class that is loaded late
        """A pydantic-ai toolset with the selected tools of a hub. They are selected again for each step of a run."""

        def __init__(self, toolset: Toolset) -> None:
            self.toolset = toolset

        @property
        def id(self) -> str | None:
            return None

        async def get_tools(self, ctx: Any) -> dict[str, Any]:
            is_deferred = self.toolset.ask is None
            return {
                each.name: framework.ToolsetTool(
                    toolset=self,
                    tool_def=definition(
                        name=each.name,
                        description=each.description,
                        parameters_json_schema=each.schema,
                        sequential=each.effect is Effect.UNSAFE,
                        kind="unapproved" if each.needs_approval and is_deferred else "function",
                        metadata={"tool": each.tool.qualified_name, "effect": str(each.effect)},
                    ),
                    max_retries=1,
                    args_validator=any_arguments,
                )
                for each in await self.toolset.refresh()
            }

        async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> str:
            reply = await self.toolset.call(name, tool_args, approved=ctx.tool_call_approved)
            if reply.is_error:
                raise failure(reply.text)
            return reply.text

    return HubToolset


async def tools(hub: Hub, *patterns: str, **options: Unpack[ToolOptions]) -> Any:
    """Return a hub's tools as a toolset. This takes the same arguments as `toolway.adapters.openai.tools`.

    `approve` works without `ask`: calls that need an approval are deferred.

    Example:
        agent = Agent("openai:gpt-5", toolsets=[await pydantic_ai.tools(hub, "github.*", approve="unsafe")])
    """
    create = _toolset_class()
    return create(await Toolset.load(hub, patterns, has_approvals=True, **options))
