"""A gateway that ends hands over what it owns, and gets none of it back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cluster.node.hop_lab import cluster
from tests.gateway.bridge_lab import OLD_WORDS

pytestmark = [pytest.mark.anyio, OLD_WORDS]


async def test_who_leaves_says_so_first_so_that_others_keep_what_it_lets_go_of(tmp_path: Path):
    async with cluster(tmp_path) as nodes:
        owner, other = nodes.owner(), nodes.other()
        await owner.replica.drain()
        seen = {each.info.id: each.draining for each in await other.replica.nodes.list_alive("default")}
        assert seen == {owner.id: True, other.id: False}
        async with asyncio.timeout(20):
            while not other.replica.router.owns("full"):
                await asyncio.sleep(0.05)
        await asyncio.sleep(2.5)  # more than two looks
        assert other.replica.router.owns("full")
        assert not owner.replica.router.owns("full")
