"""Tools in sampling requests: declared only by a callback that takes them, and passed on whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.bridge_lab import pipe_entry
from toolway import Hub
from toolway.callbacks import FunctionCallbacks
from toolway.errors import CallError

pytestmark = [pytest.mark.anyio, pytest.mark.user_trial("34")]

Json = dict[str, Any]
TOOLS: list[Json] = [{"name": "get_weather", "description": "Weather", "inputSchema": {"type": "object", "x": None}}]
USE: Json = {"type": "tool_use", "id": "1", "name": "get_weather", "input": {"city": "Oslo"}}
RESULT: Json = {"type": "tool_result", "toolUseId": "1", "content": [{"type": "text", "text": "rain"}]}
REQUEST: Json = {
    "messages": [{"role": "assistant", "content": [USE]}, {"role": "user", "content": [RESULT]}],
    "maxTokens": 10,
    "tools": TOOLS,
    "toolChoice": {"mode": "required"},
}
ANSWER: Json = {"role": "assistant", "model": "m", "stopReason": "toolUse", "content": [USE, {**USE, "id": "2"}]}
ASK: Json = {"method": "sampling/createMessage", "params": REQUEST}
PLAIN: Json = {**ASK, "params": {key: REQUEST[key] for key in ("messages", "maxTokens")}}


def plain(server: str, params: Json) -> Json:
    return ANSWER


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_tools_reach_a_callback_that_accepts_them(era: str) -> None:
    seen: list[tuple[Json, list[Json]]] = []

    async def sample(server: str, params: Json, tools: list[Json]) -> Json:
        seen.append((params, tools))
        return ANSWER

    async with Hub({"full": pipe_entry(era)}, sampling_callback=sample, catalog_storage=None) as hub:
        declared = (await hub.call_tool("full.declared")).data["capabilities"]
        assert declared["sampling"] == {"tools": {}}
        answered = json.loads((await hub.call_tool("full.ask", ASK)).text)
        assert answered == [ANSWER]
        assert json.loads((await hub.call_tool("full.ask", PLAIN)).text) == [ANSWER]
    assert seen == [(REQUEST, TOOLS), (PLAIN["params"], [])]


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_tools_are_rejected_without_a_tools_parameter(era: str) -> None:
    async with Hub({"full": pipe_entry(era)}, sampling_callback=plain, catalog_storage=None) as hub:
        assert (await hub.call_tool("full.declared")).data["capabilities"]["sampling"] == {}
        if era == "modern":
            with pytest.raises(CallError) as caught:
                await hub.call_tool("full.ask", ASK)
            assert caught.value.code == "E-NO-ANSWER" and "does not support tools" in str(caught.value)
        else:
            refused = json.loads((await hub.call_tool("full.ask", ASK)).text)
            assert refused[0]["code"] == -32602
        assert json.loads((await hub.call_tool("full.ask", PLAIN)).text) == [ANSWER]


def test_tools_parameter_declares_sampling_tools() -> None:
    class Model:
        def __call__(self, server: str, params: Json, *, tools: list[Json]) -> Json:
            return ANSWER

        def method(self, server: str, params: Json, tools: list[Json]) -> Json:
            return ANSWER

    for callback in (Model(), Model().method, lambda server, params, tools: ANSWER):
        assert FunctionCallbacks(None, callback, None).capabilities == {"sampling": {"tools": {}}}
    assert FunctionCallbacks(None, plain, None).capabilities == {"sampling": {}}
    assert FunctionCallbacks(None, None, None).capabilities == {}
