"""A hub's tools for Gemini with google-genai.

tools = await gemini.tools(hub, "github.*")
config = types.GenerateContentConfig(**tools.config)
response = await client.aio.models.generate_content(model=model, contents=contents, config=config)
contents += await tools.answer(response)
"""

from __future__ import annotations

from typing import Any, Unpack

from toolway.adapters import require
from toolway.adapters.toolset import ModelCall, ToolOptions, Toolset
from toolway.hub.hub import Hub
from toolway.types import Json


class GeminiTools:
    """A hub's tools in google-genai's types, with a method that executes a model's calls."""

    def __init__(self, toolset: Toolset) -> None:
        self.toolset = toolset
        self._types = require("google.genai.types", "google-genai")

    @property
    def declarations(self) -> list[Any]:
        """Return one `types.FunctionDeclaration` per tool."""
        return [
            self._types.FunctionDeclaration(
                name=each.name, description=each.description, parameters_json_schema=each.schema
            )
            for each in self.toolset.tools
        ]

    @property
    def config(self) -> Json:
        """Return arguments for `GenerateContentConfig`: the tools, and an order to the SDK not to call them itself."""
        types = self._types
        return {
            "tools": [types.Tool(function_declarations=self.declarations)],
            "automatic_function_calling": types.AutomaticFunctionCallingConfig(disable=True),
        }

    async def answer(self, response: Any) -> list[Any]:
        """Execute the tool calls in a model's response, and return the contents to append to the conversation.

        These are the model's content and one with the results. If the model called nothing, only the model's content is
        returned.
        """
        types = self._types
        content = response.candidates[0].content
        made = [part.function_call for part in content.parts or () if part.function_call is not None]
        replies = await self.toolset.call_all(
            [ModelCall(each.name or "", dict(each.args or {}), each.id or "") for each in made]
        )
        parts = [
            types.Part(
                function_response=types.FunctionResponse(
                    id=call.id, name=call.name, response={"error" if reply.is_error else "output": reply.text}
                )
            )
            for call, reply in zip(made, replies, strict=True)
        ]
        return [content, types.Content(role="user", parts=parts)] if parts else [content]


async def tools(hub: Hub, *patterns: str, **options: Unpack[ToolOptions]) -> GeminiTools:
    """Return a hub's tools for google-genai. This takes the same arguments as `toolway.adapters.openai.tools`.

    Raises:
        ToolwayError: google-genai is missing (`E-ADAPTER-MISSING`), or as in `toolway.adapters.openai.tools`.

    Example:
        tools = await gemini.tools(hub, search="create an issue from a mail", limit=10)
    """
    require("google.genai.types", "google-genai")
    return GeminiTools(await Toolset.load(hub, patterns, providers=("gemini",), **options))
