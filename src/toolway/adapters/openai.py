"""Tools of a hub for the OpenAI API: chat completions and responses. Plain data: the SDK is not needed.

    tools = await openai.tools(hub, "github.*")
    response = await client.chat.completions.create(model=model, messages=messages, tools=tools.chat)
    messages += await tools.answer_chat(response)

It also serves providers that speak the same format. `strict` is never set: it would require schemas that few servers
have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from toolway.adapters.toolset import ModelCall, Reply, ToolOptions, Toolset
from toolway.hub.hub import Hub
from toolway.types import Json


class OpenAITools:
    """A hub's tools in the OpenAI API's formats, with methods that execute a model's calls."""

    def __init__(self, toolset: Toolset) -> None:
        self.toolset = toolset

    @property
    def chat(self) -> list[Json]:
        """Return the tool definitions for the argument `tools` of `chat.completions.create`."""
        return [{"type": "function", "function": each} for each in self._functions()]

    @property
    def responses(self) -> list[Json]:
        """Return the tool definitions for the argument `tools` of `responses.create`."""
        return [{"type": "function", **each, "strict": False} for each in self._functions()]

    def _functions(self) -> list[Json]:
        return [
            {"name": each.name, "description": each.description, "parameters": each.schema}
            for each in self.toolset.tools
        ]

    async def answer_chat(self, response: Any) -> list[Json]:
        """Execute the tool calls in a chat completion. Return its message and the results, to append to `messages`.

        Args:
            response: The response, or a message of it, as the SDK returns it or as a dictionary.

        Returns:
            The message of the model and one message per call. Only the former if the model called nothing.
        """
        message = _plain(response)
        if "choices" in message:
            message = message["choices"][0]["message"]
        made = [each for each in message.get("tool_calls") or () if each.get("type", "function") == "function"]
        replies = await self.toolset.call_all(
            [ModelCall(each["function"]["name"], each["function"]["arguments"], each["id"]) for each in made]
        )
        kept = {key: value for key, value in message.items() if value is not None}
        return [{"content": None, **kept}] + [
            {"role": "tool", "tool_call_id": call["id"], "content": reply.text}
            for call, reply in zip(made, replies, strict=True)
        ]

    async def answer_responses(self, response: Any) -> list[Json]:
        """Execute the tool calls in a response, and return the `function_call_output` items.

        The list is empty if the response has no calls. Send the items with `previous_response_id`, or after the
        response's output items.
        """
        made = [each for each in _plain(response).get("output", ()) if each.get("type") == "function_call"]
        replies = await self.toolset.call_all(
            [ModelCall(each["name"], each["arguments"], each["call_id"]) for each in made]
        )
        return [
            {"type": "function_call_output", "call_id": call["call_id"], "output": _output(reply)}
            for call, reply in zip(made, replies, strict=True)
        ]


def _output(reply: Reply) -> Any:
    images = reply.images
    if not images:
        return reply.text
    shown = [
        {"type": "input_image", "image_url": f"data:{each.get('mimeType', 'image/png')};base64,{each['data']}"}
        for each in images
    ]
    return [{"type": "input_text", "text": reply.text}, *shown]


def _plain(value: Any) -> Json:
    """Return the SDK's response object, or a dictionary, as a dictionary."""
    return dict(value) if isinstance(value, Mapping) else value.model_dump(mode="json", exclude_unset=True)


async def tools(hub: Hub, *patterns: str, **options: Unpack[ToolOptions]) -> OpenAITools:
    """Return a hub's tools for the OpenAI API.

    Args:
        hub: The hub, which is open.
        patterns: `server.tool` with `*`; `server` for all its tools; `!pattern` to exclude. Without any, all tools.
        options: See `ToolOptions`: `search`, `limit`, `approve`, `ask`, `timeout`.

    Returns:
        The tools, and the methods that answer calls.

    Raises:
        ToolwayError: No tool matches, or too many (`E-ADAPTER-TOOLS`); calls need an approval and `ask` is missing
            (`E-ADAPTER-APPROVAL`).

    Example:
        tools = await openai.tools(hub, "github.*", "!github.delete_*")
    """
    return OpenAITools(await Toolset.load(hub, patterns, providers=("openai",), **options))
