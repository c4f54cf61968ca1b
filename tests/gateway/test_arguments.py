"""Arguments that do not match a tool's schema, as the clients of a gateway see it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.bridge_lab import ALL_WAYS, OLD_WORDS, Json, full, lab, pipe_entry, text
from toolway import Hub
from toolway.config.settings import parse_gateway
from toolway.errors import InvalidArguments
from toolway.protocol.constants import HANDSHAKE_PROTOCOL_VERSIONS
from toolway.testing import FakeHttp
from toolway.testing.server import FakeServer

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C13", "D10"), OLD_WORDS]

INVALID_PARAMS = -32602
VIOLATION = {"path": "$.text", "problem": "is an integer", "expected": "a string"}


def check_facts(facts: Json) -> None:
    assert (facts["code"], facts["executed"], facts["certainty"], facts["attempts"]) == ("E-ARGUMENTS", "no", "C0", 0)
    assert (facts["violations"], facts["omitted"], facts["retryable"]) == ([VIOLATION], 0, False)
    assert facts["fix"] and facts["callId"] and facts["upstream"] == "full"


def check_message(message: str) -> None:
    assert message.startswith("invalid arguments for full.echo: $.text is an integer, expected a string → fix them")
    assert "[E-ARGUMENTS]" in message and "70707" not in message


@pytest.mark.user_trial("34")
@ALL_WAYS
async def test_sdk_clients_of_both_eras_get_a_tool_error(client_era: str, server_era: str, transport: str) -> None:
    async with full(server_era, transport) as found, found.client(client_era) as client:
        schema = next(each.input_schema for each in (await client.list_tools()).tools if each.name == "echo")
        refused = await client.call_tool("echo", {"text": 70707})
        assert refused.is_error and refused.structured_content is None and refused.meta is not None
        check_facts(refused.meta["toolway"])
        message, _, shown = text(refused).partition("\nNot sent. Schema of echo: ")
        check_message(message)
        assert json.loads(shown) == schema
        assert text(await client.call_tool("echo", {"text": "70707"})) == "70707"


@pytest.mark.user_trial("34")
async def test_client_revision_decides_the_argument_error_form() -> None:
    async with full("modern", "stdio") as found:
        for version in (*HANDSHAKE_PROTOCOL_VERSIONS, "modern", "none"):
            async with found.raw() as raw:
                if version == "modern":
                    answer = await raw.call("echo", {"text": 70707})
                else:
                    if version != "none":
                        await raw.initialize(version)
                    answer = await raw.request("tools/call", {"name": "echo", "arguments": {"text": 70707}})
                if version in ("2025-11-25", "modern"):
                    assert answer.status == 200 and answer.result["isError"], version
                    assert ("resultType" in answer.result) is (version == "modern")
                    check_facts(answer.result["_meta"]["toolway"])
                else:
                    assert answer.error["code"] == INVALID_PARAMS, version
                    check_facts(answer.error["data"])
                    check_message(answer.error["message"])


@pytest.mark.user_trial("34")
async def test_wrong_arguments_keep_their_exception_in_the_library() -> None:
    async with FakeHttp() as fake, Hub({"demo": {"url": fake.url}}) as hub:
        with pytest.raises(InvalidArguments):
            await hub.call_tool("demo.echo", {"text": 7})


@pytest.mark.user_trial("34")
async def test_malformed_call_stays_a_protocol_error() -> None:
    async with full("modern", "stdio") as found, found.raw() as raw:
        answer = await raw.ask("tools/call", {"name": "echo", "arguments": ["x"]})
        assert answer.error["code"] == INVALID_PARAMS


async def test_validate_arguments_false_turns_the_check_off() -> None:
    entry = pipe_entry("modern", validateArguments=False)
    async with lab({"full": entry}) as found, found.client("modern") as client:
        assert text(await client.call_tool("echo", {"text": 7})) == "7"


@pytest.mark.parametrize("checks", [True, False])
async def test_drop_nulls_omits_optional_null_arguments(checks: bool) -> None:
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
                    refused = (await raw.call("demo__counter", nulls)).result
                    assert "dropNulls" in str(refused)
                found.gateway._dispatcher.drops_nulls = lambda: True
                for _ in range(3):  # the later ones could be flights
                    await raw.call("demo__counter", nulls)
                await raw.initialize()
                await raw.request("tools/call", {"name": "demo__counter", "arguments": nulls})
    assert got == [{"call": "a"}] * 4


async def test_drop_nulls_is_a_gateway_setting() -> None:
    assert not parse_gateway({}, {}).drop_nulls
    assert parse_gateway({"gateway": {"dropNulls": True}}, {}).drop_nulls
