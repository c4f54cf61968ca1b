"""Whoever believes in an owner that is gone finds the one that there is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest

from tests.gateway.replica.hop_lab import TOKEN, cluster
from toolway.cluster.record.places import Held
from toolway.gateway.replica.links.remote import ROADS, RemoteLink
from toolway.upstream.link import Link

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


async def test_the_ways_to_nodes_that_owned_a_server_long_ago_are_closed() -> None:
    closed: list[int] = []

    class Road:
        def __init__(self, number: int) -> None:
            self._number = number

        async def open(self, inbound: object) -> None: ...

        def adopt(self, era: str, version: str) -> None: ...

        async def close(self) -> None:
            closed.append(self._number)

    link = RemoteLink("s", (), Mock())
    await link.open(Mock())
    for number in range(ROADS + 2):
        await link._opened(number, cast(Link, Road(number)))
    assert closed == [0, 1]
    await link.close()
    assert closed == list(range(ROADS + 2))
