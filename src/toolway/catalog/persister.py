"""Persistence of a hub's catalog: loaded at startup, saved shortly after changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from toolway.catalog.catalog import Catalog
from toolway.catalog.storage import CatalogStorage, FileCatalogStorage, ForgedListsError
from toolway.events import Event, ListKind, ServerLog
from toolway.types import Era

SAVE_DELAY_S: Final = 0.5  # seconds; a server's lists arrive shortly after one another and share one file
FORGED_LISTS: Final = "another program changed the cached lists of this server: fetching them again"
LIST_KINDS: Final[tuple[ListKind, ...]] = ("tools", "prompts", "resources", "templates")


class CatalogPersister:
    """Loads and saves the catalog's lists of each server through a storage."""

    def __init__(
        self,
        catalog: Catalog,
        storage: CatalogStorage | None,
        emit: Callable[[Event], None] = lambda event: None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._catalog = catalog
        self._emit = emit
        self._wall_clock = wall_clock
        self._storage = storage
        self._eras: dict[str, Era] = {}
        self._identities: dict[str, str] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._saving: set[asyncio.Future[None]] = set()
        self.shares_late = False  # late servers are remembered for other programs: each command of a terminal is one

    def load(self, server: str, identity: str) -> Era | None:
        """Fill the catalog with the stored lists of a server, marked stale.

        `identity` is the server's fingerprint. Return the protocol era stored with the lists; None if none are stored.
        Forged lists are reported by an event and count as missing.
        """
        self._identities[server] = identity
        try:
            stored = self._storage.load(server, identity) if self._storage is not None else None
        except ForgedListsError:
            self._emit(ServerLog(server, "warning", FORGED_LISTS, "toolway"))
            return None
        if stored is None:
            return None
        for kind in LIST_KINDS:
            self._catalog.replace(server, kind, stored.lists.get(kind, ()), stale=True)
        return stored.era

    def late_for(self, server: str) -> float:
        """Return for how many more seconds a server counts as late, because a list had to wait for it.

        Return 0 if it does not count as late, or if that is not remembered.
        """
        if not self.shares_late or not isinstance(self._storage, FileCatalogStorage):
            return 0.0
        return self._storage.late_for(server, self._identities[server], self._wall_clock())

    def mark_late(self, server: str) -> None:
        """Remember that a list had to wait for a server, if that is shared with other programs."""
        if self.shares_late and isinstance(self._storage, FileCatalogStorage):
            self._storage.mark_late(server, self._identities[server])

    def schedule_save(self, server: str, era: Era) -> None:
        """Save the lists and the protocol era of a server in half a second.

        All changes until then are saved together.
        """
        self._eras[server] = era
        if self._storage is not None and server not in self._timers:
            self._timers[server] = asyncio.get_running_loop().call_later(SAVE_DELAY_S, self._save, server)

    async def close(self) -> None:
        for server in tuple(self._timers):
            self._save(server)
        if self._saving:
            await asyncio.wait(self._saving, timeout=2.0)

    def _save(self, server: str) -> None:
        self._timers.pop(server).cancel()
        if self._storage is None or not self._catalog.is_complete(server, "tools"):
            return
        lists: dict[str, list[Any]] = {
            kind: [item.raw for item in self._catalog.received_items(kind, server)] for kind in LIST_KINDS
        }
        save = partial(self._storage.save, server, self._identities[server], self._eras[server], lists)
        try:
            work = asyncio.get_running_loop().run_in_executor(None, save)
        except RuntimeError:  # the interpreter shuts down and starts no thread
            save()
            return
        self._saving.add(work)
        work.add_done_callback(self._saving.discard)
