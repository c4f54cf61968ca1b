"""A server that is down is started on request: once for all callers, and once a second at most."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest

from tests.machines.upstreams import PLAIN, FakeHub, Weather, a_call
from tests.sim.loop import VirtualLoop, run
from toolway.config.schema import Server
from toolway.errors import ServerUnavailable
from toolway.upstream.upstream import Upstream

URL = Server(url="http://127.0.0.1:9/mcp")
BOTH = pytest.mark.parametrize("server", [PLAIN, URL], ids=["process", "url"])
pytestmark = pytest.mark.user_trial("2")


async def down(server: Server) -> tuple[Upstream, FakeHub]:
    """A server that has been down for so long that it is tried rarely."""
    around = FakeHub(Weather(opening="refused", roll=0.999))
    upstream = Upstream(
        "s", replace(server, restart=msgspec.structs.replace(server.restart, initial_backoff=25.0)), around
    )
    upstream.start()
    await asyncio.sleep(200)
    return upstream, around


@BOTH
def test_call_to_a_recovered_server_is_answered_in_a_second(server: Server) -> None:
    async def main() -> None:
        upstream, around = await down(server)
        with pytest.raises(ServerUnavailable) as caught:
            await upstream.wait_ready()
        assert caught.value.retry_after is not None and caught.value.retry_after <= 1.0
        around.weather.opening = "well"
        began = asyncio.get_running_loop().time()
        await upstream.wait_ready()
        assert asyncio.get_running_loop().time() - began <= 1.0
        await upstream.stop()

    run(main(), VirtualLoop(1000.0))


@BOTH
def test_waiting_callers_share_one_start_per_second(server: Server) -> None:
    async def main() -> None:
        upstream, around = await down(server)
        await asyncio.sleep(2)
        before = len(around.links)
        await asyncio.gather(*(upstream.call(a_call()) for _ in range(50)), return_exceptions=True)
        assert len(around.links) == before + 1
        until = asyncio.get_running_loop().time() + 20
        while asyncio.get_running_loop().time() < until:
            asks = [upstream.call(a_call()), upstream.check_health(5, start=True), upstream.wait_list_fetched("tools")]
            await asyncio.gather(*asks, return_exceptions=True)
        assert 19 <= len(around.links) - before <= 22
        await upstream.stop()

    run(main(), VirtualLoop(1000.0))


@BOTH
def test_health_check_starts_a_server_that_is_not_due_yet(server: Server) -> None:
    async def main() -> None:
        upstream, around = await down(server)
        await asyncio.sleep(2)
        before = len(around.links)
        assert not (await upstream.check_health(5, start=True)).ok
        assert len(around.links) == before + 1
        around.weather.opening = "well"
        assert (await upstream.check_health(5, start=True)).ok
        await upstream.stop()

    run(main(), VirtualLoop(1000.0))
