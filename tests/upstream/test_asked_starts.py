"""A start that somebody asked for is waited for, whatever becomes of the one before it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from toolway import Hub, Retry
from toolway.config.spec import Server
from toolway.model import Authorizer, Certainty
from toolway.testing import fake_server
from toolway.upstream.link import Fault, Inbound, Link
from toolway.upstream.process.spawn import Spawner
from toolway.upstream.transports import link_for
from toolway.world import World

pytestmark = pytest.mark.anyio


class _Fails:
    """A way to a server that takes its time to fail."""

    def __init__(self, link: Link, moment: asyncio.Event) -> None:
        self._link = link
        self._moment = moment

    async def open(self, inbound: Inbound) -> None:
        await self._moment.wait()
        raise Fault("it was not ready", Certainty.C0)

    def __getattr__(self, name: str) -> object:
        return getattr(self._link, name)


async def test_who_calls_after_a_restart_is_not_told_how_the_start_before_it_ended() -> None:
    moment, starts = asyncio.Event(), 0

    def make(
        name: str, server: Server, spawner: Spawner, environ: Mapping[str, str], authorizer: Authorizer | None
    ) -> Link:
        nonlocal starts
        starts += 1
        link = link_for(server, spawner, environ, authorizer)
        return _Fails(link, moment) if starts == 1 else link  # type: ignore[return-value]

    async with Hub(
        {"fake": fake_server()}, world=World(make_link=make), retry=Retry(attempts=1), catalog_dir=None
    ) as hub:
        while not starts:
            await asyncio.sleep(0.01)
        hub.restart("fake")
        call = asyncio.create_task(hub.call_tool("fake.echo", {"text": "hello"}))
        await asyncio.sleep(0.05)
        moment.set()
        assert (await call).text == "hello"
        assert starts == 2
