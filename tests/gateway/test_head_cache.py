"""A cached head grants nothing that was revoked since, and nothing to another caller."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.edge_lab import edge, modern

pytestmark = pytest.mark.anyio


@pytest.mark.attack("held-10")
@pytest.mark.attack("held-23")
async def test_revoked_key_is_rejected_on_a_known_connection(tmp_path: Path) -> None:
    async with edge(tmp_path) as at:
        token, other = at.key(), at.key()
        body, fields = modern("tools/list", {})
        asked = at.request("POST", "/mcp", body, fields, token=token)
        async with at.connected() as client:
            for _ in range(3):
                assert (await client.ask(asked)).status == 200
            assert len(at.gateway.http_server.head_cache) == 1
            wrong = at.request("POST", "/mcp", body, fields, token=token[:-1] + "?")
            assert (await client.ask(wrong)).status == 401
        async with at.connected() as client:
            assert (await client.ask(asked)).status == 200
            holder = at.keyring.authenticate(token)
            assert holder is not None and at.keyring.revoke_key_sync(holder.id)
            assert (await client.ask(asked)).status == 401
        async with at.connected() as client:
            assert (await client.ask(at.request("POST", "/mcp", body, fields, token=other))).status == 200
