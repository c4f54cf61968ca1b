"""A node that gives no sign of life on NATS is not lost while it answers over HTTP."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.cluster.node.hop_lab import TOKEN, Cluster, cluster
from tests.gateway.bridge_lab import OLD_WORDS
from tests.timing import within
from toolway.cluster.routing import peers
from toolway.gateway.mcp.errors import OUTCOME_UNKNOWN

pytestmark = [pytest.mark.anyio, OLD_WORDS]


def stop_beating(nodes: Cluster) -> None:
    beating = nodes.owner().replica.bus._heartbeat_task
    assert beating is not None
    beating.cancel()


async def test_call_continues_when_only_nats_lost_the_node(tmp_path: Path):
    async with cluster(tmp_path) as nodes, nodes.other().raw("server/full", TOKEN) as raw:
        stop_beating(nodes)
        answer = await raw.call("sleep", {"seconds": 2})
        assert "slept" in str(answer.result)
        again = await raw.call("sleep", {"seconds": 0})
        assert "slept" in str(again.result)


async def test_call_to_an_unreachable_node_fails_in_about_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def never_healthy(self: peers.Peer, within: float) -> bool:
        await asyncio.sleep(within)
        return False

    monkeypatch.setattr(peers.Peer, "_probe_health", never_healthy)
    async with cluster(tmp_path) as nodes, nodes.other().raw("server/full", TOKEN) as raw:
        calling = asyncio.create_task(raw.call("counter", {"nonce": "n", "seconds": 3}))
        await asyncio.sleep(0.5)
        stop_beating(nodes)
        began = time.monotonic()
        answer = await calling
        assert answer.error["code"] == OUTCOME_UNKNOWN
        assert time.monotonic() - began < within(1.3)
