"""Shared catalog: tool, prompt and resource lists of all servers of a tenant, stored by their owner nodes.

In memory it is the database state as of the last poll. Lists that the owner receives from a server are saved to the
database, and read from there by the other nodes. They answer catalog requests from it (`answer_catalog_request`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from toolway.catalog.storage import StoredLists
from toolway.cluster.db.catalog import ListStore, StoredList
from toolway.events import ListKind
from toolway.hub.core import HubCore
from toolway.protocol.constants import METHOD_NOT_FOUND, SERVER_INFO_META_KEY
from toolway.protocol.versions import LIST_METHODS, PREFERRED_VERSION, has_list_changed
from toolway.types import Era, Json
from toolway.upstream.transport import JSONRPCError, Request

CATALOG_FORMAT: Final = 1
MAX_PENDING_WRITES: Final = 1000  # servers with a pending write; beyond that, lists are saved at their next change
WRITE_RETRY_DELAYS_S: Final = (0.5, 1.0, 2.0, 5.0)  # seconds before each retry of a failed write
_KIND_BY_METHOD: Final[dict[str, ListKind]] = {method: kind for kind, (_, method, _) in LIST_METHODS.items()}

FenceLookup = Callable[[str], int | None]  # fence of a server if this node owns it
log = logging.getLogger("toolway.cluster")


class SharedCatalog:
    """The tool, prompt and resource lists that all nodes share through the database.

    The hub stores lists here, and gets from here the lists of servers that other nodes own. `on_list_saved` is called
    after each saved list.
    """

    def __init__(
        self, store: ListStore, tenant: str, fence_for: FenceLookup, on_list_saved: Callable[[str], None]
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._fence_for = fence_for
        self._on_list_saved = on_list_saved
        self._stored: dict[str, StoredList] = {}
        self._revision = 0
        self._hub: HubCore | None = None
        self._loop = asyncio.get_running_loop()
        self._writes: dict[str, asyncio.Task[None]] = {}

    def attach(self, hub: HubCore) -> None:
        """Set the hub of this node, which gets the tool, prompt and resource lists of servers that other nodes own."""
        self._hub = hub

    # -- shared lists -------------------------------------------------------------------------------------------------

    def get_summary(self, server: str) -> ServerSummary | None:
        found = self._stored.get(server)
        return _to_summary(found) if found is not None else None

    def get_list(self, server: str, kind: ListKind) -> list[Json] | None:
        """Return a server's list of this kind (such as tools) as stored in the database, or None if none is stored.

        The hub may know the list only from its cache, and waits until the database confirms it.
        """
        found = self._stored.get(server)
        return found.lists.get(kind, []) if found is not None else None

    async def refresh(self, since: int | None = None) -> list[str]:
        """Load tool, prompt and resource lists that changed in the database. Return the names of their servers.

        Lists of servers that this node does not own are also passed to the hub. If `since` is 0, all lists are loaded
        again, as after a restore of the database from a backup; other values are not used. Raises SQLAlchemy errors.
        """
        if since == 0:
            self._revision = 0
        changed = await self._store.load_changed(self._tenant, self._revision)
        for server, stored in changed.items():
            self._revision = max(self._revision, stored.revision)
            self._stored[server] = stored
            if self._hub is not None and self._fence_for(server) is None:
                self._hub.lists.import_lists(server, stored.lists)
        return list(changed)

    def keep_only(self, servers: Mapping[str, Any]) -> None:
        """Forget the lists of servers that are not in `servers`, in memory only."""
        self._stored = {name: stored for name, stored in self._stored.items() if name in servers}

    # -- catalog storage of the hub -----------------------------------------------------------------------------------

    def load(self, server: str, identity: str) -> StoredLists | None:
        found = self._stored.get(server)
        if found is None or found.identity != _hash_identity(identity):
            return None
        return StoredLists(CATALOG_FORMAT, found.era, found.lists)

    def save(self, server: str, identity: str, era: Era, lists: Mapping[str, list[Any]]) -> None:
        """Schedule a write of a server's lists to the database. Called in a thread of the hub."""
        self._loop.call_soon_threadsafe(self._schedule_write, server, _hash_identity(identity), era, dict(lists))

    def _schedule_write(self, server: str, fingerprint: str, era: Era, lists: dict[str, list[Any]]) -> None:
        fence = self._fence_for(server)
        negotiated = self._hub.servers.negotiated(server) if self._hub is not None else None
        if fence is None or negotiated is None:
            return
        agreement = {
            "capabilities": negotiated.capabilities,
            "serverInfo": negotiated.server_info,
            "instructions": negotiated.instructions,
            "version": negotiated.version,
        }
        stored = StoredList(fingerprint, era, agreement, lists, fence)
        previous = self._writes.get(server)
        if previous is not None:
            previous.cancel()
        elif len(self._writes) >= MAX_PENDING_WRITES:
            log.warning("lists of %s not saved: too many pending writes", server)
            return
        task = self._writes[server] = self._loop.create_task(self._write(server, stored))
        task.add_done_callback(lambda done: self._writes.pop(server) if self._writes.get(server) is done else None)

    async def _write(self, server: str, stored: StoredList) -> None:
        for delay in (*WRITE_RETRY_DELAYS_S, 0.0):
            try:
                if await self._store.put(self._tenant, server, stored) is not None:
                    self._on_list_saved(server)
                return
            except Exception as exc:
                log.warning("lists of %s not saved: %s", server, type(exc).__name__)
            await asyncio.sleep(delay)

    async def close(self) -> None:
        writes = list(self._writes.values())
        if writes:
            await asyncio.wait(writes, timeout=2.0)
        for task in writes:
            task.cancel()
        await asyncio.gather(*writes, return_exceptions=True)


