"""Attacks by somebody who has read only SECURITY.md and docs/."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gateway.edge_lab import edge, handshake, message_of, modern
from toolway.gateway.mcp import subscriptions

pytestmark = pytest.mark.anyio


# -- the gateway over the network --------------------------------------------------------------------------------------


@pytest.mark.attack("R2-A-1")
async def test_fill_the_memory_with_the_uris_of_subscriptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.attack("R2-A-2")
async def test_get_a_key_without_limits_by_a_field_that_is_not_read(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        for field in ({"scope": ["both"]}, {"Scopes": ["both"]}, {"rateLimit": "1/s"}, {"admin": "false"}):
            answer = await found.ask("POST", "/admin/keys", {"name": "ci", **field})
            assert answer.status == 400, (field, answer.body)
        assert not found.keyring.list_keys()
        right = {"name": "ci", "scopes": ["both"], "admin": False, "rate": "1/s"}
        assert (await found.ask("POST", "/admin/keys", right)).status == 200


@pytest.mark.attack("R2-A-3")
async def test_open_servers_that_a_scope_does_not_name_by_a_pattern(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        for scope in ("server/*", "server/?", "server/a*", "*", "", "server/", "/admin", "both\n"):
            answer = await found.ask("POST", "/admin/keys", {"name": "ci", "scopes": [scope]})
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (422, "E-KEYS-NEW"), scope
        for scope in ("both", "server/a", "/metrics"):
            assert (await found.ask("POST", "/admin/keys", {"name": "ci", "scopes": [scope]})).status == 200
        token = found.key("server/a")
        assert await found.tools(token=token)
        file = tmp_path / "keys.json"
        file.write_text(file.read_text().replace("server/a", "server/*"))  # a key of an earlier version
        found.keyring.reload()
        assert not await found.tools(token=token)
