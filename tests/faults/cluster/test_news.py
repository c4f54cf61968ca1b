"""What is said at one of three real gateways, at the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.cluster.cluster import cluster
from tests.faults.cluster.engines import missing_engines
from tests.faults.cluster.news import revocation, spending

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.alone,
    pytest.mark.skipif(missing_engines() is not None, reason=missing_engines() or ""),
]


async def test_a_revoked_key_opens_no_gateway_after_a_second_and_a_rate_holds_for_all_together(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, apart=False) as made:
        for number in range(3):
            span = await revocation(made.replicas, number)
            assert max(span.revoked, span.stream) < 1.0, span
        spent = await spending(made.replicas, "s00__echo", "30/s", 3.0, 0.02)
        assert 0.7 * 30 * (1 + 3) <= spent.passed <= 30 * (1 + spent.seconds) + 30 / 4 + 3, spent
        assert spent.refused and max(spent.waits) < 5.0
        for node in made.nats:
            await node.kill()
        span = await revocation(made.replicas)
        assert max(span.revoked, span.stream) < 2.5, span  # found in the record
