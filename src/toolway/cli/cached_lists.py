"""Tool lists that earlier runs cached on disk. They are available without starting a server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from toolway.catalog.catalog import Catalog
from toolway.catalog.storage import ForgedListsError
from toolway.catalog.tool_access import ToolAccess
from toolway.config.schema import Server
from toolway.events import ListKind
from toolway.hub.source import default_catalog_storage, server_fingerprint


@dataclass
class CachedLists:
    """Tool, prompt and resource lists from the disk cache, and the servers without a list."""

    catalog: Catalog = field(default_factory=Catalog)
    cached_at: dict[str, float] = field(default_factory=dict)  # server -> time of its last answer, seconds since 1970
    uncached: list[str] = field(default_factory=list)  # enabled servers without a cached list
    disabled: list[str] = field(default_factory=list)


def load_cached_lists(servers: Mapping[str, Server]) -> CachedLists:
    """Load the lists of these servers from the disk cache. An unreadable or forged list counts as missing."""
    cached = CachedLists()
    store = default_catalog_storage(os.environ)
    for name, server in servers.items():
        cached.catalog.add_server(name, ToolAccess.from_server(name, server))
        if not server.enabled:
            cached.disabled.append(name)
            continue
        try:
            stored = store.load(name, server_fingerprint(server)) if store is not None else None
        except ForgedListsError:
            stored = None
        if store is None or stored is None:
            cached.uncached.append(name)
            continue
        for kind in get_args(ListKind):
            cached.catalog.replace(name, kind, stored.lists.get(kind, ()), stale=True)
        cached.cached_at[name] = store.saved_at(name, server_fingerprint(server)) or 0.0
    return cached