def _to_summary(stored: StoredList) -> ServerSummary:
    agreement = stored.agreement
    return ServerSummary(
        stored.era,
        agreement.get("capabilities") or {},
        agreement.get("serverInfo") or {},
        str(agreement.get("instructions") or ""),
    )


def _hash_identity(identity: str) -> str:
    """Return a hash of a server's fingerprint, which may contain secrets of the configuration."""
    return hashlib.sha256(identity.encode()).hexdigest()


# -- catalog requests -------------------------------------------------------------------------------------------------


class ServerSummary(msgspec.Struct, frozen=True):
    """A server's description (era, capabilities, instructions), as its owner node got it."""

    era: Era
    capabilities: Json
    server_info: Json
    instructions: str


def is_catalog_request(request: Request) -> bool:
    """Return True if the shared catalog answers this request: a list, discovery, or list changes."""
    return request.method == "server/discover" or request.method in _KIND_BY_METHOD or _is_list_subscription(request)


def _is_list_subscription(request: Request) -> bool:
    return request.method == "subscriptions/listen" and has_list_changed(request.params.get("notifications"))


def answer_catalog_request(catalog: SharedCatalog, server: str, request: Request) -> Json | None:
    """Answer a request from the shared catalog. Return None if the catalog has no answer.

    Raises `JSONRPCError` for a subscription to list changes: the change feed of the cluster delivers them.
    """
    method = request.method
    if method == "tools/call":
        return None
    if method == "server/discover":
        summary = catalog.get_summary(server)
        return _discover_result(summary) if summary is not None else None
    if method in _KIND_BY_METHOD:
        items = catalog.get_list(server, _KIND_BY_METHOD[method])
        return (
            {LIST_METHODS[_KIND_BY_METHOD[method]][2]: items, "resultType": "complete"} if items is not None else None
        )
    if _is_list_subscription(request):
        raise JSONRPCError(METHOD_NOT_FOUND, "list changes are published by the owner node")
    return None


def _discover_result(summary: ServerSummary) -> Json:
    return {
        "resultType": "complete",
        "supportedVersions": [PREFERRED_VERSION],
        "capabilities": summary.capabilities,
        "instructions": summary.instructions,
        "_meta": {SERVER_INFO_META_KEY: summary.server_info},
    }
