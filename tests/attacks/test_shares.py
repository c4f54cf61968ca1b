"""Take all slots of a server, so another caller gets none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.attacks.test_replays import replay_lab
from tests.gateway.edge_lab import message_of, modern

pytestmark = pytest.mark.anyio


@pytest.mark.attack("A2-W4")
@pytest.mark.parametrize("plans", ["on", "off"])
async def test_slow_calls_of_one_caller_leave_slots_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans: str
) -> None:
    monkeypatch.setenv("TOOLWAY_PLANS", plans)
    async with replay_lab(tmp_path, limits={"maxConcurrent": 16}) as at:
        slow = [asyncio.create_task(at.use("read", None, {"hold": True})) for _ in range(30)]
        limiter = at.hub.servers.upstreams.limiters.get("s")
        assert limiter is not None
        while limiter.in_use + limiter.queued < 30:
            await asyncio.sleep(0.01)
        assert 12 <= limiter.in_use < 16
        other, _ = at.keyring.create_key_sync("another", ["staff"], False, 0.0)
        body, fields = modern("tools/call", {"name": "s__inbox", "arguments": {}})
        answer = await asyncio.wait_for(at.ask("POST", "/mcp/staff", body, fields, token=other), 30)
        assert "result" in message_of(answer)
        assert not any(each.done() for each in slow)
        at.release()
        await asyncio.gather(*slow)
