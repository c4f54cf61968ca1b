"""What goes along with a call, and what else can be asked for: alike in every combination of eras."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import mcp_types as types
import pytest

from tests.gateway.bridge_lab import ALL_WAYS, EVERYTHING, META, OLD_WORDS, Json, Lab, Raw, full, text, until_async
from tests.gateway.full_server import VAST
from toolway.hub.hub import Hub
from toolway.testing.server import UNKNOWN_FIELDS

pytestmark = [pytest.mark.anyio, OLD_WORDS]


@ALL_WAYS
async def test_progress_reaches_the_client(client_era: str, server_era: str, transport: str) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async with full(server_era, transport) as lab, lab.client(client_era) as client:
        result = await client.call_tool("progress", {"n": 3, "seconds": 0.05}, progress_callback=on_progress)
        assert text(result) == "3 steps"
    assert heard == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


async def _stats(lab: Lab) -> Json:
    reply = await Hub._from_core(lab.hub).call_tool("full.stats")
    found: Json = json.loads(reply.text)
    return found


@ALL_WAYS
async def test_cancellation_reaches_the_server(client_era: str, server_era: str, transport: str) -> None:
    async with full(server_era, transport) as lab, lab.raw() as raw:
        if client_era == "modern":
            await _leave_a_stream(lab, raw)
        else:
            await _cancel_by_notice(lab, raw)

        async def cancelled() -> bool:
            return len((await _stats(lab))["cancelled"]) == 1

        await until_async(cancelled)
        status = lab.hub.servers.status()["full"]
        assert status.in_flight <= 1  # the question just asked may still be counted


async def _is_held(lab: Lab) -> bool:
    return "hold" in (await _stats(lab))["calls"]


async def _leave_a_stream(lab: Lab, raw: Raw) -> None:
    call = asyncio.create_task(raw.call("hold"))
    await until_async(lambda: _is_held(lab))
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


async def _cancel_by_notice(lab: Lab, raw: Raw) -> None:
    await raw.initialize()
    body = {"jsonrpc": "2.0", "id": "mine", "method": "tools/call", "params": {"name": "hold", "arguments": {}}}
    call = asyncio.create_task(raw.post(body, raw.headers()))
    await until_async(lambda: _is_held(lab))
    notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "mine"}}
    assert (await raw.post(notice, raw.headers())).status == 202
    answer = await call
    assert not answer.messages  # a cancelled request gets no answer


async def test_lost_connection_of_a_legacy_client_does_not_cancel() -> None:
    async with full("legacy", "http") as lab, lab.raw() as raw:
        await raw.initialize()
        call = asyncio.create_task(raw.request("tools/call", {"name": "sleep", "arguments": {"seconds": 0.5}}))
        fake = lab.fakes["full"]
        await until_async(lambda: _seen(fake.stats.calls, "sleep"))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await asyncio.sleep(0.7)
        assert fake.stats.cancelled == []


async def _seen(calls: dict[str, int], name: str) -> bool:
    return name in calls


@ALL_WAYS
async def test_log_messages_follow_the_requested_level(client_era: str, server_era: str, transport: str) -> None:
    heard: list[Any] = []

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        heard.append((params.level, params.logger, params.data))

    options: Json = {"logging_callback": on_log}
    if client_era == "modern":
        options["log_level"] = "debug"
    async with full(server_era, transport) as lab, lab.client(client_era, **options) as client:
        if client_era == "legacy":
            await client.set_logging_level("debug")
        assert text(await client.call_tool("log")) == "debug info error"
        await until_async(lambda: _as_many(heard, 3))
        if client_era == "legacy":
            await client.set_logging_level("error")
            await client.call_tool("log")
            await until_async(lambda: _as_many(heard, 4))
            await asyncio.sleep(0.1)
    levels = ["debug", "info", "error"] + (["error"] if client_era == "legacy" else [])
    assert heard == [(level, "full", {"words": level, "nothing": None}) for level in levels]


async def _as_many(heard: list[Any], count: int) -> bool:
    return len(heard) >= count


async def test_modern_client_without_log_level_gets_no_logs() -> None:
    for server_era in ("modern", "legacy"):
        async with full(server_era, "http") as lab, lab.raw() as raw:
            answer = await raw.call("log")
            assert [message.get("method") for message in answer.messages] == [None]
            told = await raw.call("log", meta={f"{META}logLevel": "error"})
            assert [m["params"]["level"] for m in told.messages[:-1]] == ["error"]


@ALL_WAYS
async def test_lists_prompts_resources_templates_and_completions(
    client_era: str, server_era: str, transport: str
) -> None:
    async with full(server_era, transport) as lab, lab.client(client_era) as client:
        assert "echo" in {tool.name for tool in (await client.list_tools()).tools}
        assert {prompt.name for prompt in (await client.list_prompts()).prompts} == {"greet", "ask"}
        uris = [str(resource.uri) for resource in (await client.list_resources()).resources]
        assert uris == ["fake://text", "fake://bytes", "full://ask"]
        templates = (await client.list_resource_templates()).resource_templates
        assert [template.uri_template for template in templates] == ["fake://item/{id}"]
        prompt: Any = await client.get_prompt("greet", {"name": "Ada"})
        assert prompt.messages[0].content.text == "Greet Ada in a warm tone."
        contents: Any = [(await client.read_resource(uri)).contents[0] for uri in ("fake://text", "fake://item/7")]
        assert [each.text for each in contents] == ["hello, world", "item 7"]
        found = await client.complete(
            types.PromptReference(type="ref/prompt", name="greet"), {"name": "name", "value": "a"}
        )
        assert found.completion.values == ["ada", "alan"]
        template = types.ResourceTemplateReference(type="ref/resource", uri="fake://item/{id}")
        assert (await client.complete(template, {"name": "id", "value": "1"})).completion.values == ["1", "10"]


@ALL_WAYS
async def test_results_arrive_as_the_server_wrote_them(client_era: str, server_era: str, transport: str) -> None:
    async with full(server_era, transport) as lab, lab.raw() as raw:
        if client_era == "legacy":
            await raw.initialize()
            result = (await raw.request("tools/call", {"name": "odd", "arguments": {}})).result
            tools = (await raw.request("tools/list")).result["tools"]
        else:
            result = (await raw.call("odd")).result
            tools = (await raw.ask("tools/list")).result["tools"]
    video = {"type": "video", "data": "AAEC", "mimeType": "video/mp4", "frames": [1, None], **UNKNOWN_FIELDS}
    assert result["content"] == [{"type": "text", "text": "known", **UNKNOWN_FIELDS}, video]
    assert result["structuredContent"] == {"vast": VAST, "none": None, "tiny": 0.1}
    assert result["futureField"] == [None, 1.5] and result["x-vendor"] == UNKNOWN_FIELDS["x-vendor"]
    assert result["_meta"]["example.org/vendor"] == {"nothing": None}
    assert ("resultType" in result) == (client_era == "modern")
    echo = next(tool for tool in tools if tool["name"] == "echo")
    assert echo["x-vendor"] == UNKNOWN_FIELDS["x-vendor"] and echo["annotations"]["category"] == "fake"


@ALL_WAYS
async def test_request_meta_and_capabilities_reach_the_server(client_era: str, server_era: str, transport: str) -> None:
    meta = {"example.org/vendor": {"nothing": None, "vast": VAST}, "traceparent": "00-1-2-01"}
    async with full(server_era, transport) as lab, lab.raw() as raw:
        if client_era == "legacy":
            await raw.initialize()
            params = {"name": "declared", "arguments": {}, "_meta": meta}
            said = (await raw.request("tools/call", params)).result["structuredContent"]
        else:
            said = (await raw.call("declared", meta=meta)).result["structuredContent"]
    assert said["meta"]["example.org/vendor"] == meta["example.org/vendor"]
    assert said["meta"]["traceparent"] == "00-1-2-01"
    if server_era == "modern":
        assert said["capabilities"] == EVERYTHING  # each request says what this very client can be asked


async def test_server_errors_keep_their_code_and_data() -> None:
    for server_era in ("modern", "legacy"):
        async with full(server_era, "http") as lab, lab.raw() as raw:
            lost = await raw.ask("resources/read", {"uri": "fake://nowhere"})
            assert lost.error["code"] == -32602 and lost.error["data"]["uri"] == "fake://nowhere"
            assert (await raw.call("nothing")).error["code"] == -32602
            assert (await raw.ask("nothing/at/all")).status == 404
            await raw.initialize()
            lost = await raw.request("resources/read", {"uri": "fake://nowhere"})
            assert lost.status == 200 and lost.error["code"] in (-32002, -32602)
