"""The fake HTTP server in the form of 2024-11-05, asked by the SDK's own client and by hand."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.sse import sse_client

from toolway.testing import FakeHttp
from toolway.testing.http_server import SseEndpoint

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]


def plain(
    headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(trust_env=False, headers=headers, timeout=timeout, auth=auth)


async def test_sdk_client_works_with_fake_sse() -> None:
    async with FakeHttp(transport="sse") as fake:
        assert fake.url.endswith("/sse")
        async with Client(sse_client(fake.url, httpx_client_factory=plain), mode="legacy") as client:
            assert "echo" in {tool.name for tool in (await client.list_tools()).tools}
            said: Any = (await client.call_tool("echo", {"text": "hi"})).content[0]
            assert said.text == "hi"
            many = await asyncio.gather(*(client.call_tool("sleep", {"seconds": 0.05}) for _ in range(20)))
            assert not any(result.is_error for result in many)
        assert fake.stats.calls == {"echo": 1, "sleep": 20}


async def test_wrong_post_target_is_rejected() -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    both = {"accept": "application/json, text/event-stream"}
    async with FakeHttp(transport="sse") as fake, plain(both) as http:
        base = f"http://127.0.0.1:{fake.port}"
        statuses = [
            (await http.post(f"{base}{path}", json=body)).status_code for path in ("/sse", "/messages?session=x")
        ]
        assert statuses == [405, 404]


async def test_session_ends_with_its_stream() -> None:
    async with FakeHttp(transport="sse") as fake, plain() as http:
        assert isinstance(fake.endpoint, SseEndpoint)
        async with http.stream("GET", fake.url) as stream:
            first = await anext(aiter(stream.aiter_text()))
            assert first.startswith("event: endpoint\ndata: /messages?session=")
            assert len(fake.sessions) == 1
        async with asyncio.timeout(30):
            while fake.sessions:
                await asyncio.sleep(0.01)


async def test_stream_modes_and_post_modes_apply_separately() -> None:
    accept = {"accept": "application/json, text/event-stream"}
    async with FakeHttp(transport="sse") as fake, plain(accept) as http, http.stream("GET", fake.url) as stream:
        pieces = aiter(stream.aiter_text())
        where = (await anext(pieces)).split("data: ")[1].strip()
        base = f"http://127.0.0.1:{fake.port}{where}"

        async def post(method: str, id_: int, **params: Any) -> int:
            message = {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}
            return (await http.post(base, json=message)).status_code

        assert await post("initialize", 1, protocolVersion="2024-11-05", capabilities={}) == 202
        assert json.loads((await anext(pieces)).split("data: ")[1])["id"] == 1
        assert await post("tools/call", 2, name="bad", arguments={"mode": "status=503"}) == 503
        assert await post("tools/call", 3, name="bad", arguments={"mode": "truncated"}) == 202
        with pytest.raises(ValueError):
            json.loads((await anext(pieces)).split("data: ")[1])


def test_unknown_transport_is_rejected() -> None:
    with pytest.raises(ValueError, match="unknown transport 'pigeon': must be http or sse"):
        FakeHttp(transport="pigeon")
