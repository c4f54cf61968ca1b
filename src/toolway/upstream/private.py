"""Links of one caller alone, to servers whose era knows nothing of callers.

A server of the handshake era learns once, at the start, who it talks to, and may ask that one in mid-call. So each
authorization context has a link of its own to it: started when it is needed, stopped when it is not, and bounded in
number. The lists come from the server's first upstream, which everybody shares.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from msgspec.structs import replace as retold

from toolway.config.spec import Server
from toolway.errors import Certainty, Overloaded
from toolway.events import CatalogChanged, Event, Kind, Logged, ResourceUpdated
from toolway.model import Asks, Era
from toolway.upstream.gate import StartGate
from toolway.upstream.link import Link
from toolway.upstream.surroundings import Surroundings
from toolway.upstream.upstream import Upstream

MOST: Final = 500  # of one hub
IDLE: Final = 300.0  # seconds without a call after which one is stopped


class Aside:
    """The hub as an upstream sees it that does not speak for its server: it may open links and ask, and has nothing to
    tell but to its caller."""

    def __init__(self, around: Surroundings, caller: str = "") -> None:
        self._around = around
        self._caller = caller

    def open_link(self, name: str, server: Server, caller: str = "") -> Link:
        return self._around.open_link(name, server, caller or self._caller)

    def emit(self, fact: Event) -> None:
        """What happens to such a link concerns nobody else; what the server says there may concern its caller."""
        if self._caller and isinstance(fact, ResourceUpdated | Logged):
            self._around.emit(retold(fact, caller=self._caller))

    def on_list(
        self, server: str, kind: Kind, items: list[Any], problems: list[str], era: Era
    ) -> CatalogChanged | None:
        """The lists are those of the link that everybody shares; where that has none, for want of a login, those of
        whoever has one are better than nothing."""
        if not self._caller or not self._around.lacks_list(server, kind):
            return None
        return self._around.on_list(server, kind, items, problems, era)

    def lacks_list(self, server: str, kind: Kind) -> bool:
        return False

    @property
    def asks(self) -> Asks:
        return self._around.asks

    @property
    def gate(self) -> StartGate:
        return self._around.gate

    @property
    def dice(self) -> Callable[[], float]:
        return self._around.dice


class PrivateUpstreams:
    def __init__(self, around: Surroundings, most: int = MOST) -> None:
        self._around = around
        self._most = most
        self._all: OrderedDict[tuple[str, str], Upstream] = OrderedDict()  # the longest unused first
        self._stopping: set[asyncio.Task[None]] = set()

    def of(self, name: str, server: Server, caller: str) -> Upstream:
        """The caller's own upstream. Raises `Overloaded` where there are too many."""
        key = (name, caller)
        found = self._all.get(key)
        if found is None:
            self._make_room(name)
            idle = min(server.idle_stop or IDLE, IDLE)
            own = replace(server, lazy=True, idle_stop=idle)
            found = self._all[key] = Upstream(name, own, Aside(self._around, caller))
            found.start()
        self._all.move_to_end(key)
        return found

    def get(self, name: str, caller: str) -> Upstream | None:
        """The caller's own upstream, if there is one."""
        return self._all.get((name, caller))

    def _make_room(self, name: str) -> None:
        if len(self._all) < self._most:
            return
        unused = next((key for key, upstream in self._all.items() if upstream.unused), None)
        if unused is None:
            raise Overloaded(
                f"too many callers use links of their own to {name}",
                server=name,
                certainty=Certainty.C0,
                evidence=f"{self._most} are in use",
                fix='set "shared": true for a server that may serve all callers over one link',
            )
        self._stop(self._all.pop(unused))

    def _stop(self, upstream: Upstream) -> None:
        task = asyncio.get_running_loop().create_task(upstream.stop())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    def take(self, name: str | None = None) -> list[Upstream]:
        """Those of one server, or all, which are then somebody else's to stop."""
        chosen = [key for key in self._all if name in (None, key[0])]
        return [self._all.pop(key) for key in chosen]

    async def wait_stopped(self) -> None:
        await asyncio.gather(*self._stopping, return_exceptions=True)
