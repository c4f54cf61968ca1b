"""The gateway as a whole: a hub, its door and its clients, from the first connection to the last answer.

async with Hub(loaded) as hub:
    gateway = Gateway(hub, …)
    await gateway.listen("127.0.0.1", 8765)
    await gateway.drain()
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from toolway.gateway.admin import Admin
from toolway.gateway.app import App
from toolway.gateway.browser import Browsers
from toolway.gateway.dashboard import Dashboard
from toolway.gateway.desk import Desk, Doctor
from toolway.gateway.discovery import Discovery
from toolway.gateway.door import Door
from toolway.gateway.files import Files
from toolway.gateway.handshake import Handshake
from toolway.gateway.handshake_http import HandshakeHttp
from toolway.gateway.http.limits import HttpLimits
from toolway.gateway.http.server import HttpServer
from toolway.gateway.listen import Listening
from toolway.gateway.metrics import MetricsPage
from toolway.gateway.modern import Modern, TakePass
from toolway.gateway.others import Others
from toolway.gateway.parking import Parking
from toolway.gateway.principals import OWNER, KnownKeys, Principal
from toolway.gateway.rates import MemoryRates, Rates
from toolway.gateway.relay import Relay, Result
from toolway.gateway.sealed import Sealer
from toolway.gateway.selection import Selection
from toolway.gateway.sse import Sse
from toolway.gateway.stdio import StdioClient
from toolway.gateway.visit import Tell
from toolway.gateway.watch import Watch
from toolway.hub import Hub
from toolway.model import Json
from toolway.protocol.wire import Message
from toolway.telemetry.metrics import Metrics

DRAIN_DELAY: Final = 3.0  # seconds in which balancers may notice that we are not ready any more
DRAIN_TIME: Final = 30.0  # seconds that calls under way may take
CLOSE_TIME: Final = 3.0  # seconds that clients may take for the last bytes

Those = TypeVar("Those", bound=Others)


class Gateway:
    """`keyring` opens the door; None leaves it open, for a test or behind a door of somebody else's."""

    def __init__(
        self,
        hub: Hub,
        key: bytes,
        keyring: KnownKeys | None,
        *,
        groups: Callable[[], Mapping[str, Selection]] = dict,
        commands: Callable[[], Collection[str]] = tuple,
        reload: Callable[[], Awaitable[Json]] | None = None,
        files: Files | None = None,
        doctor: Doctor | None = None,
        limits: HttpLimits | None = None,
        parking: Parking | None = None,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        metrics: Metrics | None = None,
        rates: Rates | None = None,
    ) -> None:
        self._hub = hub
        sealer = Sealer(key, time.time)
        self.parking = parking if parking is not None else Parking()
        self._relay = Relay(hub, sealer, self.parking, rates if rates is not None else MemoryRates(time.monotonic))
        self._discovery = Discovery(hub)
        self.listening = Listening(hub, self._relay.task)
        self._sessions = Handshake(self._relay, self._discovery, self.listening, sealer)
        self._sse = Sse(self._sessions, sealer)
        self._door = Door(keyring, hosts, origins)
        self._secure = False
        browsers = Browsers(sealer, keyring, time.time)
        self.watch = Watch(lambda: hub.servers, self._fix_of)
        hub.listen(self.watch)
        self._desk = desk = Desk(hub, self.watch, keyring, browsers, groups, files, doctor)
        self.link = partial(desk.link, OWNER)  # opens the dashboard once
        take = reload if reload is not None else _nothing_to_reload
        self._modern = Modern(self._relay, self._discovery, self.listening)
        self.admin = Admin(hub, keyring, commands, take, self._facts, desk)
        self.app = App(
            hub,
            self._door,
            self._modern,
            HandshakeHttp(self._sessions),
            self._sse,
            self.admin,
            Dashboard(self._door, browsers, lambda: self._secure),
            browsers,
            groups,
        )
        if metrics is not None:
            self.app.metrics = MetricsPage(hub, metrics, self._facts)
        self.http = HttpServer(self.app.handle, limits, self.app.greet)
        if keyring is not None:
            keyring.on_revoked = self.app.shut_out
        self._began = time.time()

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Serve; the port, where 0 was asked for. Raises `OSError`."""
        self.listening.start()
        self._secure = tls is not None
        port = await self.http.listen(host, port, tls)
        self._door.stands_at(host, port)
        return port

    def let_nodes_in(
        self, nodes: Callable[[str], Principal | None], take_pass: TakePass, elsewhere: Callable[[str], bool]
    ) -> None:
        """Be one of a cluster: `nodes` knows the others by what they show, `take_pass` whose calls they bring, and
        `elsewhere` whether a server is called at another."""
        self._door.nodes = nodes
        self._modern.take_pass = take_pass
        self._relay.elsewhere = elsewhere

    def share_sessions(self, others: Callable[[Handshake, Sse], Those]) -> Those:
        """Be one of a cluster: sessions of the handshake era are known to all."""
        made = others(self._sessions, self._sse)
        self._sessions.others = made
        self.app.errand = made.take
        return made

    @property
    def brought(self) -> Callable[[str, Message, Tell], Coroutine[Any, Any, Result]]:
        """Answers a request for a server that another node brings without HTTP. Raises `Failure`."""
        return self._modern.brought

    def also_called(self, host: str) -> None:
        """Others know us by this name, too."""
        if host:
            self._door.also_called(host)

    def pipe(self) -> StdioClient:
        """The one client of our own pipes. Nobody else looks."""
        self._hub.unlisten(self.watch)
        self.listening.start()
        view = self.app.view(OWNER, "")
        assert view is not None
        return StdioClient(self._relay, self._discovery, self.listening, self._sessions, view)

    def _fix_of(self, server: str) -> str:
        found = self._hub.status().get(server)
        return found.fix if found is not None else ""

    def _facts(self) -> Json:
        return {
            "started": self._began,
            "connections": len(self.http),
            "under_way": self.http.busy,
            "listening": len(self.listening),
            "parked": len(self.parking),
            "draining": not self.app.ready,
        }

    def reconfigured(self, hosts: Iterable[str], origins: Iterable[str]) -> None:
        """The configuration has changed: who may enter, what there is to see, and whose lists are yet to come."""
        self._door.know(hosts, origins)
        self.app.renew_views()
        self.listening.look()
        self._relay.expect_lists()

    # -- the end ------------------------------------------------------------------------------------------------------

    async def drain(self, hurry: asyncio.Event, delay: float = DRAIN_DELAY, within: float = DRAIN_TIME) -> None:
        """End in order: no new work, the answers of what runs, and then the rest, told the truth. `hurry` skips the
        waiting."""
        self.app.ready = False
        await _first_of(hurry.wait(), asyncio.sleep(delay), delay)
        self.app.refusing = True
        self.http.stop_accepting()
        await self.listening.close()
        self._sessions.close_streams()
        self._sse.close_streams()
        self._desk.close_streams()
        await _first_of(hurry.wait(), self._wait_quiet(), within)
        self._relay.ending = True
        self.parking.close()
        await self._sse.cancel_all()
        await self.http.cancel_all()
        self._sessions.close()
        await self.http.close(CLOSE_TIME)

    async def _wait_quiet(self) -> None:
        """Until nobody is being answered, and nothing runs for an older client whose connection was lost."""
        await self.http.wait_quiet()
        while self._sessions.under_way:  # noqa: ASYNC110 - rare, and nothing else needs to know
            await asyncio.sleep(0.05)


async def _first_of(one: Coroutine[Any, Any, Any], other: Coroutine[Any, Any, Any], within: float) -> None:
    """Until either is done, or the time is over."""
    tasks = [asyncio.ensure_future(one), asyncio.ensure_future(other)]
    try:
        await asyncio.wait(tasks, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _nothing_to_reload() -> Json:
    return {"changed": []}
