"""The lists of all servers of a tenant: what their owners have found out, for everybody else.

In memory they are the record's as of the last look. What the owner of a server hears of it goes to the record, and from
there to the others.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from toolway.catalog.store import Stored
from toolway.cluster.record.lists import Listed, Lists
from toolway.events import Kind
from toolway.gateway.replica.links.known import About
from toolway.hub import Hub
from toolway.model import Era, Json

FORMAT: Final = 1
MOST: Final = 1000  # lists that wait to be written; beyond that, those of the next change are
AGAIN: Final = (0.5, 1.0, 2.0, 5.0)  # seconds after which a list is written again that could not be

Fence = Callable[[str], int | None]  # of a server that this node owns
log = logging.getLogger("toolway.cluster")


class SharedLists:
    """A `ListStore` and a `Knowledge`. `told` hears of every list that was written."""

    def __init__(self, lists: Lists, tenant: str, fence: Fence, told: Callable[[str], None]) -> None:
        self._lists = lists
        self._tenant = tenant
        self._fence = fence
        self._told = told
        self._known: dict[str, Listed] = {}
        self._revision = 0
        self._hub: Hub | None = None
        self._loop = asyncio.get_running_loop()
        self._writing: dict[str, asyncio.Task[None]] = {}

    def serve(self, hub: Hub) -> None:
        self._hub = hub

    # -- what is known ------------------------------------------------------------------------------------------------

    def about(self, server: str) -> About | None:
        found = self._known.get(server)
        return _about(found) if found is not None else None

    def listed(self, server: str, kind: Kind) -> list[Json] | None:
        """As the record has it. The hub may have it from there as what was once known, and waits to be told."""
        found = self._known.get(server)
        return found.lists.get(kind, []) if found is not None else None

    async def look(self, since: int | None = None) -> list[str]:
        """Take what has changed in the record; the servers of which it is. With `since` 0, all: the record was put back
        from a copy. Raises what SQLAlchemy raises."""
        if since == 0:
            self._revision = 0
        changed = await self._lists.all(self._tenant, self._revision)
        for server, listed in changed.items():
            self._revision = max(self._revision, listed.revision)
            self._known[server] = listed
            if self._hub is not None and self._fence(server) is None:
                self._hub.learn(server, listed.lists)
        return list(changed)

    def forget(self, servers: Mapping[str, Any]) -> None:
        """Keep only what is of these."""
        self._known = {name: listed for name, listed in self._known.items() if name in servers}

    # -- as the store of a hub ----------------------------------------------------------------------------------------

    def load(self, server: str, identity: str) -> Stored | None:
        found = self._known.get(server)
        if found is None or found.identity != _print(identity):
            return None
        return Stored(FORMAT, found.era, found.lists)

    def save(self, server: str, identity: str, era: Era, lists: Mapping[str, list[Any]]) -> None:
        """In a thread of the hub's."""
        self._loop.call_soon_threadsafe(self._put_soon, server, _print(identity), era, dict(lists))

    def _put_soon(self, server: str, print_: str, era: Era, lists: dict[str, list[Any]]) -> None:
        fence = self._fence(server)
        agreed = self._hub.agreement(server) if self._hub is not None else None
        if fence is None or agreed is None:
            return
        agreement = {
            "capabilities": agreed.capabilities,
            "serverInfo": agreed.server_info,
            "instructions": agreed.instructions,
            "version": agreed.version,
        }
        listed = Listed(print_, era, agreement, lists, fence)
        before = self._writing.get(server)
        if before is not None:
            before.cancel()
        elif len(self._writing) >= MOST:
            log.warning("the lists of %s were not written: too many wait", server)
            return
        task = self._writing[server] = self._loop.create_task(self._put(server, listed))
        task.add_done_callback(lambda done: self._writing.pop(server) if self._writing.get(server) is done else None)

    async def _put(self, server: str, listed: Listed) -> None:
        for pause in (*AGAIN, 0.0):
            try:
                if await self._lists.put(self._tenant, server, listed) is not None:
                    self._told(server)
                return
            except Exception as exc:
                log.warning("the lists of %s could not be written: %s", server, type(exc).__name__)
            await asyncio.sleep(pause)

    async def close(self) -> None:
        writing = list(self._writing.values())
        if writing:
            await asyncio.wait(writing, timeout=2.0)
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)


def _about(listed: Listed) -> About:
    agreed = listed.agreement
    return About(
        listed.era,
        agreed.get("capabilities") or {},
        agreed.get("serverInfo") or {},
        str(agreed.get("instructions") or ""),
    )


def _print(identity: str) -> str:
    """An entry may hold what others should not read."""
    return hashlib.sha256(identity.encode()).hexdigest()
