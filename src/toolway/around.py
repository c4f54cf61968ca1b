"""What the upstreams of a hub need from it: links, somebody who answers their servers, and ears for what they tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from toolway.catalog.index import Catalog
from toolway.catalog.keeping import KINDS, Keeping
from toolway.config.secrets import references
from toolway.config.spec import Server
from toolway.events import CatalogChanged, Connected, Event, Kind
from toolway.model import Asks, Era, Json
from toolway.observing import Observer
from toolway.resilience.breaking import Board
from toolway.resolving import LateLink, resolved
from toolway.security.broker import Broker
from toolway.upstream.gate import StartGate
from toolway.upstream.link import Link
from toolway.upstream.process.spawn import Spawner
from toolway.world import World


class Around:
    """The `Surroundings` of all upstreams of a hub."""

    def __init__(
        self,
        world: World,
        asks: Asks,
        spawner: Spawner,
        broker: Broker,
        servers: Mapping[str, Server],
        catalog: Catalog,
        keeping: Keeping,
        board: Board,
        observer: Observer,
    ) -> None:
        self.asks = asks
        self.gate = StartGate(max(4, 2 * world.cores))
        self._world = world
        self._spawner = spawner
        self._broker = broker
        self._servers = servers
        self._catalog = catalog
        self._keeping = keeping
        self._board = board
        self._observer = observer

    @property
    def dice(self) -> Callable[[], float]:
        return self._world.dice

    # -- links --------------------------------------------------------------------------------------------------------

    def open_link(self, name: str, server: Server, caller: str = "") -> Link:
        if self._world.wrap_link is not None:
            return self._world.wrap_link(name, caller, partial(self._own_link, name, server, caller))
        return self._own_link(name, server, caller)

    def _own_link(self, name: str, server: Server, caller: str) -> Link:
        if not references(server):
            return self._link(name, server, caller)

        async def with_secrets() -> Link:
            return self._link(name, await self.resolved(server), caller)

        return LateLink(with_secrets)

    async def resolved(self, server: Server) -> Server:
        """The server with the secrets that it names. Raises `ToolwayError`."""
        return await resolved(server, self._world.environ, self._spawner) if references(server) else server

    def _link(self, name: str, server: Server, caller: str) -> Link:
        authorizer = self._broker.authorizer(name, server, caller)
        return self._world.make_link(name, server, self._spawner, self._world.environ, authorizer)

    # -- what is told -------------------------------------------------------------------------------------------------

    def emit(self, fact: Event) -> None:
        if isinstance(fact, Connected):
            self._board.reconnected(fact.server)
        self._observer.emit(fact)

    def on_list(
        self, server: str, kind: Kind, items: list[Any], problems: list[str], era: Era
    ) -> CatalogChanged | None:
        objection = None
        definition = self._servers.get(server)  # none where it is being removed
        if kind == "tools" and era == "modern" and definition is not None and definition.transport == "http":
            objection = _header_problem
        changed = self._catalog.replace(server, kind, items, problems, objection=objection)
        self._keeping.changed(server, era)
        return changed

    def learn(self, name: str, lists: Mapping[str, list[Any]]) -> None:
        """Take the lists of a server from somebody who has asked it."""
        if name not in self._servers:
            return
        for kind in KINDS:
            changed = self._catalog.replace(name, kind, lists.get(kind, ()))
            if changed is not None:
                self.emit(changed)

    def lacks_list(self, server: str, kind: Kind) -> bool:
        return self._broker.is_personal(server) and not self._catalog.listed(server, kind)


def _header_problem(tool: Json) -> str | None:
    """Why the arguments of a tool cannot be mirrored into headers, as its schema asks."""
    from toolway.protocol.headers import schema_problem  # with the whole SDK, which only HTTP servers need

    return schema_problem(tool["inputSchema"])
