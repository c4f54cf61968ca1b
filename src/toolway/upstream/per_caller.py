"""Per-caller connections, for servers that cannot distinguish callers.

A legacy server learns who its client is once, in `initialize`, and may send requests to that client during a call. So
each authorization context has a separate connection to the server. These connections are started on demand, stopped
when idle, and limited in number. They share the lists of the server's shared upstream.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import msgspec
from msgspec.structs import replace as retold

from toolway.config.schema import Server
from toolway.errors import Certainty, Overloaded
from toolway.events import CatalogChanged, Event, ListKind, ResourceUpdated, ServerLog
from toolway.types import ClientCallbacks, Era
from toolway.upstream.context import UpstreamContext
from toolway.upstream.start_policy import StartLimiter
from toolway.upstream.transport import Transport
from toolway.upstream.upstream import Upstream

MAX_PER_CALLER_UPSTREAMS: Final = 500  # per hub
PER_CALLER_IDLE_TIMEOUT_S: Final = 300.0  # without a call; then the upstream is stopped


class CallerUpstreamContext:
    """The upstream context for one caller's connection. Its events reach only that caller."""

    def __init__(self, context: UpstreamContext, caller: str = "") -> None:
        self._context = context
        self._caller = caller
        self._digests: dict[str, str] = {}  # of the tools that this connection lists

    def open_transport(self, name: str, server: Server, caller: str = "") -> Transport:
        return self._context.open_transport(name, server, caller or self._caller)

    def emit(self, event: Event) -> None:
        """Forward only resource updates and log messages to the hub, marked with this caller."""
        if self._caller and isinstance(event, ResourceUpdated | ServerLog):
            self._context.emit(retold(event, caller=self._caller))

    def update_list(
        self, server: str, kind: ListKind, items: list[Any], problems: list[str], era: Era
    ) -> CatalogChanged | None:
        """Store a list that this caller's connection fetched, or discard it if not needed.

        The list is stored for this caller if each caller has its own lists. It is stored for all callers if the
        server's shared connection has no lists because it has no login. In any case, its tools are compared with the
        pins before each call, because this caller's process may be another version of the server.
        """
        if kind == "tools":
            self._digests = self._context.pinned_digests(server, items)
        if self._caller and self._context.has_caller_lists(server):
            return self._context.update_caller_list(server, self._caller, kind, items, problems, era)
        if not self._caller or not self._context.is_list_missing(server, kind):
            return None
        return self._context.update_list(server, kind, items, problems, era)

    def is_list_missing(self, server: str, kind: ListKind) -> bool:
        return False

    def has_caller_lists(self, server: str) -> bool:
        return self._context.has_caller_lists(server)

    def update_caller_list(
        self, server: str, caller: str, kind: ListKind, items: list[Any], problems: list[str], era: Era
    ) -> CatalogChanged | None:
        return self._context.update_caller_list(server, caller, kind, items, problems, era)

    def pinned_digests(self, server: str, tools: list[Any]) -> dict[str, str]:
        return self._context.pinned_digests(server, tools)

    def is_pinned(self, server: str, tool: str, digest: str = "") -> bool:
        found = digest or self._digests.get(tool)
        return found is None or self._context.is_pinned(server, tool, found)

    @property
    def callbacks(self) -> ClientCallbacks:
        return self._context.callbacks

    @property
    def start_limiter(self) -> StartLimiter:
        return self._context.start_limiter

    @property
    def random(self) -> Callable[[], float]:
        return self._context.random


class PerCallerUpstreams:
    """Upstreams for one caller each, started on demand; an unused one is stopped if there are too many."""

    def __init__(self, context: UpstreamContext, max_upstreams: int = MAX_PER_CALLER_UPSTREAMS) -> None:
        self._context = context
        self._max_upstreams = max_upstreams
        self._upstreams: OrderedDict[tuple[str, str], Upstream] = OrderedDict()  # least recently used first
        self._stopping: set[asyncio.Task[None]] = set()

    def get_or_start(self, name: str, server: Server, caller: str) -> Upstream:
        """Return the caller's own upstream for the server `name`, starting one if necessary.

        Raises `Overloaded` if there are too many upstreams and all of them are in use.
        """
        key = (name, caller)
        found = self._upstreams.get(key)
        if found is None:
            self._evict_if_full(name)
            idle = min(server.idle_timeout or PER_CALLER_IDLE_TIMEOUT_S, PER_CALLER_IDLE_TIMEOUT_S)
            health = msgspec.structs.replace(server.health, url=None)  # the shared connection checks it
            settings = replace(server, lazy=True, idle_timeout=idle, health=health)
            found = self._upstreams[key] = Upstream(name, settings, CallerUpstreamContext(self._context, caller))
            found.start()
        self._upstreams.move_to_end(key)
        return found

    def get(self, name: str, caller: str) -> Upstream | None:
        """Return the caller's own upstream for the server `name`, or None."""
        return self._upstreams.get((name, caller))

    def use(self, name: str, caller: str) -> Upstream | None:
        """Return the caller's own upstream for the server `name`, marked as just used, or None."""
        found = self._upstreams.get((name, caller))
        if found is not None:
            self._upstreams.move_to_end((name, caller))
        return found

    def _evict_if_full(self, name: str) -> None:
        """Stop the least recently used idle upstream, if there are too many.

        Raises `Overloaded` if all upstreams are in use.
        """
        if len(self._upstreams) < self._max_upstreams:
            return
        evictable = next((key for key, upstream in self._upstreams.items() if upstream.is_unused), None)
        if evictable is None:
            raise Overloaded(
                f"too many per-caller connections to {name}",
                server=name,
                certainty=Certainty.NOT_SENT,
                detail=f"{self._max_upstreams} are in use",
                hint='set "shareConnection": true for a server that may serve all callers over one connection',
            )
        self._stop(self._upstreams.pop(evictable))

    def _stop(self, upstream: Upstream) -> None:
        task = asyncio.get_running_loop().create_task(upstream.stop())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    def remove(self, name: str | None = None) -> list[Upstream]:
        """Forget and return the per-caller upstreams of one server, or of all servers if `name` is None.

        The caller must stop them.
        """
        keys = [key for key in self._upstreams if name in (None, key[0])]
        return [self._upstreams.pop(key) for key in keys]

    async def wait_stopped(self) -> None:
        await asyncio.gather(*self._stopping, return_exceptions=True)
