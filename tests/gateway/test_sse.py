"""`/sse`: clients of 2024-11-05, by the SDK's own."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.sse import sse_client

from tests.gateway.bridge_lab import OLD_WORDS, full, text, until
from toolway.gateway.view import KINDS

pytestmark = [pytest.mark.anyio, OLD_WORDS]


def client(base: str, **options: Any) -> Client:
    def plain(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(trust_env=False, headers=headers, timeout=timeout, auth=auth)

    return Client(sse_client(f"{base}/sse", httpx_client_factory=plain), mode="legacy", **options)


@pytest.mark.parametrize("era", ["modern", "handshake"])
async def test_the_oldest_clients_list_call_and_are_asked(era: str) -> None:
    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async with full(era, "http") as lab:
        for kind in KINDS:  # a change that is told while the SDK's client leaves makes it fail
            await lab.hub.wait_listed(["full"], kind, 30)
        async with client(lab.base, elicitation_callback=elicit) as old:
            await use(old)


async def use(old: Client) -> None:
    assert "full__echo" in {tool.name for tool in (await old.list_tools()).tools}
    assert text(await old.call_tool("full__echo", {"text": "hi"})) == "hi"
    assert "Ada" in text(await old.call_tool("full__elicit"))


async def test_a_stream_that_ends_ends_its_calls() -> None:
    async with full("handshake", "http") as lab:
        async with client(lab.base) as old:
            held = asyncio.create_task(old.call_tool("full__hold"))
            await until(lambda: lab.fakes["full"].stats.calls.get("hold"))
            held.cancel()
            await asyncio.gather(held, return_exceptions=True)
        await until(lambda: lab.fakes["full"].stats.cancelled)


async def test_nobody_posts_to_a_stream_that_is_not_there() -> None:
    async with full("handshake", "http") as lab, httpx2.AsyncClient(trust_env=False) as http:
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        for session in ("", "?session=", "?session=made-up"):
            assert (await http.post(f"{lab.base}/messages{session}", json=body)).status_code == 404
