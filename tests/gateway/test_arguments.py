"""Arguments that do not match a tool's schema, as the clients of a gateway see it."""

from __future__ import annotations

from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from tests.gateway.bridge_lab import ALL_WAYS, OLD_WORDS, full, lab, pipe_entry, text

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C13", "D10"), OLD_WORDS]

INVALID_PARAMS = -32602
VIOLATION = {"path": "$.text", "problem": "is an integer", "expected": "a string"}


@ALL_WAYS
async def test_sdk_clients_of_both_eras_get_32602_with_the_list(
    client_era: str, server_era: str, transport: str
) -> None:
    async with full(server_era, transport) as found, found.client(client_era) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("echo", {"text": 70707})
        assert caught.value.error.code == INVALID_PARAMS
        data: Any = caught.value.error.data
        assert (data["code"], data["executed"], data["certainty"], data["attempts"]) == ("E-ARGUMENTS", "no", "C0", 0)
        assert (data["violations"], data["omitted"], data["retryable"]) == ([VIOLATION], 0, False)
        assert "$.text is an integer, expected a string" in caught.value.error.message  # a model reads this
        assert "70707" not in caught.value.error.message
        assert text(await client.call_tool("echo", {"text": "70707"})) == "70707"


async def test_an_entry_turns_the_check_off() -> None:
    entry = pipe_entry("modern", validateArguments=False)
    async with lab({"full": entry}) as found, found.client("modern") as client:
        assert text(await client.call_tool("echo", {"text": 7})) == "7"


async def test_the_http_status_is_that_of_invalid_params() -> None:
    async with full("modern", "stdio") as found, found.raw() as raw:
        answer = await raw.call("echo", {"text": 7})
        assert (answer.status, answer.error["code"]) == ((await raw.call("absent")).status, INVALID_PARAMS)
        await raw.initialize()
        said = await raw.say("tools/call", {"name": "echo", "arguments": {"text": 7}})
        assert said.error["data"]["violations"] == [VIOLATION]
