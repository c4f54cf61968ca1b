"""Keeps the lists of a running hub on disk: loads them at the start, saves what changed a moment later."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from toolway.catalog.index import Catalog
from toolway.catalog.store import ListStore
from toolway.events import Kind
from toolway.model import Era

SAVE_DELAY: Final = 0.5  # the lists of a server come in quick succession: one file for all of them
KINDS: Final[tuple[Kind, ...]] = ("tools", "prompts", "resources", "templates")


class Keeping:
    def __init__(self, catalog: Catalog, store: ListStore | None) -> None:
        self._catalog = catalog
        self._store = store
        self._eras: dict[str, Era] = {}
        self._identities: dict[str, str] = {}
        self._due: dict[str, asyncio.TimerHandle] = {}
        self._saving: set[asyncio.Future[None]] = set()

    def load(self, server: str, identity: str) -> Era | None:
        """Fill the catalog with what was known, marked stale. Returns the era the server spoke."""
        self._identities[server] = identity
        stored = self._store.load(server, identity) if self._store is not None else None
        if stored is None:
            return None
        for kind in KINDS:
            self._catalog.replace(server, kind, stored.lists.get(kind, ()), stale=True)
        return stored.era

    def changed(self, server: str, era: Era) -> None:
        """A list of this server is new: save soon."""
        self._eras[server] = era
        if self._store is not None and server not in self._due:
            self._due[server] = asyncio.get_running_loop().call_later(SAVE_DELAY, self._save, server)

    async def close(self) -> None:
        for server in tuple(self._due):
            self._save(server)
        if self._saving:
            await asyncio.wait(self._saving, timeout=2.0)

    def _save(self, server: str) -> None:
        self._due.pop(server).cancel()
        if self._store is None or not self._catalog.known(server, "tools"):
            return
        lists: dict[str, list[Any]] = {kind: [item.raw for item in self._catalog.items(kind, server)] for kind in KINDS}
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(None, self._store.save, server, self._identities[server], self._eras[server], lists)
        self._saving.add(work)
        work.add_done_callback(self._saving.discard)
