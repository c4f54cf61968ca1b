"""Requests for API keys with more rights than they show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gateway.edge_lab import edge

pytestmark = pytest.mark.anyio


@pytest.mark.attack("R2-A-2")
async def test_unknown_field_in_a_key_request_is_rejected(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        for field in ({"scope": ["both"]}, {"Scopes": ["both"]}, {"rateLimit": "1/s"}, {"admin": "false"}):
            answer = await found.ask("POST", "/admin/keys", {"name": "ci", **field})
            assert answer.status == 400, (field, answer.body)
        assert not found.keyring.list_keys()
        right = {"name": "ci", "access": ["both"], "admin": False, "rate": "1/s"}
        assert (await found.ask("POST", "/admin/keys", right)).status == 200


@pytest.mark.attack("R2-A-3")
async def test_pattern_in_a_key_scope_is_rejected(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        for scope in ("server/*", "server/?", "server/a*", "*", "", "server/", "/admin", "both\n"):
            answer = await found.ask("POST", "/admin/keys", {"name": "ci", "access": [scope]})
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (422, "E-KEYS-NEW"), scope
        for scope in ("both", "server/a", "/metrics"):
            assert (await found.ask("POST", "/admin/keys", {"name": "ci", "access": [scope]})).status == 200
        token = found.key("server/a")
        assert await found.tools(token=token)
        file = tmp_path / "keys.json"
        file.write_text(file.read_text().replace("server/a", "server/*"))  # a key of an earlier version
        found.keyring.reload()
        assert not await found.tools(token=token)
