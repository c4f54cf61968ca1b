"""Waits for the lists (tools, prompts, resources) that servers send after starting."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Final

from toolway._async import wait_until_settled, with_timeout
from toolway.catalog.storage import LATE_MEMORY_S
from toolway.events import ListKind
from toolway.hub.upstreams import UpstreamManager
from toolway.upstream.state import State
from toolway.upstream.upstream import Upstream

LIST_WAIT_S: Final = 2.0  # seconds that a list of several servers waits for servers that have not answered yet
LATE_LIST_WAIT_S: Final = 0.25  # the same for a server that was late before
NAMED_LIST_WAIT_S: Final = 30.0  # seconds that the list of one server waits for it


class ListWaits:
    """Waits for servers' lists, and starts servers if necessary."""

    def __init__(self, upstreams: UpstreamManager) -> None:
        self._upstreams = upstreams
        self._catalog = upstreams.catalog

    async def wait_fetched(self, kind: ListKind, server: str, timeout: float) -> None:
        """Wait until `server` has sent this list.

        Raises `ServerUnavailable` if it fails and `CallTimeout` after `timeout` seconds.
        """
        upstream = self._upstreams.require_upstream(server)
        await with_timeout(timeout, self._wait_for_list(upstream, kind), server)

    async def wait_known(
        self, servers: Iterable[str], kind: ListKind, wait: float | None = None, *, urgent: bool = False
    ) -> None:
        """Wait up to `wait` seconds until this list is known for each server, or the server failed to start.

        A list stored by an earlier run counts as known. If `wait` is None, waits as long as `wait_sent`. If `urgent`,
        these servers start at once, even if many others are starting. Does not raise an error when time runs out.
        """
        unlisted = [name for name in servers if not self._catalog.has_list(name, kind)]
        await self.wait_sent(kind, unlisted, wait, urgent=urgent)

    async def wait_for_starting(self) -> None:
        """Wait for the tools of servers that are starting, but only briefly for those that do not answer."""
        starting = [name for name, each in self._upstreams.upstreams.items() if each.is_starting]
        await self.wait_known(starting, "tools")

    async def wait_all_tools_known(self, timeout: float | None) -> Collection[str]:
        """Wait until the tools of all enabled servers are known or time runs out, and return these servers.

        None waits as long as listing tools does, so a broken server causes only one delay.
        """
        servers = self._upstreams.upstreams.keys()
        await self.wait_known(servers, "tools", timeout, urgent=True)
        return servers

    async def wait_sent(
        self, kind: ListKind, servers: Iterable[str], wait: float | None, *, urgent: bool = False
    ) -> list[str]:
        """Wait until these servers have sent this list or failed, and return those that have not sent it.

        Starts servers that are down. Waits at most `wait` seconds. None waits 2 s, but much less for servers that
        were late in the last few minutes, so a server that does not answer delays lists only once.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        upstreams = self._upstreams.upstreams
        waits = {
            name: asyncio.ensure_future(self._wait_for_list(upstreams[name], kind, urgent=urgent))
            for name in servers
            if name in upstreams
        }
        late = [each for name, each in waits.items() if wait is None and self.is_late(name)]
        others = [each for each in waits.values() if each not in late]
        try:
            if late:
                await asyncio.wait(waits.values(), timeout=LATE_LIST_WAIT_S)
            if others:
                left = (LIST_WAIT_S if wait is None else wait) - (clock() - began)
                await asyncio.wait(others, timeout=max(left, 0.0))
        finally:
            missing = [name for name, each in waits.items() if not self._has_answered(name, kind, each)]
            await wait_until_settled(0, [*waits.values()])
        if wait is None:
            for name in [each for each in missing if not self.is_late(each)]:
                self._upstreams.late[name] = clock() + LATE_MEMORY_S
                if upstreams[name].state is State.STARTING:  # one that fails says so quickly in the next program
                    self._upstreams.persister.mark_late(name)
        return missing

    def _has_answered(self, name: str, kind: ListKind, waiting: asyncio.Future[None]) -> bool:
        return waiting.exception() is None if waiting.done() else self._catalog.is_complete(name, kind)

    def is_late(self, name: str) -> bool:
        """Return True if a list had to wait for this server in the last few minutes."""
        return asyncio.get_running_loop().time() < self._upstreams.late.get(name, 0.0)

    async def _wait_for_list(self, upstream: Upstream, kind: ListKind, *, urgent: bool = True) -> None:
        await upstream.wait_list_fetched(kind, urgent=urgent)
        await self._catalog.wait_pins_stored(upstream.name)
