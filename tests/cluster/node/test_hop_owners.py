"""Whoever believes in an owner that is gone finds the one that there is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest

from tests.cluster.node.hop_lab import TOKEN, cluster
from toolway.cluster.db.instances import Ownership
from toolway.cluster.routing.remote import MAX_NODE_TRANSPORTS, RemoteTransport
from toolway.gateway.mcp.errors import TIMEOUT_META_KEY
from toolway.upstream.transport import Transport

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_cached_owner_that_is_gone_is_replaced(tmp_path: Path) -> None:
    """The message about its new owner may be lost, or sent only for some of many instances that move at once."""
    async with cluster(tmp_path) as nodes:
        held, other = nodes.held(), nodes.other()
        async with other.raw(token=TOKEN) as raw:
            assert (await raw.call("pid")).result
            owners = other.replica.context.owner_cache
            owners.update([Ownership(held.instance, "gone-0", held.fence + 1)])
            known = owners.get(held.instance)
            assert known is not None and known.node == "gone-0"
            async with asyncio.timeout(30):
                assert (await raw.call("pid")).result
            assert owners.get(held.instance) == held


async def test_call_that_waited_too_long_for_its_owner_is_not_sent(tmp_path: Path) -> None:
    """The owner's answer would arrive too late."""
    async with cluster(tmp_path) as nodes:
        owner, other = nodes.owner(), nodes.other()
        async with other.raw(token=TOKEN) as raw:
            assert (await raw.call("pid")).result
            for away, limit, executed in ((0.2, 5.0, "yes"), (0.9, 1.0, "no")):
                peer = other.replica.context.peers.get(owner.id, "")
                peer._wrong_process_at = peer._avoid_until = asyncio.get_running_loop().time() + away
                sent = len(owner.tap.sent)
                answer = await raw.call("pid", meta={TIMEOUT_META_KEY: limit * 1000})
                assert (len(owner.tap.sent) > sent) is (executed == "yes")
                if executed == "no":
                    assert answer.error["data"]["executed"] == "no"


async def test_transports_to_former_owners_are_closed() -> None:
    closed: list[int] = []

    class FakeTransport:
        def __init__(self, number: int) -> None:
            self._number = number

        async def open(self, inbound: object) -> None: ...

        def set_protocol(self, era: str, version: str) -> None: ...

        async def close(self) -> None:
            closed.append(self._number)

    link = RemoteTransport("s", (), Mock())
    await link.open(Mock())
    for number in range(MAX_NODE_TRANSPORTS + 2):
        await link._open_once(number, cast(Transport, FakeTransport(number)))
    assert closed == [0, 1]
    await link.close()
    assert closed == list(range(MAX_NODE_TRANSPORTS + 2))
