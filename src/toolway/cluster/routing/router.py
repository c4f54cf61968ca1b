"""Transport selection per server: owned by this node, direct, or through the owner node.

The router connects the cluster to the hub. The member (`cluster/member.py`) decides which servers this node owns; the
router starts, drains and stops them, and reroutes transports when the owner changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from toolway.cluster.db.instances import Ownership, ServerInstance
from toolway.cluster.member import Member
from toolway.cluster.replication.catalog import SharedCatalog
from toolway.cluster.routing.owned import DirectTransport, OwnedTransport
from toolway.cluster.routing.remote import RemoteTransport, RoutingContext
from toolway.config.schema import Limits, Server
from toolway.hub.servers import HubServers
from toolway.types import Authorizer, Era, Json
from toolway.upstream.process.spawner import Spawner
from toolway.upstream.transport import (
    Disconnect,
    ExchangeListener,
    InboundHandler,
    Request,
    RequestExchange,
    Transport,
    TransportInfo,
)
from toolway.upstream.transports import create_transport
from toolway.upstream.transports.stdio import StdioTransport

log = logging.getLogger("toolway.cluster")


class TransportRouter:
    """Selects the transport of each server by its owner node, and starts the servers we own.

    It is the ownership handler of the `Member` and the transport factory of the hub.
    """

    def __init__(self, tenant: str, context: RoutingContext, catalog: SharedCatalog) -> None:
        self._tenant = tenant
        self._context = context
        self._catalog = catalog
        self._member: Member | None = None
        self._hub_servers: HubServers | None = None
        self._servers: Mapping[str, Server] = {}  # as configured, not as the hub has them
        self._transports: dict[str, set[RoutedTransport]] = {}
        #: Servers that are objects in the process of each node, unless the configuration has a server of this name.
        self.in_process: frozenset[str] = frozenset()
        self.keeps_limits = False  # a server with its own limits is called only by its owner, which enforces them

    def attach(self, servers: HubServers) -> None:
        """Set the servers of the hub of this node, where owned servers are started."""
        self._hub_servers = servers

    def join(self, member: Member) -> None:
        """Set the `Member`, which decides which servers this node owns."""
        self._member = member

    def set_servers(self, servers: Mapping[str, Server]) -> None:
        """Set the configured servers of the tenant, and start those that this node already owns."""
        self._servers = servers
        if self._member is not None:
            for ownership in self._member.owned:
                self._start_owned(ownership)

    # -- transports for the hub ---------------------------------------------------------------------------------------

    def wrap_transport(self, name: str, caller_id: str, make: Callable[[], Transport]) -> Transport:
        """Return a routed transport to a server. It ends when the server's owner changes.

        The hub then opens the next one, with a new route.
        """
        return RoutedTransport(name, caller_id, make, self)

    def create_transport(
        self, name: str, server: Server, spawner: Spawner, environ: Mapping[str, str], authorizer: Authorizer | None
    ) -> Transport:
        """Return the transport to the server itself, process or URL.

        If this node no longer owns the server, nothing is sent to its process.
        """
        transport = create_transport(server, spawner, environ, authorizer)
        if server.command is not None:
            assert isinstance(transport, StdioTransport)
            transport.is_owned = partial(self.owns, name)
        return transport

    def select(self, server: str, caller_id: str, make: Callable[[], Transport]) -> Transport:
        """Return the transport that a server needs now: to the server itself, or to the node that owns the server."""
        if self._is_in_process(server):
            return make()
        ownership = self._ownership_of(server)
        if ownership is not None:
            return OwnedTransport(ownership, make(), partial(self._still_owns, ownership))
        if self.can_call_from_any_node(server):
            return DirectTransport(server, make(), self._catalog)
        return RemoteTransport(server, self.instances_of(server), self._context, caller_id)

    def register(self, transport: RoutedTransport) -> None:
        """Register an open transport, so it ends when the owner of its server changes."""
        self._transports.setdefault(transport.server, set()).add(transport)

    def unregister(self, transport: RoutedTransport) -> None:
        """Unregister a closed transport, so owner changes no longer affect it."""
        transports = self._transports.get(transport.server)
        if transports is not None:
            transports.discard(transport)
            if not transports:
                del self._transports[transport.server]

    # -- ownership ----------------------------------------------------------------------------------------------------

    def instances_of(self, server: str) -> list[ServerInstance]:
        """Return all configured instances of a server."""
        config = self._servers.get(server)
        return [
            ServerInstance(self._tenant, server, number)
            for number in range(config.instances if config is not None else 1)
        ]

    def owns(self, server: str) -> bool:
        """Return True if this node owns an instance of the server now."""
        return self._ownership_of(server) is not None

    def lists_itself(self, server: str) -> bool:
        """Return True if this node fetches tools and other lists from the server itself, not from the database."""
        return self.owns(server) or self._is_in_process(server)

    def fence_for(self, server: str) -> int | None:
        """Return the fence (ownership number) under which this node owns the server, or None."""
        ownership = self._ownership_of(server)
        return ownership.fence if ownership is not None else None

    def is_remote(self, server: str) -> bool:
        """Return True if calls to a server are forwarded to another node."""
        return not self.owns(server) and not self.can_call_from_any_node(server)

    def is_per_caller(self, server: str) -> bool:
        """Return True if a remote legacy server has one connection per caller at its owner node.

        Change notifications then reach only that caller.
        """
        summary = self._catalog.get_summary(server)
        return summary is not None and summary.era == "legacy" and self.is_remote(server)

    def has_owner(self, server: str) -> bool:
        """Return True if nodes need not share a server's failures.

        That is the case if one owner node calls it for all, or if each node runs its own in-process server, whose
        failures say nothing about other nodes.
        """
        return self._is_in_process(server) or not self.can_call_from_any_node(server)

    def can_call_from_any_node(self, server: str) -> bool:
        """Return True if every node may call a server directly, without its owner.

        That is the case if the server is known to be stateless, or if each node runs it in its own process.
        """
        if self._is_in_process(server):
            return True
        config = self._servers.get(server)
        settings = config.transport_settings if config is not None else None
        is_stateless = settings is not None and settings.is_stateless
        if config is None or not (is_stateless or config.transport == "http"):
            return False
        if self.keeps_limits and _has_limits(config):
            return False
        summary = self._catalog.get_summary(server)
        return is_stateless or (summary is not None and summary.era == "modern")

    def _is_in_process(self, server: str) -> bool:
        return server in self.in_process and server not in self._servers

    def _ownership_of(self, server: str) -> Ownership | None:
        if self._member is None:
            return None
        for instance in self.instances_of(server):
            fence = self._member.fence_of(instance)
            if fence is not None:
                return Ownership(instance, self._member.info.id, fence)
        return None

    def _still_owns(self, ownership: Ownership) -> bool:
        return self._member is not None and self._member.fence_of(ownership.instance) == ownership.fence

    def on_catalog_changed(self, server: str) -> None:
        """Reroute the transports of a server if a catalog update shows that it is stateless."""
        if self.can_call_from_any_node(server) and not self.owns(server):
            for transport in tuple(self._transports.get(server, ())):
                if isinstance(transport.selected, RemoteTransport):
                    transport.reroute()

    # -- OwnershipHandler ---------------------------------------------------------------------------------------------

    def on_acquired(self, ownership: Ownership) -> None:
        if ownership.instance.tenant == self._tenant:
            log.info("server %s is now owned by this node", ownership.instance.server)
            self._start_owned(ownership)

    def _start_owned(self, ownership: Ownership) -> None:
        name = ownership.instance.server
        server = self._servers.get(name)
        for transport in tuple(self._transports.get(name, ())):
            if transport.owned is None:
                transport.reroute()
        if (
            server is not None
            and self._hub_servers is not None
            and not (server.lazy and self._catalog.get_summary(name))
        ):
            self._hub_servers.ensure_started(name)

    async def drain(self, ownership: Ownership) -> None:
        transports = [
            transport.owned
            for transport in self._transports.get(ownership.instance.server, ())
            if transport.owned is not None
        ]
        await asyncio.gather(
            *(transport.drain() for transport in transports if _is_same_ownership(transport.ownership, ownership))
        )

    def on_lost(self, ownership: Ownership) -> None:
        log.info("server %s is no longer owned by this node", ownership.instance.server)
        for transport in tuple(self._transports.get(ownership.instance.server, ())):
            if transport.owned is not None and _is_same_ownership(transport.owned.ownership, ownership):
                transport.reroute()


def _has_limits(server: Server) -> bool:
    """Return True if the configuration limits the rate or the concurrency of calls to a server."""
    return (
        server.rate_limit is not None
        or server.limits.max_concurrent != Limits().max_concurrent
        or any(tool.rate_limit is not None for tool in server.tools.values())
    )


def _is_same_ownership(one: Ownership, other: Ownership) -> bool:
    return one.instance == other.instance and one.fence == other.fence


class RoutedTransport:
    """Transport of a server in a cluster: to the server itself or to its owner node.

    The route is selected when the transport opens. When the route changes, the transport ends and the next one opens at
    once.

    `make` creates the transport to the server itself. `caller_id` is set for a per-caller connection, otherwise "".
    """

    def __init__(self, server: str, caller_id: str, make: Callable[[], Transport], router: TransportRouter) -> None:
        self.server = server
        self._caller_id = caller_id
        self._make = make
        self._router = router
        self._selected: Transport | None = None
        self._rerouted = asyncio.Event()

    @property
    def selected(self) -> Transport:
        assert self._selected is not None, "the transport is not open"
        return self._selected

    @property
    def owned(self) -> OwnedTransport | None:
        """Transport to the server itself if this node owns the server, otherwise None."""
        return self._selected if isinstance(self._selected, OwnedTransport) else None

    async def open(self, inbound: InboundHandler) -> None:
        self._selected = selected = self._router.select(self.server, self._caller_id, self._make)
        self.request = selected.request  # type: ignore[method-assign]  # saves one hop on every call
        self._router.register(self)
        await selected.open(inbound)

    def reroute(self) -> None:
        """End this transport because its route changed; the hub then opens the next one."""
        if isinstance(self._selected, OwnedTransport | RemoteTransport):
            self._selected.stop()
        self._rerouted.set()

    async def request(self, request: Request) -> Json:
        return await self.selected.request(request)

    def start(self, request: Request, listener: ExchangeListener) -> RequestExchange | None:
        """Send a call at once, to the server or its owner node; return its exchange.

        None if the call would have to wait: then nothing was sent.
        """
        selected = self._selected
        if isinstance(selected, OwnedTransport | DirectTransport | RemoteTransport) and not self._rerouted.is_set():
            return selected.start(request, listener)
        return None

    async def wait(self, exchange: RequestExchange, request: Request) -> Json:
        selected = self.selected
        assert isinstance(selected, OwnedTransport | DirectTransport | RemoteTransport)  # `start` sent it
        return await selected.wait(exchange, request)

    def abandon(self, exchange: RequestExchange, request: Request) -> None:
        selected = self.selected
        assert isinstance(selected, OwnedTransport | DirectTransport | RemoteTransport)
        selected.abandon(exchange, request)

    async def notify(self, method: str, params: Json) -> None:
        await self.selected.notify(method, params)

    def set_protocol(self, era: Era, version: str) -> None:
        self.selected.set_protocol(era, version)

    def reset_session(self) -> None:
        self.selected.reset_session()

    async def wait_closed(self) -> Disconnect:
        rerouted = asyncio.create_task(self._rerouted.wait())
        lost = asyncio.create_task(self.selected.wait_closed())
        try:
            await asyncio.wait({rerouted, lost}, return_when=asyncio.FIRST_COMPLETED)
            if rerouted.done():
                return Disconnect("server has a new owner node", "E-MOVED", moved=True)
            return lost.result()
        finally:
            for task in (rerouted, lost):
                task.cancel()
            await asyncio.gather(rerouted, lost, return_exceptions=True)

    def info(self) -> TransportInfo:
        return self._selected.info() if self._selected is not None else TransportInfo()

    async def close(self) -> None:
        self._router.unregister(self)
        if self._selected is not None:
            await self._selected.close()
