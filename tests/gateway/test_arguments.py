"""Arguments that do not match a tool's schema, as the clients of a gateway see it."""

from __future__ import annotations

from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from tests.gateway.bridge_lab import ALL_WAYS, OLD_WORDS, full, lab, pipe_entry, text
from toolway.config.settings import parse_gateway
from toolway.testing import FakeHttp
from toolway.testing.server import FakeServer

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


@pytest.mark.parametrize("checks", [True, False])
async def test_drop_nulls_leaves_out_optional_arguments_that_may_not_be_null(checks: bool) -> None:
    got: list[Any] = []
    handle = FakeServer.handle

    def recording(self: FakeServer, message: Any, *more: Any, **named: Any) -> Any:
        if message.get("method") == "tools/call":
            got.append(message["params"]["arguments"])
        return handle(self, message, *more, **named)

    async with FakeHttp() as fake, lab({"demo": {"url": fake.url, "validateArguments": checks}}) as found:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FakeServer, "handle", recording)
            async with found.raw("") as raw:
                nulls = {"call": "a", "seconds": None}
                if checks:
                    refused = (await raw.call("demo__counter", nulls)).error
                    assert "dropNulls" in str(refused)
                found.gateway._dispatcher.drops_nulls = lambda: True
                for _ in range(3):  # the later ones could be flights
                    await raw.call("demo__counter", nulls)
                await raw.initialize()
                await raw.say("tools/call", {"name": "demo__counter", "arguments": nulls})
    assert got == [{"call": "a"}] * 4


async def test_drop_nulls_is_a_setting_of_the_gateway() -> None:
    assert not parse_gateway({}, {}).drop_nulls
    assert parse_gateway({"gateway": {"dropNulls": True}}, {}).drop_nulls
