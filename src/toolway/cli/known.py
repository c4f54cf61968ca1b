"""What is known of servers without starting one: the lists that earlier runs kept on disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from toolway.catalog.index import Catalog
from toolway.config.spec import Server
from toolway.events import Kind
from toolway.sources import identity, usual_store


@dataclass
class Kept:
    """The lists of earlier runs."""

    catalog: Catalog = field(default_factory=Catalog)
    at: dict[str, float] = field(default_factory=dict)  # when each server was last asked, in seconds since 1970
    missing: list[str] = field(default_factory=list)  # servers that take part and were never asked
    disabled: list[str] = field(default_factory=list)


def kept_lists(servers: Mapping[str, Server]) -> Kept:
    """What is kept of these servers. What cannot be read was not kept."""
    kept = Kept()
    store = usual_store(os.environ)
    for name, server in servers.items():
        kept.catalog.add_server(name)
        if not server.enabled:
            kept.disabled.append(name)
            continue
        stored = store.load(name, identity(server)) if store is not None else None
        if store is None or stored is None:
            kept.missing.append(name)
            continue
        for kind in get_args(Kind):
            kept.catalog.replace(name, kind, stored.lists.get(kind, ()), stale=True)
        kept.at[name] = store.kept_at(name, identity(server)) or 0.0
    return kept
