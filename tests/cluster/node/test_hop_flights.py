"""Plain calls to another node run without a coroutine on both nodes; unusual calls are handled as before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.node.hop_lab import TOKEN, Cluster, Node, cluster
from tests.gateway.bridge_lab import Answer, Raw, until
from toolway.gateway.mcp.errors import OUTCOME_UNKNOWN
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio
SERVER = "pipe"


class Hop:
    """A client at a node that does not own the server, and what the server has executed."""

    def __init__(self, nodes: Cluster, effects: Path, raw: Raw) -> None:
        self.here, self.owner = nodes.other(SERVER), nodes.owner(SERVER)
        self._effects = effects
        self.raw = raw

    @property
    def both(self) -> tuple[Node, Node]:
        return self.here, self.owner

    async def call(self, name: str, **arguments: Any) -> Answer:
        return await self.raw.call(name, arguments, capabilities={})

    async def warm_up(self, name: str, **arguments: Any) -> None:
        """The first call has no plan, and opens the link."""
        for _ in range(3):
            await self.call(name, **arguments)

    def executed(self, nonce: str) -> int:
        lines = self._effects.read_text().splitlines() if self._effects.exists() else []
        return sum(nonce in line for line in lines)

    async def until_executed(self, nonce: str) -> None:
        await until(lambda: self.executed(nonce) == 1)

    async def settled(self) -> None:
        for node in self.both:
            limiter = node.hub.servers.upstreams.limiters.get(SERVER)
            await until(lambda limiter=limiter: limiter is not None and limiter.in_use == 0)  # type: ignore[misc]
            await until(lambda node=node: not node.hub.calls.running() and not len(node.hub.calls.flights))  # type: ignore[misc]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def made(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Cluster, Path]]:
    folder = tmp_path_factory.mktemp("flights")
    entry = fake_server(era="modern", effects=str(folder / "effects"))
    async with cluster(folder, {SERVER: entry}) as nodes:
        yield nodes, folder / "effects"


@pytest.fixture
async def hop(made: tuple[Cluster, Path]) -> AsyncIterator[Hop]:
    nodes, effects = made
    await nodes.settle()
    async with nodes.other(SERVER).raw(f"server/{SERVER}", TOKEN) as raw:
        found = Hop(nodes, effects, raw)
        yield found
        await found.settled()


def counts(hop: Hop) -> list[tuple[int, int]]:
    return [(node.hub.calls.flights.landed, node.hub.calls.flights.taken_over) for node in hop.both]


@asynccontextmanager
async def growing(hop: Hop, landed: int, taken_over: int) -> AsyncIterator[None]:
    """Check how many flights end on their own at both nodes, and how many go through the pipeline."""
    before = counts(hop)
    yield
    assert [(a - c, b - d) for (a, b), (c, d) in zip(counts(hop), before, strict=True)] == [(landed, taken_over)] * 2


async def test_remote_calls_are_flights_and_share_one_connection(hop: Hop) -> None:
    await hop.warm_up("add", a=1, b=2)
    hop.owner.tap.sent.clear()
    async with growing(hop, 5, 0):
        answers = [await hop.call("add", a=number, b=1) for number in range(5)]
    assert [json.loads(each.result["content"][0]["text"]) for each in answers] == [1, 2, 3, 4, 5]
    assert b"HTTP" not in hop.owner.tap.sent and b"add" not in hop.owner.tap.sent
    ids = [each.headers["x-request-id"] for each in answers]
    here, there = (node.gateway.activity.calls for node in hop.both)
    assert all(here.find(id) for id in ids) and not any(there.find(id) for id in ids)  # counted where they came in


async def test_parallel_calls_each_get_their_own_result(hop: Hop) -> None:
    await hop.warm_up("add", a=1, b=2)
    answers = await asyncio.gather(*(hop.call("add", a=number, b=1) for number in range(40)))
    assert [json.loads(each.result["content"][0]["text"]) for each in answers] == list(range(1, 41))


async def test_long_remote_call_is_taken_over_and_executed_once(hop: Hop) -> None:
    await hop.warm_up("counter", call="warm", nonce="warm")
    async with growing(hop, 0, 1):
        assert "result" in (await hop.call("counter", call="c", seconds=4, nonce="long")).last
    assert hop.executed("long") == 1


async def test_lost_connection_leaves_a_call_unknown_and_recovers(hop: Hop) -> None:
    await hop.warm_up("counter", call="warm", nonce="warm")
    waiting = asyncio.create_task(hop.call("counter", call="c", seconds=30, nonce="cut"))
    await hop.until_executed("cut")
    hop.owner.tap.cut()
    error = (await waiting).error
    assert error["code"] == OUTCOME_UNKNOWN and error["data"]["executed"] == "unknown"
    assert "result" in (await hop.call("counter", call="c", nonce="after-cut")).last
    assert (hop.executed("cut-"), hop.executed("after-cut")) == (0, 1)
    assert hop.executed("cut") == 2  # itself, and the one after


async def test_leaving_client_cancels_at_the_owner(hop: Hop) -> None:
    await hop.warm_up("counter", call="warm", nonce="warm")
    waiting = asyncio.create_task(hop.call("counter", call="c", seconds=60, nonce="left"))
    await hop.until_executed("left")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await hop.settled()  # long before the server would have answered


async def test_call_to_a_moved_server_finds_the_next_owner(hop: Hop) -> None:
    """The owner refuses a call under an old fence, sealed; the caller looks up the owner."""
    await hop.warm_up("counter", call="warm", nonce="warm")
    cache = hop.here.replica.context.owner_cache
    [(place, held)] = [(place, each) for place, each in cache._cached.items() if place.server == SERVER]
    cache._cached[place] = type(held)(held.instance, held.node, held.fence - 1)
    before = hop.here.hub.calls.flights.taken_over
    assert "result" in (await hop.call("counter", call="c", nonce="moved")).last
    assert hop.executed("moved") == 1
    assert hop.here.hub.calls.flights.taken_over == before + 1 and cache.get(place) == held
