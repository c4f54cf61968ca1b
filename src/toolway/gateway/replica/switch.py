"""Where each server is: here, or at whom. Makes the links of the hub accordingly, and moves them when that changes.

This is the cluster's hand on the hub: the member (`cluster/member.py`) says what this node owns, and here servers are
started, handed over and let go of.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from toolway.cluster.member import Member
from toolway.cluster.record.places import Held, Place
from toolway.config.spec import Server
from toolway.gateway.replica.links.direct import DirectLink
from toolway.gateway.replica.links.known import Knowledge
from toolway.gateway.replica.links.link import ReplicaLink
from toolway.gateway.replica.links.local import LocalLink
from toolway.gateway.replica.links.remote import Around, RemoteLink
from toolway.hub import Hub
from toolway.model import Authorizer
from toolway.upstream.link import Link
from toolway.upstream.process.spawn import Spawner
from toolway.upstream.transports import link_for

log = logging.getLogger("toolway.cluster")


class Switch:
    """An `Owner` for the member, and the maker of links for the world of a hub."""

    def __init__(self, tenant: str, around: Around, knowledge: Knowledge) -> None:
        self._tenant = tenant
        self._around = around
        self._knowledge = knowledge
        self._member: Member | None = None
        self._hub: Hub | None = None
        self._servers: Mapping[str, Server] = {}  # as they were written, not as the hub has them
        self._links: dict[str, set[ReplicaLink]] = {}

    def serve(self, hub: Hub) -> None:
        self._hub = hub

    def join(self, member: Member) -> None:
        self._member = member

    def know(self, servers: Mapping[str, Server]) -> None:
        """These are the servers of the tenant now; those that we own already are started."""
        self._servers = servers
        if self._member is not None:
            for held in self._member.held:
                self._start(held)

    # -- for the world of the hub -------------------------------------------------------------------------------------

    def wrap_link(self, name: str, caller: str, make: Callable[[], Link]) -> Link:
        return ReplicaLink(name, caller, make, self)

    def make_link(
        self, name: str, server: Server, spawner: Spawner, environ: Mapping[str, str], authorizer: Authorizer | None
    ) -> Link:
        """The server's own link, which sends nothing to a process that is not ours any more."""
        link = link_for(server, spawner, environ, authorizer)
        if server.command is not None:
            from toolway.upstream.transports.stdio.link import StdioLink

            assert isinstance(link, StdioLink)
            link.may_send = partial(self.owns, name)
        return link

    def choose(self, server: str, caller: str, make: Callable[[], Link]) -> Link:
        held = self._held(server)
        if held is not None:
            return LocalLink(held, make(), partial(self._holds, held))
        if self.may_be_called_by_all(server):
            return DirectLink(server, make(), self._knowledge)
        return RemoteLink(server, self.places(server), self._around, caller)

    def opened(self, link: ReplicaLink) -> None:
        self._links.setdefault(link.server, set()).add(link)

    def closed(self, link: ReplicaLink) -> None:
        mine = self._links.get(link.server)
        if mine is not None:
            mine.discard(link)
            if not mine:
                del self._links[link.server]

    # -- who owns what ------------------------------------------------------------------------------------------------

    def places(self, server: str) -> list[Place]:
        known = self._servers.get(server)
        return [Place(self._tenant, server, number) for number in range(known.instances if known is not None else 1)]

    def owns(self, server: str) -> bool:
        return self._held(server) is not None

    def fence(self, server: str) -> int | None:
        held = self._held(server)
        return held.fence if held is not None else None

    def elsewhere(self, server: str) -> bool:
        """Whether calls of a server are made at another node."""
        return not self.owns(server) and not self.may_be_called_by_all(server)

    def divides(self, server: str) -> bool:
        """Whether a server that is called at another node has a link for each caller there, and tells each his own."""
        about = self._knowledge.about(server)
        return about is not None and about.era == "handshake" and self.elsewhere(server)

    def has_owner(self, server: str) -> bool:
        """Whether a server is called by one node alone."""
        return not self.may_be_called_by_all(server)

    def may_be_called_by_all(self, server: str) -> bool:
        """Whether a server keeps nothing between two calls, as far as is known."""
        known = self._servers.get(server)
        if known is None or known.transport not in ("http", "openapi"):
            return False
        about = self._knowledge.about(server)
        return known.transport == "openapi" or (about is not None and about.era == "modern")

    def _held(self, server: str) -> Held | None:
        if self._member is None:
            return None
        for place in self.places(server):
            fence = self._member.holds(place)
            if fence is not None:
                return Held(place, self._member.card.id, fence)
        return None

    def _holds(self, held: Held) -> bool:
        return self._member is not None and self._member.holds(held.place) == held.fence

    def found_out(self, server: str) -> None:
        """Its owner has told something about it: perhaps everybody may call it."""
        if self.may_be_called_by_all(server) and not self.owns(server):
            for link in tuple(self._links.get(server, ())):
                if isinstance(link.chosen, RemoteLink):
                    link.move()

    # -- as the owner of places ---------------------------------------------------------------------------------------

    def begin(self, held: Held) -> None:
        if held.place.tenant == self._tenant:
            log.info("this node owns %s now", held.place.server)
            self._start(held)

    def _start(self, held: Held) -> None:
        name = held.place.server
        server = self._servers.get(name)
        for link in tuple(self._links.get(name, ())):
            if link.local is None:
                link.move()
        if server is not None and self._hub is not None and not (server.lazy and self._knowledge.about(name)):
            self._hub.wake(name)

    async def finish(self, held: Held) -> None:
        links = [link.local for link in self._links.get(held.place.server, ()) if link.local is not None]
        await asyncio.gather(*(link.finish() for link in links if _same(link.held, held)))

    def end(self, held: Held) -> None:
        log.info("this node does not own %s any more", held.place.server)
        for link in tuple(self._links.get(held.place.server, ())):
            if link.local is not None and _same(link.local.held, held):
                link.move()


def _same(one: Held, other: Held) -> bool:
    return one.place == other.place and one.fence == other.fence
