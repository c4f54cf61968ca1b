"""The nodes that are called from here come and go, and only those that are there are remembered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from toolway.cluster.bus import Bus
from toolway.cluster.node_auth import NodeProofs
from toolway.cluster.routing import peers
from toolway.cluster.routing.peers import Peer, Peers
from toolway.gateway.sealing import Sealer
from toolway.http.client import HttpTarget
from toolway.http.limits import HttpError

pytestmark = pytest.mark.anyio
PROOFS = NodeProofs("own", Sealer(b"k" * 32, time.time), lambda: ("own", 1), lambda: "")


@pytest.fixture
def alive() -> set[str]:
    return {"a-1", "b-1"}


@pytest.fixture
def known(alive: set[str]) -> Peers:
    bus = Bus("test", "own", lambda kind, body: None, lambda: None)
    return Peers(bus, lambda to: f"for {to}", lambda id_: 1 if id_ in alive else None, PROOFS)


async def test_node_keeps_one_peer_while_it_lives(known: Peers) -> None:
    a, b = known.get("a-1", "http://127.0.0.1:1"), known.get("b-1", "http://127.0.0.1:2")
    assert known.get("a-1", "http://127.0.0.1:1") is a and a is not b
    await known.close()


async def test_gone_nodes_are_forgotten_when_others_come(
    known: Peers, alive: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "RETIRED_PEER_TIMEOUT_S", 0.0)
    for number in range(1, 20):
        known.get(f"a-{number}", "http://127.0.0.1:1")
        alive.symmetric_difference_update({f"a-{number}", f"a-{number + 1}"})
    assert len(known._by_id) <= 2
    await known.close()


async def test_peer_of_a_node_taken_for_gone_stays_open(known: Peers, alive: set[str]) -> None:
    a = known.get("a-1", "http://127.0.0.1:1")
    alive.remove("a-1")
    known.get("b-1", "http://127.0.0.1:2")
    assert not a.client._closed
    await known.close()
    assert a.client._closed


async def test_node_with_a_misrouted_address_is_avoided_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For long, where it gives no sign of life any more; else the way led astray, and may be right the next time."""
    monkeypatch.setattr(peers, "WRONG_PROCESS_PAUSE_S", 5.0)
    monkeypatch.setattr(peers, "MISROUTED_PAUSE_S", 0.3)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for lives, long in ((True, False), (False, True)):
        a = Peer("a-1", address, "", cast(Bus, _Beats(lives)), PROOFS, lambda id_: 1)
        with pytest.raises(HttpError) as refused:
            await a.run_while_alive(a.client.send("GET", HttpTarget.parse(address)).send_and_wait())
        assert refused.value.bytes_sent == 0
        assert a._is_avoided
        await asyncio.sleep(0.5)
        assert a._is_avoided is long
        async with asyncio.timeout(30):
            while a._is_avoided:
                await asyncio.sleep(0.05)
        await a.close()
    server.close()


class _Beats:
    """The signs of life of a node that lives, or has given none for a minute."""

    def __init__(self, lives: bool) -> None:
        self.seconds_silent = 0.0 if lives else 60.0

    @asynccontextmanager
    async def watch(self, node: str) -> AsyncIterator[_Beats]:
        yield self
