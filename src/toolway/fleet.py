"""The servers of a hub: what is configured, and what lives of it.

Changes do not wait for anything in between, so each finds what the one before it has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from toolway.catalog.index import Catalog
from toolway.catalog.keeping import Keeping
from toolway.catalog.resolve import check_server
from toolway.config.spec import Server
from toolway.errors import Unavailable
from toolway.events import Kind
from toolway.resilience.breaking import Board
from toolway.resilience.budget import Budget
from toolway.resilience.limits import Slots
from toolway.security.broker import Broker
from toolway.sources import identity
from toolway.upstream.private import PrivateUpstreams
from toolway.upstream.retiring import Retiring
from toolway.upstream.status import Status
from toolway.upstream.subscriptions import Wanted
from toolway.upstream.surroundings import Surroundings
from toolway.upstream.upstream import Upstream
from toolway.waits import all_to_the_end, settle_within, within

Leaving = list[asyncio.Task[None]]  # the ends of upstreams that were replaced or removed


class Fleet:
    """`forget` is told of every server whose definition is no longer what it was."""

    def __init__(
        self,
        servers: dict[str, Server],
        around: Surroundings,
        catalog: Catalog,
        keeping: Keeping,
        board: Board,
        broker: Broker,
        forget: Callable[[str], None],
    ) -> None:
        self.servers = servers
        self.upstreams: dict[str, Upstream] = {}
        self.private = PrivateUpstreams(around)
        self.slots: dict[str, Slots] = {}
        self.budgets: dict[str, Budget] = {}
        self.open = False
        self.divides: Callable[[str], bool] | None = None  # in a cluster: see `World`
        self._around = around
        self._catalog = catalog
        self._keeping = keeping
        self._board = board
        self._broker = broker
        self._forgotten = forget
        self._retiring = Retiring(around)

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.open = True
        for name in self.servers:
            self._bring_up(name)

    async def close(self) -> None:
        """Stop all servers, at the same time."""
        self.open = False
        upstreams = [*self.upstreams.values(), *self.private.take()]
        self.upstreams.clear()
        stops = [upstream.stop() for upstream in upstreams]
        await all_to_the_end([*stops, self.private.wait_stopped(), self._retiring.close()])

    def add(self, name: str, server: Server) -> None:
        self.servers[name] = server
        if self.open:
            self._bring_up(name)

    def remove(self, name: str) -> Leaving:
        del self.servers[name]
        return self._take_out(name)

    def exchange(self, name: str, server: Server) -> Leaving:
        leaving = self._take_out(name)
        self.add(name, server)
        return leaving

    def become(self, wanted: Mapping[str, Server]) -> dict[str, str]:
        """Have these servers and no others; what was done with those that are not the same."""
        done: dict[str, str] = {}
        for name in [name for name in self.servers if name not in wanted]:
            done[name] = "removed"
            self.remove(name)
        for name, server in wanted.items():
            if name not in self.servers:
                done[name] = "added"
                self.add(name, server)
            elif server != self.servers[name]:
                done[name] = "changed"
                self.exchange(name, server)
        return done

    def _bring_up(self, name: str) -> None:
        server = self.servers[name]
        self._catalog.add_server(name)
        hint = self._keeping.load(name, identity(server))
        self.slots[name] = Slots(server.limits)
        self.budgets[name] = Budget()
        self._board.forget(name)
        if server.enabled:
            upstream = self.upstreams[name] = Upstream(name, server, self._around, hint)
            upstream.start(after=self._retiring.before(name))

    def _take_out(self, name: str) -> Leaving:
        """Whoever has calls keeps them, and is left alone until they have ended."""
        upstream = self.upstreams.pop(name, None)
        shared = [upstream] if upstream is not None else []
        self._catalog.remove_server(name)
        self._forgotten(name)
        return self._retiring.begin([*shared, *self.private.take(name)])

    def restart(self, name: str) -> None:
        """Start a server again now, whatever its state. Raises `NotFound`."""
        self.upstream(name).restart()
        self._board.forget(name)
        self.slots[name].paused_until = 0.0
        self._broker.forgive(name)

    # -- finding ------------------------------------------------------------------------------------------------------

    def upstream(self, name: str) -> Upstream:
        """The upstream that everybody shares. Raises `NotFound` and `Unavailable`."""
        upstream = self.upstreams.get(name)
        if upstream is None or name not in self.servers:
            check_server(self.servers, name)
            why = "it is disabled" if self.open else "the hub is closed"
            raise Unavailable(f"{name} is not running", server=name, evidence=why)
        return upstream

    def is_private(self, name: str, upstream: Upstream) -> bool:
        """Whether each caller has a link of his own to the server."""
        server = self.servers[name]
        if server.shared or server.transport == "memory":
            return False
        return upstream.era == "handshake" or self._broker.is_personal(name)

    def link_of(self, server: str, caller: str) -> str:
        """On whose link to the server the caller hears of changes: his own, or, by the name of nobody, the one that is
        shared."""
        if self.is_private(server, self.upstream(server)):
            return caller
        divided = self.divides is not None and self.divides(server) and not self.servers[server].shared
        return caller if divided else ""

    async def subscribe(self, server: str, kind: Wanted, name: str, link: str) -> None:
        upstream = self.upstream(server)
        if link:
            upstream = self.private.of(server, self.servers[server], link)
        await upstream.subscribe(kind, name)

    def unsubscribe(self, server: str, kind: Wanted, name: str, link: str) -> None:
        upstream = self.private.get(server, link) if link else self.upstreams.get(server)
        if upstream is not None:
            upstream.subscriptions.remove(kind, name)

    def status(self, name: str) -> Status:
        upstream = self.upstreams.get(name)
        if upstream is None:
            state, why = ("disabled", "disabled in its entry") if self.open else ("stopped", "the hub is not running")
            return Status(name, self.servers[name].transport, state, why=why)
        return replace(
            upstream.status(),
            tools=len(self._catalog.tools(name)),
            stale=self._catalog.stale(name),
            problems=self._catalog.problems(name),
        )

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def wait_answered(self, kind: Kind, server: str | None, timeout: float) -> None:
        """Return when a server has answered with its list; or each of them, or has failed, or after `timeout`."""
        if server is not None:
            await within(timeout, self.upstream(server).wait_listed(kind), server)
        else:
            await self._settle(timeout, self.upstreams.values(), kind, urgent=False)

    async def wait_listed(self, servers: Iterable[str], kind: Kind, timeout: float, *, urgent: bool) -> None:
        """Return when each of these servers has shown its list, be it of an earlier run, or has failed its start, or
        after `timeout`."""
        unlisted = [self.upstreams.get(name) for name in servers if not self._catalog.listed(name, kind)]
        await self._settle(timeout, [each for each in unlisted if each is not None], kind, urgent=urgent)

    async def _settle(self, timeout: float, upstreams: Iterable[Upstream], kind: Kind, *, urgent: bool) -> None:
        await settle_within(timeout, [asyncio.ensure_future(u.wait_listed(kind, urgent=urgent)) for u in upstreams])

    async def wait_ready(self, name: str | None, timeout: float | None) -> None:
        """Return when `name`, or every enabled server, is ready. Raises `Unavailable` as soon as one cannot be had."""
        chosen = [self.upstream(name)] if name is not None else list(self.upstreams.values())
        waiting = asyncio.gather(*(u.wait_ready(urgent=name is not None) for u in chosen))
        await within(timeout, waiting, name or "not every server")

    async def wait_settled(self, timeout: float | None) -> None:
        """Return when every server that starts by itself is ready or has failed its first start, or after `timeout`."""
        chosen = [u for u in self.upstreams.values() if not u.server.lazy]
        await settle_within(timeout, [asyncio.ensure_future(u.wait_settled()) for u in chosen])
