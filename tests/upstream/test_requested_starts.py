"""A start that someone asked for is waited for, whatever becomes of the one before it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from toolway import Hub, RetryPolicy
from toolway.config.schema import Server
from toolway.events import Disconnected, StateChanged
from toolway.hub.core import HubCore
from toolway.hub.core_options import ServerDefaults
from toolway.hub.environment import HubEnvironment
from toolway.testing import fake_server
from toolway.types import Authorizer, Certainty
from toolway.upstream.process.spawner import Spawner
from toolway.upstream.transport import InboundHandler, Transport, TransportError
from toolway.upstream.transports import create_transport

pytestmark = pytest.mark.anyio


class _Fails:
    """A way to a server that takes its time to fail."""

    def __init__(self, link: Transport, moment: asyncio.Event) -> None:
        self._link = link
        self._moment = moment

    async def open(self, inbound: InboundHandler) -> None:
        await self._moment.wait()
        raise TransportError("it was not ready", Certainty.NOT_SENT)

    def __getattr__(self, name: str) -> object:
        return getattr(self._link, name)


class _Waits(_Fails):
    """A transport that takes its time to open."""

    async def open(self, inbound: InboundHandler) -> None:
        await self._moment.wait()
        await self._link.open(inbound)


@pytest.mark.parametrize("fails", [True, False])
async def test_pending_start_is_repeated_after_login_only_if_it_fails(fails: bool) -> None:
    moment, transports = asyncio.Event(), 0

    def make(
        name: str, server: Server, spawner: Spawner, environ: Mapping[str, str], authorizer: Authorizer | None
    ) -> Transport:
        nonlocal transports
        transports += 1
        transport = create_transport(server, spawner, environ, authorizer)
        if transports > 1:
            return transport
        return (_Fails if fails else _Waits)(transport, moment)  # type: ignore[return-value]

    core = HubCore({"fake": fake_server()}, environment=HubEnvironment(create_transport=make), catalog_storage=None)
    async with Hub._from_core(core) as hub:
        while not transports:
            await asyncio.sleep(0.01)
        core.servers.logins.on_login("fake", "")
        moment.set()
        await hub.wait_ready("fake", timeout=20)
        call = asyncio.create_task(hub.call_tool("fake.sleep", {"seconds": 0.2}))
        core.servers.logins.on_login("fake", "")
        assert not (await call).is_error
        assert transports == (2 if fails else 1)


async def test_call_after_restart_ignores_previous_start_error() -> None:
    moment, starts = asyncio.Event(), 0

    def make(
        name: str, server: Server, spawner: Spawner, environ: Mapping[str, str], authorizer: Authorizer | None
    ) -> Transport:
        nonlocal starts
        starts += 1
        link = create_transport(server, spawner, environ, authorizer)
        return _Fails(link, moment) if starts == 1 else link  # type: ignore[return-value]

    core = HubCore(
        {"fake": fake_server()},
        environment=HubEnvironment(create_transport=make),
        defaults=ServerDefaults(retry=RetryPolicy(max_attempts=1)),
        catalog_storage=None,
    )
    async with Hub._from_core(core) as hub:
        while not starts:
            await asyncio.sleep(0.01)
        hub.restart_server("fake")
        call = asyncio.create_task(hub.call_tool("fake.echo", {"text": "hello"}))
        await asyncio.sleep(0.05)
        moment.set()
        assert (await call).text == "hello"
        assert starts == 2


@pytest.mark.user_trial("11")
async def test_requested_restart_is_never_shown_as_down() -> None:
    async with Hub({"fake": fake_server()}, catalog_storage=None) as hub:
        await hub.wait_ready()
        events = hub.events(StateChanged, Disconnected)
        hub.restart_server("fake")
        seen: list[str] = []
        async for event in events:
            if isinstance(event, Disconnected):
                assert event.requested
            elif isinstance(event, StateChanged):
                seen.append(event.state)
                if event.state == "ready":
                    break
        status = hub.status()["fake"]
    assert seen == ["starting", "starting", "ready"]
    assert status.last_error is None and status.why.endswith("restarted on request")


@pytest.mark.user_trial("11")
async def test_failed_server_is_down_until_ready() -> None:
    async with Hub({"gone": {"command": "/nonexistent/program"}}, catalog_storage=None) as hub:
        seen = set()
        async for event in hub.events(StateChanged):
            if isinstance(event, StateChanged):
                seen.add((event.new, event.state))
                if event.new == "starting" and ("backing_off", "down") in seen:
                    break
        status = hub.status()["gone"]
        results = await hub.check_health(timeout=0.1)
    assert ("starting", "down") in seen and status.state == "down" and status.lifecycle == "starting"
    assert results["gone"].state == "down"
