"""A gateway that is one of several: other nodes are let in, sessions are those of all, and people see the nodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.boot_clock import boot_time
from toolway.cluster.passes import Inspector
from toolway.cluster.record.counts import Counts
from toolway.cluster.record.nodes import Nodes
from toolway.cluster.record.sessions import Sessions
from toolway.gateway.gateway import Gateway
from toolway.gateway.handshake import Handshake
from toolway.gateway.relay import Result
from toolway.gateway.replica.entry import Entry, NodeDoor
from toolway.gateway.replica.nodes_desk import NodesDesk
from toolway.gateway.replica.options import ClusterOptions
from toolway.gateway.replica.sessions.errands import METHOD as ERRAND
from toolway.gateway.replica.sessions.errands import Errands
from toolway.gateway.replica.sessions.sessions import SharedSessions
from toolway.gateway.replica.shared.news import Following
from toolway.gateway.replica.this_node import ThisNode
from toolway.gateway.sse import Sse
from toolway.gateway.visit import Tell
from toolway.protocol.wire import Message


class Reception:
    """`connected` says whether news reach us at the moment."""

    def __init__(
        self,
        gateway: Gateway,
        node: ThisNode,
        options: ClusterOptions,
        engine: AsyncEngine,
        following: Following,
        connected: Callable[[], bool],
    ) -> None:
        self._node = node
        self._options = options
        self._engine = engine
        self._following = following
        self._connected = connected
        self._brought = gateway.brought
        inspector = Inspector(node.id, node.sealer, node.fence_of, boot_time)
        entry = Entry(inspector, gateway.app.view_of_server)
        gateway.let_nodes_in(NodeDoor(node.id, node.sealer).who, entry.take, node.switch.elsewhere)
        self.sessions = self._shared_sessions(gateway, inspector)
        gateway.admin.cluster = self._desk()
        gateway.app.leaving = node.leaves
        if gateway.app.metrics is not None:
            gateway.app.metrics.cluster = node.gauges

    def answer(self, server: str, message: Message, tell: Tell) -> Awaitable[Result]:
        """What another node brings over NATS."""
        if message.method == ERRAND:
            return self.sessions.take(message.body, tell)
        return self._brought(server, message, tell)

    def _shared_sessions(self, gateway: Gateway, inspector: Inspector) -> SharedSessions:
        tenant = self._options.tenant
        errands = Errands(self._node, tenant)

        def made(handshake: Handshake, sse: Sse) -> SharedSessions:
            around = (Sessions(self._engine), errands, inspector, self._following, self._connected)
            return SharedSessions(self._node.id, tenant, *around, handshake, sse)

        return gateway.share_sessions(made)

    def _desk(self) -> NodesDesk:
        async def tell() -> None:
            self._following.say("places", {})
            self._node.look_soon()  # it may be ourselves that are meant

        def restart(server: str) -> None:
            self._following.say("restart", {"server": server})

        nodes, counts = Nodes(self._engine), Counts(self._engine)
        return NodesDesk(self._options, self._node.id, nodes, counts, self._connected, tell, restart)
