"""A gateway that ends hands over what it owns, and gets none of it back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cluster.node.hop_lab import TOKEN, cluster
from tests.gateway.bridge_lab import OLD_WORDS

pytestmark = [pytest.mark.anyio, OLD_WORDS]


async def test_draining_node_does_not_take_back_its_servers(tmp_path: Path):
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


async def test_server_just_moved_here_can_ask_the_client(tmp_path: Path) -> None:
    """Its session was one with the node that it left, which speaks the modern era although the server doesn't."""
    async with cluster(tmp_path) as nodes:
        owner, other = nodes.owner(), nodes.other()
        async with other.raw(token=TOKEN) as raw:
            assert (await raw.call("pid")).result
            await owner.replica.drain()
            async with asyncio.timeout(30):
                while not other.replica.router.owns("full"):
                    await asyncio.sleep(0)
            assert (await raw.call("elicit")).result["resultType"] == "input_required"


@pytest.mark.attack("A2-NM1")
async def test_callers_of_a_moved_server_get_separate_processes(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        owner, other = nodes.owner(), nodes.other()
        tokens = [await nodes.key(name) for name in ("a", "b")]
        async with other.raw(token=tokens[0]) as first, other.raw(token=tokens[1]) as second:
            for raw in (first, second):
                assert (await raw.call("pid")).result
            await owner.replica.drain()
            async with asyncio.timeout(30):
                while not other.replica.router.owns("full"):
                    await asyncio.sleep(0)
            found = await asyncio.gather(*(raw.call("pid") for raw in (first, second)))
            assert len({each.result["structuredContent"]["pid"] for each in found}) == 2
