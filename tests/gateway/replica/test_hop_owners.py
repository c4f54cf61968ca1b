"""Whoever believes in an owner that is gone finds the one that there is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.gateway.replica.hop_lab import TOKEN, cluster
from toolway.cluster.record.places import Held

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_node_that_is_gone_is_not_believed_to_own_anything(tmp_path: Path) -> None:
    """Who has taken its places may not have told us: news get lost, and of many that move at once some are told."""
    async with cluster(tmp_path) as nodes:
        held, other = nodes.held(), nodes.other()
        async with other.raw(token=TOKEN) as raw:
            assert (await raw.call("pid")).result
            owners = other.replica.node.owners
            owners.hear([Held(held.place, "gone-0", held.fence + 1)])
            known = owners.known(held.place)
            assert known is not None and known.node == "gone-0"
            async with asyncio.timeout(5):
                assert (await raw.call("pid")).result
            assert owners.known(held.place) == held
