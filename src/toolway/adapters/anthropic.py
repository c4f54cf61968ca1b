"""Hub tools for the Anthropic API: plain data without the SDK, and tools for its `tool_runner`.

tools = await anthropic.tools(hub, "github.*")
message = await client.messages.create(model=model, max_tokens=1000, messages=messages, tools=tools.definitions)
messages += await tools.answer(message)

runner = client.beta.messages.tool_runner(model=model, max_tokens=1000, messages=messages, tools=tools.runnable())
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Unpack

from toolway.adapters import require
from toolway.adapters.toolset import ModelCall, ModelTool, Reply, ToolOptions, Toolset
from toolway.hub.hub import Hub
from toolway.types import Json

_IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


class AnthropicTools:
    """A hub's tools in the Anthropic API's format, with a method that executes a model's calls."""

    def __init__(self, toolset: Toolset) -> None:
        self.toolset = toolset

    @property
    def definitions(self) -> list[Json]:
        """Return the tool definitions for the argument `tools` of `messages.create`."""
        return [
            {"name": each.name, "description": each.description, "input_schema": each.schema}
            for each in self.toolset.tools
        ]

    async def answer(self, message: Any) -> list[Json]:
        """Execute the tool calls in a message of the model.

        Return that message and the results, to append to `messages`.

        Args:
            message: The message of the model, as the SDK returns it or as a dictionary.

        Returns:
            The message of the model and one message with all results. Only the former if the model called nothing.
        """
        content = _plain(message)["content"]
        made = [each for each in content if each["type"] == "tool_use"]
        replies = await self.toolset.call_all([ModelCall(each["name"], each["input"], each["id"]) for each in made])
        results = [
            {
                "type": "tool_result",
                "tool_use_id": call["id"],
                "content": _content(reply),
                "is_error": reply.is_error,
            }
            for call, reply in zip(made, replies, strict=True)
        ]
        said: list[Json] = [{"role": "assistant", "content": content}]
        return said + ([{"role": "user", "content": results}] if results else [])

    def runnable(self) -> list[Any]:
        """Return the tools for `client.beta.messages.tool_runner` of an `AsyncAnthropic`."""
        sdk = require("anthropic", "anthropic")
        return [self._runnable(sdk, each) for each in self.toolset.tools]

    def _runnable(self, sdk: Any, tool: ModelTool) -> Any:
        async def call(**arguments: Any) -> Any:
            reply = await self.toolset.call(tool.name, arguments)
            if reply.is_error:
                raise require("anthropic.lib.tools", "anthropic").ToolError(_content(reply))
            return _content(reply)

        return sdk.beta_async_tool(
            call, name=tool.name, description=tool.description, input_schema={**tool.schema, "type": "object"}
        )


def _content(reply: Reply) -> Any:
    shown = [
        {
            "type": "image",
            "source": {"type": "base64", "media_type": each["mimeType"], "data": each["data"]},
        }
        for each in reply.images
        if each.get("mimeType") in _IMAGE_TYPES
    ]
    return [{"type": "text", "text": reply.text}, *shown] if shown else reply.text


def _plain(value: Any) -> Json:
    """Return the SDK's response object, or a dictionary, as a dictionary."""
    return dict(value) if isinstance(value, Mapping) else value.model_dump(mode="json", exclude_unset=True)


async def tools(hub: Hub, *patterns: str, **options: Unpack[ToolOptions]) -> AnthropicTools:
    """Return a hub's tools for the Anthropic API. This takes the same arguments as `toolway.adapters.openai.tools`.

    Example:
        tools = await anthropic.tools(hub, "github.*", approve="unsafe", ask=ask_in_terminal)
    """
    return AnthropicTools(await Toolset.load(hub, patterns, providers=("anthropic",), **options))
