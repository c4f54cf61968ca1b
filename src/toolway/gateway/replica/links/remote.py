"""The link of a server that another node owns: to us, its owner is one more modern server.

Rule 1. Who the owner is is looked up when something is to be sent. While there is none, or it cannot be reached and
        nothing has left, the request waits for the next owner, for at most OWNER_WAIT seconds; nothing was executed.
Rule 2. A request that may have reached its owner is never sent to another: what became of it is unknown, and whoever
        may repeat it decides that above.
Rule 3. What the owner has judged is passed on as it judged it.
Rule 4. A call that has waited for its owner until its time is nearly over is not sent any more: whatever the owner said
        of it would come too late, and nobody would know what became of it.
Rule 5. A call that another node brought is not passed on: its sender looks for the owner again. So no call goes round
        in circles, and none waits for itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, Protocol

import msgspec

from toolway.cluster.passes import Sealer
from toolway.cluster.record.nodes import Seen
from toolway.cluster.record.places import Held, Place
from toolway.gateway.replica.links.judged import NOT_THERE, judged, was_not_here
from toolway.gateway.replica.links.known import Knowledge, answer, is_known
from toolway.gateway.replica.links.local import moved
from toolway.gateway.replica.links.peers import Peer, Peers, Silent
from toolway.gateway.replica.links.to_owner import ToOwner
from toolway.gateway.replica.links.told import HEADSTART, LATE_SHARE, NOTHING, SHARE, Told, with_pass
from toolway.gateway.replica.owners import Owners
from toolway.model import Certainty, Json
from toolway.upstream.link import NOT_HERE, Fault, Inbound, Link, LinkFacts, Request, RpcError
from toolway.upstream.transports.http.link import HttpLink

OWNER_WAIT: Final = 15.0  # seconds: a lease that ends moves its servers within 12
ROADS: Final = 16  # nodes that the way to is kept open: those that owned the server last
PAUSE: Final = 0.1  # seconds between two looks for an owner
_NOT_BEGUN: Final = frozenset({401, 403, 404, 421, 503})  # the node did not let us in, does not know it, or ends
log = logging.getLogger("toolway.cluster")


class Around(Protocol):
    """What such a link needs of its node."""

    @property
    def id(self) -> str: ...

    @property
    def owners(self) -> Owners: ...

    @property
    def peers(self) -> Peers: ...

    @property
    def sealer(self) -> Sealer: ...

    @property
    def knowledge(self) -> Knowledge: ...

    def owns(self, server: str) -> bool:
        """Whether an instance of it is ours."""
        ...

    def node(self, id: str) -> Seen | None:
        """A node that has a lease, as far as we know; where we do not, we look again soon."""
        ...

    def bus_link(self, seen: Seen, server: str) -> Link:
        """The way to a node that has no address."""
        ...


class RemoteLink(ToOwner):
    """`places` are the instances of the server. `caller` is for whom we listen, where it is one caller's own link."""

    def __init__(self, server: str, places: Sequence[Place], around: Around, caller: str = "") -> None:
        self._server = server
        self._ours = msgspec.structs.replace(NOTHING, caller=caller)  # of what is no call
        self._places = places
        self._around = around
        self._roads: dict[object, Link] = {}  # by the peer, or by node and epoch where there is none
        self._opening = asyncio.Lock()
        self._next = 0
        self._ended = False

    async def open(self, inbound: Inbound) -> None:
        self._inbound = inbound

    async def request(self, request: Request) -> Json:
        told: Told | None = request.attempt.told
        if told is None and is_known(request):
            return await self._from_record(request)
        if told is not None and told.forwarded:
            raise Fault(f"{self._server} is not here", Certainty.C0, code=NOT_HERE)
        loop = asyncio.get_running_loop()
        limit = loop.time() + OWNER_WAIT
        place = self._chosen(told or self._ours)
        latest = told.deadline - HEADSTART if told is not None and told.deadline else math.inf
        waited = False
        while True:
            why: str
            held = self._around.owners.known(place) or await self._around.owners.ask(place)
            seen = self._around.node(held.node) if held is not None else None
            if self._ended or self._around.owns(self._server):
                raise moved(self._server)  # it is ours now
            if held is not None and held.node == self._around.id:
                self._around.owners.forget(held)  # it was ours
                why = "it is handed over"
            elif held is None or seen is None:
                why = "no node owns it now"
                if held is not None:
                    self._around.owners.forget(held)  # its node is gone, and who has it now may not have told us
            elif waited and loop.time() > latest:
                why = "its time is nearly over"
            else:
                try:
                    return await self._send(held, seen, request, LATE_SHARE if waited else SHARE)
                except _NotThere as exc:
                    why = exc.why
                    self._around.owners.forget(held)
            if loop.time() >= limit:
                raise Fault(f"{self._server}: {why}", Certainty.C0, code="E-NO-OWNER", retry_after=1.0)
            waited = True
            request.attempt.phase = "start"
            log.debug("%s waits for %s: %s", request.method, self._server, why)
            await asyncio.sleep(PAUSE)

    async def _from_record(self, request: Request) -> Json:
        """What its owner has told of it, or will when it has started it. The owner itself is not asked: what it says
        while it starts is not all, and would stay."""
        loop = asyncio.get_running_loop()
        limit = loop.time() + OWNER_WAIT
        while (known := answer(self._around.knowledge, self._server, request)) is None:
            if self._ended:
                raise moved(self._server)
            if loop.time() >= limit:
                raise Fault(f"the owner of {self._server} has not started it yet", Certainty.C0, code="E-NO-OWNER")
            await asyncio.sleep(PAUSE)
        return known

    def end(self) -> None:
        """Nothing more is sent this way."""
        self._ended = True

    def _chosen(self, told: Told) -> Place:
        """One instance for each caller, who may have left something there; what nobody owns goes around."""
        if len(self._places) == 1:
            return self._places[0]
        if told.caller:
            number = int.from_bytes(blake2b(told.caller.encode(), digest_size=4).digest(), "big")
        else:
            self._next = number = self._next + 1
        return self._places[number % len(self._places)]

    async def _send(self, held: Held, seen: Seen, request: Request, share: int) -> Json:
        """Raises `_NotThere` where the owner has not begun with it, and will not."""
        attempt = request.attempt
        around = self._around
        params = with_pass(request.params, attempt.told or self._ours, held, around.sealer, around.id, share)
        sent = msgspec.structs.replace(request, params=params)
        try:
            if not seen.card.address:
                key = (held.node, seen.epoch)
                road = self._roads.get(key) or await self._opened(key, around.bus_link(seen, self._server))
                return await road.request(sent)
            peer = around.peers.of(held.node, seen.card.address)
            if why := peer.away:
                raise _NotThere(why)
            road = self._roads.get(peer) or await self._opened(peer, self._to(peer))
            return await peer.watched(road.request(sent))
        except Silent:
            raise _lost(attempt.certainty, "its owner fell silent") from None
        except Fault as exc:
            if exc.certainty is Certainty.C0 or exc.status in _NOT_BEGUN:
                attempt.certainty = Certainty.C0
                raise _NotThere(f"its owner cannot be reached: {exc.reason}") from None
            if exc.certainty is Certainty.C2 and exc.status is None:
                raise _lost(Certainty.C2, f"its owner was lost: {exc.reason}") from None
            raise
        except RpcError as exc:
            if exc.code in NOT_THERE or was_not_here(exc):
                attempt.certainty = Certainty.C0
                raise _NotThere(exc.message) from None
            error = judged(exc, self._server, str(request.params.get("name", "")))
            if error is None:
                raise
            attempt.certainty = error.certainty or Certainty.C0
            raise Fault(exc.message, attempt.certainty, error=error) from None

    async def _opened(self, key: object, road: Link) -> Link:
        """The way to a node, which lasts as long as we do."""
        async with self._opening:
            found = self._roads.get(key)
            if found is None:
                await road.open(self._inbound)
                road.adopt("modern", "")
                found = self._roads[key] = road
                if len(self._roads) > ROADS:
                    await self._roads.pop(next(iter(self._roads))).close()
        return found

    def _to(self, peer: Peer) -> Link:
        return HttpLink(peer.server(self._server), client=peer.client)

    def facts(self) -> LinkFacts:
        return LinkFacts(modern=True)

    async def close(self) -> None:
        roads, self._roads = self._roads, {}
        await asyncio.gather(*(road.close() for road in roads.values()), return_exceptions=True)


class _NotThere(Exception):
    """Nothing was executed; the next owner takes it."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def _lost(certainty: Certainty, why: str) -> Exception:
    if certainty is Certainty.C0:
        return _NotThere(why)
    return Fault(why, Certainty.C2, code="E-OWNER-LOST", fix="check whether it happened before it is repeated")
