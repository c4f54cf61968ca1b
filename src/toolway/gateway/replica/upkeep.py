"""What others changed is taken here, and what changed here is told to them: each kind of news, and what it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from toolway.cluster.record.places import Held, Place
from toolway.cluster.record.record_shelf import RecordTokens
from toolway.config.formats import Loaded
from toolway.gateway.replica.shared.breakers import Breakers
from toolway.gateway.replica.shared.news import Following
from toolway.gateway.replica.shared.registry_source import Configuration
from toolway.gateway.replica.this_node import ThisNode
from toolway.hub import Hub
from toolway.model import Json

TOLD: Final = 200  # places of those that were taken at once

TakeConfig = Callable[[Loaded], Awaitable[None]]


class Upkeep:
    """Of one hub. `take` takes another configuration, which is said to be that of `file`."""

    def __init__(
        self,
        node: ThisNode,
        configuration: Configuration,
        tokens: RecordTokens,
        hub: Hub,
        file: str,
        take: TakeConfig,
    ) -> None:
        self._node = node
        self._configuration = configuration
        self._tokens = tokens
        self._hub = hub
        self._file = file
        self._take = take

    def follow(self, following: Following) -> None:
        """Before it begins."""
        following.on("registry", self._registry_changed)
        following.on("lists", self._lists_changed)
        following.on("logins", self._logins_changed)
        following.on_news("places", self._places_moved)
        following.on_news("restart", self._restart_asked)
        Breakers(self._hub.board, lambda: self._hub.servers, self._node.switch.has_owner).follow(following)

    async def _registry_changed(self, since: int) -> None:
        found = await self._configuration.reload(self._file)
        if found is not None:
            await self._take(found)

    async def _lists_changed(self, since: int) -> None:
        for server in await self._node.lists.look(since):
            self._node.switch.found_out(server)

    async def _logins_changed(self, since: int) -> None:
        await self._tokens.look()

    def _places_moved(self, body: Json) -> None:
        took = body.get("took")
        if isinstance(took, list):
            self._node.owners.hear(Held(Place(t, s, i), node, fence) for t, s, i, node, fence in took)
        if not took:
            self._node.look_soon()  # somebody came, or let go of something

    def _restart_asked(self, body: Json) -> None:
        """At another node somebody asked for a restart of what may be ours."""
        server = body.get("server")
        if isinstance(server, str) and self._node.owns(server):
            self._hub.restart(server)


def tell_moved(following: Following, took: Sequence[Held], lost: Sequence[Held]) -> None:
    """What we own now, for those who look for its owner; and what others may take. Of many that are taken at once some
    are told: else every node would hear of every server, and who is not told asks the record when it is called."""
    told = [[each.place.tenant, each.place.server, each.place.instance, each.node, each.fence] for each in took[:TOLD]]
    following.say("places", {"took": told})
