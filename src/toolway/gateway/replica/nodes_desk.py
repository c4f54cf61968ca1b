"""`/admin/nodes`: which gateways the cluster has, what each owns, and how one is emptied before it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Final, TypeVar
from urllib.parse import unquote

from toolway.cluster.record.counts import Counts
from toolway.cluster.record.nodes import Nodes, Seen
from toolway.cluster.tenure import TERMS
from toolway.errors import NotFound, Unavailable
from toolway.gateway.replica.options import ClusterOptions
from toolway.gateway.replica.troubles import record_silent
from toolway.model import Json

FRESH: Final = 1.0  # seconds for which the owners of servers are not asked for again
MOST: Final = 1000  # servers of one node in one answer
SILENT: Final = TERMS.ttl - 2 * TERMS.renew  # seconds left of a lease that should have been renewed by now

T = TypeVar("T")


class NodesDesk:
    """`tell` lets the other nodes look at the record at once, where they can be told."""

    def __init__(
        self,
        options: ClusterOptions,
        own: str,
        nodes: Nodes,
        counts: Counts,
        connected: Callable[[], bool],
        tell: Callable[[], Awaitable[object]],
        restart: Callable[[str], None] = lambda server: None,
    ) -> None:
        self._options = options
        self._own = own
        self._nodes = nodes
        self._counts = counts
        self._connected = connected
        self._tell = tell
        self.restart = restart
        self._owners: tuple[float, Mapping[str, Sequence[str]]] = (0.0, {})  # until when they are taken for right

    async def answer(self, method: str, parts: list[str], body: Json) -> Json | None:
        """None where there is no such thing. Raises `CallError`."""
        match method, parts:
            case "GET", ["nodes"]:
                return await self._all()
            case "GET", ["nodes", id_]:
                return await self._one(unquote(id_))
            case "POST", ["nodes", id_, "drain"]:
                return await self._drain(unquote(id_))
        return None

    async def owners(self) -> Mapping[str, Sequence[str]]:
        """Of the servers of the tenant. Asked for with every list of servers, which must not fail for want of it."""
        now = asyncio.get_running_loop().time()
        until, found = self._owners
        if now >= until:
            with suppress(Unavailable):
                found = await _answered(self._counts.owners(self._options.tenant))
            self._owners = (now + FRESH, found)
        return found

    async def _all(self) -> Json:
        seen = await _answered(self._nodes.alive())
        counted = await _answered(self._counts.counted())
        return {
            "cluster": self._options.cluster,
            "tenant": self._options.tenant,
            "node": self._own,
            "nats": self._connected(),
            "nodes": [{**_shown(each), "servers": counted.owned.get(each.card.id, 0)} for each in seen],
            "unowned": counted.free,
        }

    async def _one(self, named: str) -> Json:
        found = meant(named, await _answered(self._nodes.alive()))
        places = await _answered(self._counts.of_node(found.card.id, MOST))
        held = [{"tenant": each.tenant, "server": each.server, "instance": each.instance} for each in places]
        return {**_shown(found), "owns": held, "more": len(held) == MOST}

    async def _drain(self, named: str) -> Json:
        found = meant(named, await _answered(self._nodes.alive()))
        if not await _answered(self._nodes.drain(found.card.id)):
            raise _no_such(named, ())
        await self._tell()
        return {"draining": found.card.id}


def meant(named: str, nodes: Iterable[Seen]) -> Seen:
    """The node of this id, or the only one of this name. Raises `NotFound`."""
    known = {each.card.id: each for each in nodes}
    if named in known:
        return known[named]
    called = [id_ for id_ in known if id_.rpartition("-")[0] == named]
    if len(called) == 1:
        return known[called[0]]
    raise _no_such(named, called or get_close_matches(named, known, n=3, cutoff=0.5), several=bool(called))


def _no_such(named: str, close: Sequence[str], *, several: bool = False) -> NotFound:
    what = f"several nodes are called {named!r}" if several else f"there is no node {named!r}"
    fix = f"did you mean {' or '.join(close[:3])}?" if close else "see them all: toolway nodes"
    return NotFound(what, evidence="no node with a lease has this id" if not several else ", ".join(close[:9]), fix=fix)


def _shown(seen: Seen) -> Json:
    card = seen.card
    return {
        "id": card.id,
        "address": card.address,
        "version": card.version,
        "capacity": card.capacity,
        "labels": list(card.labels),
        "state": "silent" if seen.left < SILENT else "draining" if seen.draining else "ready",
        "draining": seen.draining,
        "lease": round(seen.left, 1),
        "seen": round(max(0.0, TERMS.ttl - seen.left), 1),  # seconds ago it has renewed it
    }


async def _answered(question: Awaitable[T]) -> T:
    """The record's answer; `record/engine.py` sees to it that there is one in bounded time. Raises `Unavailable`."""
    try:
        return await question
    except Exception as exc:  # of whichever driver: the person who asked wants to know that, and why
        raise record_silent(exc) from None
