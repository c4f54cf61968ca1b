"""This node, as its own links, errands and stores ask for it: what it owns, who else there is, and the ways there.

Before it has joined it owns nothing and knows nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from toolway.cluster.bus import Bus
from toolway.cluster.member import Member
from toolway.cluster.passes import Sealer
from toolway.cluster.record.lists import Lists
from toolway.cluster.record.nodes import Seen
from toolway.cluster.record.places import Place, Places
from toolway.gateway.replica.entry import credential
from toolway.gateway.replica.links.known import Knowledge
from toolway.gateway.replica.links.peers import Peers
from toolway.gateway.replica.over_nats.calls import NatsCalls
from toolway.gateway.replica.owners import Owners
from toolway.gateway.replica.shared.lists import SharedLists
from toolway.gateway.replica.switch import Switch
from toolway.hub import Hub
from toolway.upstream.link import Link


class ThisNode:
    """The `Around` of links and errands. `listed` hears of every list that was written to the record."""

    def __init__(
        self,
        id: str,
        tenant: str,
        sealer: Sealer,
        places: Places,
        lists: Lists,
        bus: Bus,
        nats_calls: NatsCalls,
        listed: Callable[[str], None],
    ) -> None:
        self.id = id
        self._tenant = tenant
        self.sealer = sealer
        self.member: Member | None = None
        self.owners = Owners(places)
        self.peers = Peers(bus, lambda to: credential(sealer, id, to), self._is_alive)
        self._bus = bus
        self._nats_calls = nats_calls
        self.lists = SharedLists(lists, tenant, self._fence, listed)
        self.knowledge: Knowledge = self.lists
        self.switch = Switch(tenant, self, self.lists)

    def serve(self, hub: Hub) -> None:
        self.lists.serve(hub)
        self.switch.serve(hub)

    def join(self, member: Member) -> None:
        self.member = member
        self.switch.join(member)

    async def close(self) -> None:
        await self.lists.close()
        await self.owners.close()
        await self.peers.close()

    # -- what links and errands ask -----------------------------------------------------------------------------------

    def owns(self, server: str) -> bool:
        return self.switch.owns(server)

    def node(self, id: str) -> Seen | None:
        if self.member is None:
            return None
        found = self.member.node(id)
        if found is None:
            self.member.look_soon()
        return found

    def _is_alive(self, id: str) -> bool:
        return self.member is not None and self.member.node(id) is not None

    def nodes_alive(self) -> Sequence[Seen]:
        return self.member.nodes if self.member is not None else ()

    def bus_link(self, seen: Seen, server: str) -> Link:
        return self._nats_calls.link(server, seen.card.id, seen.epoch)

    # -- how it stands ------------------------------------------------------------------------------------------------

    def epoch(self) -> int | None:
        return self.member.epoch if self.member is not None else None

    def who(self) -> tuple[str, int] | None:
        epoch = self.epoch()
        return (self.id, epoch) if epoch is not None else None

    def fence_of(self, tenant: str, server: str, instance: int) -> int | None:
        """Who comes for no server comes for this node, in its tenure."""
        if not server:
            return self.epoch() if tenant == self._tenant else None
        return self.member.holds(Place(tenant, server, instance)) if self.member is not None else None

    def _fence(self, server: str) -> int | None:
        return self.switch.fence(server)

    def gateways(self) -> int:
        return len(self.member.nodes) if self.member is not None else 1

    def leaves(self) -> bool:
        return self.member is not None and self.member.draining

    def gauges(self) -> Mapping[str, float]:
        """For `/metrics`."""
        return {
            "nodes": len(self.member.nodes) if self.member is not None else 0,
            "owned": len(self.member.held) if self.member is not None else 0,
            "lease": self.epoch() is not None,
            "nats": self._bus.connected,
        }

    def look_soon(self) -> None:
        if self.member is not None:
            self.member.look_soon()
