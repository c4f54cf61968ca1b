"""Memory that one caller can make the gateway keep: subscriptions, URIs of reads, arguments of cached calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.edge_lab import edge, handshake, message_of, modern
from toolway import Hub
from toolway.gateway.mcp import subscriptions
from toolway.middleware import cache
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio


@pytest.mark.attack("R2-A-1")
async def test_subscription_uris_are_bounded_per_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_CALLER_BYTES", 100_000)
    path = "/mcp/server/a"
    async with edge(tmp_path) as found:

        async def subscribe(token: str, session: str, name: str) -> bool:
            body = handshake("resources/subscribe", {"uri": f"fake://item/{name}"})
            answer = await found.ask("POST", path, body, {"Mcp-Session-Id": session}, token=token)
            return "result" in message_of(answer)

        mallory, other = found.key(), found.key()
        sessions = [await found.initialize(path, token=mallory) for _ in range(2)]
        granted = [await subscribe(mallory, each, f"{i}" + "x" * 30_000) for each in sessions for i in range(3)]
        assert granted == [True] * 3 + [False] * 3  # for all sessions together
        wanted = {"resourceSubscriptions": ["fake://item/" + "y" * 30_000]}
        body, fields = modern("subscriptions/listen", {"notifications": wanted})
        async with found.connected() as client:
            await client.send(found.request("POST", path, body, fields, token=mallory))
            await client.head()
            assert b'"resourceSubscriptions":[]' in await anext(aiter(client.chunks()))
        assert await subscribe(other, await found.initialize(path, token=other), "1")
        ended = await found.ask("DELETE", path, fields={"Mcp-Session-Id": sessions[0]}, token=mallory)
        assert ended.status < 300
        assert await subscribe(mallory, sessions[1], "x" * 30_000)  # the end of a session makes room


@pytest.mark.attack("R2-A-4")
async def test_uris_of_finished_reads_are_truncated(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        for start in ("fake://item/", "unknown://"):
            body = handshake("resources/read", {"uri": start + "x" * 1_000_000})
            await found.ask("POST", "/mcp/server/a", body)
        calls = (await found.ask("GET", "/admin/calls")).body
        assert b"fake://item/xxx" in calls and len(calls) < 20_000


@pytest.mark.attack("R2-A-5")
async def test_arguments_of_cached_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_BYTES", 3_000_000)
    entry = {"tools": {"echo": {"effect": "read", "cache": "1h"}}}
    async with Hub({"a": {**fake_server(), **entry}}) as hub:
        await hub.list_tools()

        async def is_cached(text: str, count: int) -> bool:
            arguments = {"text": "hello", "more": text * count}
            return (await hub.call_tool("a.echo", arguments)).from_cache

        assert not await is_cached("x", 10) and await is_cached("x", 10)
        assert not await is_cached("y", 1_100_000) and not await is_cached("y", 1_100_000)  # too large to be a key
        for text in "abcd":
            assert not await is_cached(text, 900_000)
        assert await is_cached("d", 900_000) and not await is_cached("a", 900_000)
