"""What this node's transports and stores need: owned servers, other nodes, connections to them.

Before it has joined, a node owns nothing and knows no other node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from toolway.cluster.bus import Bus
from toolway.cluster.db.catalog import ListStore
from toolway.cluster.db.instances import InstanceStore, ServerInstance
from toolway.cluster.db.nodes import NodeStatus
from toolway.cluster.member import Member
from toolway.cluster.nats_rpc.rpc_client import NatsRpc
from toolway.cluster.node_auth import CallTokenSealer, NodeProofs, issue_node_credential
from toolway.cluster.replication.catalog import SharedCatalog
from toolway.cluster.routing.peers import OwnerCache, Peers
from toolway.cluster.routing.router import TransportRouter
from toolway.hub.core import HubCore
from toolway.upstream.transport import Transport


class NodeContext:
    """Services of this node for its transports and for requests to other nodes.

    `on_list_saved` is called after each list (tools, prompts …) that was saved to the database.
    """

    def __init__(
        self,
        id: str,
        tenant: str,
        sealer: CallTokenSealer,
        instances: InstanceStore,
        lists: ListStore,
        bus: Bus,
        nats_rpc: NatsRpc,
        on_list_saved: Callable[[str], None],
    ) -> None:
        self.id = id
        self._tenant = tenant
        self.sealer = sealer
        self.member: Member | None = None
        self.owner_cache = OwnerCache(instances)
        self.proofs = NodeProofs(id, sealer, self.identity, self._address)
        self.peers = Peers(bus, lambda to: issue_node_credential(sealer, id, to), self._epoch_of, self.proofs)
        self._bus = bus
        self._nats_rpc = nats_rpc
        self.shared_catalog = SharedCatalog(lists, tenant, self._fence_for, on_list_saved)
        self.router = TransportRouter(tenant, self, self.shared_catalog)

    def attach(self, hub: HubCore) -> None:
        """Connect this node's hub to the shared catalog and the transport router."""
        self.shared_catalog.attach(hub)
        self.router.attach(hub.servers)

    def join(self, member: Member) -> None:
        """Set the `Member`, which keeps this node's lease and claims servers."""
        self.member = member
        self.router.join(member)

    async def close(self) -> None:
        await self.shared_catalog.close()
        await self.owner_cache.close()
        await self.peers.close()

    # -- for transports and node requests -----------------------------------------------------------------------------

    def owns(self, server: str) -> bool:
        return self.router.owns(server)

    def get_node(self, id: str) -> NodeStatus | None:
        """Return the status of a live node; if unknown, return None and poll the database soon."""
        if self.member is None:
            return None
        found = self.member.get_node(id)
        if found is None:
            self.member.wake()
        return found

    def _epoch_of(self, id: str) -> int | None:
        """Return the number (epoch) of another node's lease, or None if it has none."""
        node = self.member.get_node(id) if self.member is not None else None
        return node.epoch if node is not None else None

    def _address(self) -> str:
        return self.member.info.address if self.member is not None else ""

    def live_nodes(self) -> Sequence[NodeStatus]:
        return self.member.nodes if self.member is not None else ()

    def nats_transport(self, node: NodeStatus) -> Transport:
        """Return a transport over NATS to another node."""
        return self._nats_rpc.create_transport(node.info.id, node.epoch)

    # -- state of this node -------------------------------------------------------------------------------------------

    def epoch(self) -> int | None:
        return self.member.epoch if self.member is not None else None

    def identity(self) -> tuple[str, int] | None:
        """Return the id of this node and the number (epoch) of its lease, or None without a lease."""
        epoch = self.epoch()
        return (self.id, epoch) if epoch is not None else None

    def fence_of(self, tenant: str, server: str, index: int) -> int | None:
        """Return the fence (ownership number) under which this node owns a server instance, or None.

        An empty server name means this node itself: its fence is the epoch of its lease.
        """
        if not server:
            return self.epoch() if tenant == self._tenant else None
        return self.member.fence_of(ServerInstance(tenant, server, index)) if self.member is not None else None

    def _fence_for(self, server: str) -> int | None:
        return self.router.fence_for(server)

    def node_count(self) -> int:
        return len(self.member.nodes) if self.member is not None else 1

    def is_draining(self) -> bool:
        return self.member is not None and self.member.is_draining

    def gauges(self) -> Mapping[str, float]:
        """Return this node's cluster metrics for `/metrics`: nodes, owned servers, lease, NATS."""
        return {
            "nodes": len(self.member.nodes) if self.member is not None else 0,
            "owned": len(self.member.owned) if self.member is not None else 0,
            "lease": self.epoch() is not None,
            "nats": self._bus.is_connected,
        }

    def wake(self) -> None:
        """Make this node poll the database soon, instead of at the next interval."""
        if self.member is not None:
            self.member.wake()
