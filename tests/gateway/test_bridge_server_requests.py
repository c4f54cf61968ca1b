"""What a server asks in mid-call reaches the client, and the answer the server, in every combination of eras."""

from __future__ import annotations

import json
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from tests.gateway.bridge_lab import ALL_WAYS, OLD_WORDS, full, text
from tests.hub.test_sampling_tools import ANSWER, ASK, REQUEST
from toolway.gateway.mcp.pending_input import NoCallbacks, missing_capability_failure

pytestmark = [pytest.mark.anyio, OLD_WORDS]


class FakeUser:
    """Answers whatever is asked, and remembers it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def elicit(self, context: Any, params: Any) -> types.ElicitResult:
        self.asked.append(params.message)
        return types.ElicitResult(action="accept", content={"name": f"answer {len(self.asked)}"})

    async def sample(self, context: Any, params: Any) -> types.CreateMessageResult:
        self.asked.append(params.messages[0].content.text)
        content = types.TextContent(type="text", text="said by a model")
        return types.CreateMessageResult(role="assistant", content=content, model="small")

    async def roots(self, context: Any) -> types.ListRootsResult:
        self.asked.append("roots")
        return types.ListRootsResult(roots=[types.Root.model_validate({"uri": "file:///work"})])

    @property
    def callbacks(self) -> dict[str, Any]:
        return {
            "elicitation_callback": self.elicit,
            "sampling_callback": self.sample,
            "list_roots_callback": self.roots,
        }


def _parsed(result: Any) -> Any:
    return json.loads(text(result))


@ALL_WAYS
async def test_elicitation_sampling_and_roots_reach_the_client(
    client_era: str, server_era: str, transport: str
) -> None:
    user = FakeUser()
    async with full(server_era, transport) as lab, lab.client(client_era, **user.callbacks) as client:
        twice = _parsed(await client.call_tool("elicit", {"rounds": 2}))
        assert [answer["content"]["name"] for answer in twice] == ["answer 1", "answer 2"]
        assert user.asked == ["[full] Round 1: your name?", "[full] Round 2: your name?"]
        assert _parsed(await client.call_tool("sample"))["content"]["text"] == "said by a model"
        assert _parsed(await client.call_tool("roots"))["roots"] == [{"uri": "file:///work"}]
        assert user.asked[2:] == ["Say something.", "roots"]


@ALL_WAYS
async def test_prompts_and_resources_can_elicit(client_era: str, server_era: str, transport: str) -> None:
    user = FakeUser()
    async with full(server_era, transport) as lab, lab.client(client_era, **user.callbacks) as client:
        prompt: Any = await client.get_prompt("ask")
        assert json.loads(prompt.messages[0].content.text)["content"]["name"] == "answer 1"
        read: Any = await client.read_resource("full://ask")
        assert json.loads(read.contents[0].text)["content"]["name"] == "answer 2"


@ALL_WAYS
async def test_client_without_elicitation_is_not_asked(client_era: str, server_era: str, transport: str) -> None:
    async with full(server_era, transport) as lab, lab.client(client_era) as client:
        assert "elicitation" in await _outcome(client)
        assert _parsed(await client.call_tool("stats"))["calls"]["elicit"] == 1


async def _outcome(client: Any) -> str:
    """What came of a call that asks: an error of the protocol, or the server's own words about ours."""
    try:
        return text(await client.call_tool("elicit"))
    except MCPError as refused:
        return str(refused)


@pytest.mark.user_trial("34")
@ALL_WAYS
async def test_sampling_with_tools_passes_both_ways(client_era: str, server_era: str, transport: str) -> None:
    async def sample(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResultWithTools:
        sent = params.model_dump(by_alias=True, exclude_none=True)
        assert {key: sent[key] for key in ("tools", "toolChoice", "messages")} == {
            key: REQUEST[key] for key in ("tools", "toolChoice", "messages")
        }
        return types.CreateMessageResultWithTools.model_validate(ANSWER)

    can = types.SamplingCapability(tools=types.SamplingToolsCapability())
    async with full(server_era, transport) as lab:
        options: Any = {"sampling_callback": sample, "sampling_capabilities": can}
        async with lab.client(client_era, **options) as client:
            (answer,) = _parsed(await client.call_tool("ask", ASK))
            assert answer["content"] == ANSWER["content"] and answer["stopReason"] == "toolUse"
            if server_era == "modern":
                declared: Any = (await client.call_tool("declared")).structured_content
                assert declared["capabilities"]["sampling"]["tools"] == {}


@pytest.mark.user_trial("34")
@ALL_WAYS
async def test_sampling_with_tools_needs_a_capable_client(client_era: str, server_era: str, transport: str) -> None:
    async with full(server_era, transport) as lab, lab.raw() as raw:
        if client_era == "legacy":
            await raw.initialize()
            declared = (await raw.request("tools/call", {"name": "declared", "arguments": {}})).result
        else:
            declared = (await raw.call("declared")).result
        if server_era == "modern":
            assert declared["structuredContent"]["capabilities"]["sampling"] == {}
            return
        legacy = client_era == "legacy"
        call: Any = {"name": "ask", "arguments": ASK}
        answer = (await raw.request("tools/call", call) if legacy else await raw.call("ask", ASK)).result
        assert json.loads(answer["content"][0]["text"])[0]["code"] == -32601


@pytest.mark.user_trial("34")
async def test_missing_sampling_tools_capability_is_named() -> None:
    callbacks = NoCallbacks()
    with pytest.raises(LookupError):
        await callbacks.handle_request("full", "sampling/createMessage", REQUEST)
    failure = missing_capability_failure(callbacks.missing_capabilities, "no tools")
    assert failure.data["requiredCapabilities"] == {"sampling": {"tools": {}}} and "sampling.tools" in failure.message
