"""What one node does for another: bring what a client brought to the wrong gateway to where it belongs.

It goes the way that calls go, over HTTP or NATS, with a pass (`cluster/passes.py`) for the node itself: in its tenure,
and in the name of the principal whose session it is. Nothing is brought twice, and what cannot be brought is not kept:
its client is told, or hears nothing more, as after any connection that was lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from toolway.cluster.passes import Inspector, Pass, Sealer, issue
from toolway.cluster.record.nodes import Seen
from toolway.gateway.app import ERRANDS
from toolway.gateway.codes import DENIED, PASS_KEY
from toolway.gateway.failures import Failure
from toolway.gateway.replica.links.peers import Peers, Silent
from toolway.gateway.visit import meta_of
from toolway.model import Attempt, Json
from toolway.upstream.link import Fault, Link, Request, RpcError
from toolway.upstream.transports.http.link import HttpLink

METHOD: Final = "toolway/errand"
SHORT: Final = 5.0  # seconds for an errand that has no reason to take long

Hear = Callable[[Json], None]
log = logging.getLogger("toolway.cluster")


class Around(Protocol):
    """What an errand needs of its node."""

    @property
    def id(self) -> str: ...

    @property
    def peers(self) -> Peers: ...

    @property
    def sealer(self) -> Sealer: ...

    def nodes_alive(self) -> Sequence[Seen]: ...

    def bus_link(self, seen: Seen, server: str) -> Link: ...


def tag_of(node: str) -> str:
    """What clients see of a node: the part of its id that is random."""
    return node.rpartition("-")[2]


class Errands:
    def __init__(self, around: Around, tenant: str) -> None:
        self._around = around
        self._tenant = tenant

    async def send(
        self, tag: str, principal: str, errand: Json, hear: Hear | None = None, within: float | None = SHORT
    ) -> Json | None:
        """What the node of this tag answers; None where it is not there, or takes nothing from us. `hear` is given what
        it says meanwhile."""
        seen = next((seen for seen in self._around.nodes_alive() if tag_of(seen.card.id) == tag), None)
        if seen is None:
            return None
        try:
            async with asyncio.timeout(within):
                return await self._send(seen, {**errand, "_meta": {PASS_KEY: self._pass(seen, principal)}}, hear)
        except (Fault, RpcError, Silent, TimeoutError) as exc:
            log.debug("%s took no errand: %s", seen.card.id, exc)
            return None

    def _pass(self, seen: Seen, principal: str) -> str:
        to, sender = seen.card.id, self._around.id
        return issue(self._around.sealer, Pass(to, self._tenant, "", 0, seen.epoch, principal, "", "", sender=sender))

    async def _send(self, seen: Seen, params: Json, hear: Hear | None) -> Json:
        address, around = seen.card.address, self._around
        request = Request(METHOD, params)
        if not address:
            return await _through(around.bus_link(seen, ""), request, hear)
        peer = around.peers.of(seen.card.id, address)
        link = HttpLink(replace(peer.server(""), url=f"{address}{ERRANDS}"), client=peer.client)
        return await peer.watched(_through(link, request, hear))


async def _through(link: Link, request: Request, hear: Hear | None) -> Json:
    await link.open(_Inbound(hear))
    link.adopt("modern", "")
    try:
        return await link.request(request)
    finally:
        await link.close()


class _Inbound:
    def __init__(self, hear: Hear | None) -> None:
        self._hear = hear

    def on_notification(self, method: str, params: Json, about: Attempt | None = None) -> None:
        if self._hear is not None and method == METHOD:
            self._hear(params)

    async def on_request(self, method: str, params: Json, about: Attempt | None = None) -> Json | None:
        return None


def whose(inspector: Inspector, params: Json) -> str:
    """The principal for whom another node comes. Raises `Failure`."""
    text: Any = meta_of(params).get(PASS_KEY)
    found = inspector.take(text) if isinstance(text, str) else "forged"
    if not isinstance(found, Pass) or found.server:
        why = found if isinstance(found, str) else "elsewhere"
        raise Failure(DENIED, f"this errand is not for us: {why}", {"executed": "no"})
    return found.principal
