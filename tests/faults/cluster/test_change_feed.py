"""What is said at one of three real gateways, at the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.cluster.change_feed import breaker, missed, new_tool, revocation, spending
from tests.faults.cluster.cluster import cluster
from tests.faults.cluster.engines import missing_engines
from tests.faults.cluster.node_process import TOKEN
from toolway.testing import FakeHttp

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.alone,
    pytest.mark.skipif(missing_engines() is not None, reason=missing_engines() or ""),
]


@pytest.mark.slow
async def test_changes_reach_all_gateways_within_seconds(tmp_path: Path) -> None:
    web = FakeHttp(name="web")
    async with web, cluster(tmp_path, 1, apart=False, more={"web": {"url": web.url, "maxRetries": 0}}) as made:
        for number in range(3):
            span = await revocation(made.replicas, number)
            assert max(span.revoked, span.stream) < 1.0, span
        assert await missed(made.replicas) < 1.5
        assert await new_tool(made.replicas, "s00", TOKEN) < 2.5  # its owner asks for the list at most once a second
        spent = await spending(made.replicas, "s00__echo", "30/s", 3.0, 0.02)
        assert 0.7 * 30 * (1 + 3) <= spent.passed <= 30 * (1 + spent.seconds) + 30 / 4 + 3, spent
        assert spent.refused and max(spent.waits) < 5.0
        await web.stop()
        assert await breaker(made.replicas, "web", "echo", TOKEN) < 1.0
        for node in made.nats:
            await node.kill()
        span = await revocation(made.replicas)
        assert max(span.revoked, span.stream) < 2.5, span  # found in the record
        assert await new_tool(made.replicas, "s00", TOKEN) < 4.0
