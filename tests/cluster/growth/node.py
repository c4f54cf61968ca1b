"""A node of a cluster as it is in a gateway, without the gateway: lease, places, news, changes; and what it costs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from sqlalchemy import event

from tests.cluster.db.encryption_keys import an_integrity
from toolway.cluster.bus import Bus
from toolway.cluster.db.catalog import ListStore
from toolway.cluster.db.changes import ChangeReader
from toolway.cluster.db.engine import open_engine
from toolway.cluster.db.instances import InstanceStore, Ownership, ServerInstance
from toolway.cluster.db.nodes import NodeInfo, NodeStore
from toolway.cluster.lease_clock import DEFAULT_LEASE_SETTINGS, LeaseSettings
from toolway.cluster.member import Member
from toolway.cluster.replication.change_feed import ChangeFeed
from toolway.cluster.replication.handlers import announce_ownership
from toolway.cluster.routing.peers import OwnerCache
from toolway.types import Json

TENANT: Final = "default"
CLUSTER: Final = "growth"


class Quiet:
    """An owner of places for which nothing has to be started."""

    def on_acquired(self, ownership: Ownership) -> None: ...

    async def drain(self, ownership: Ownership) -> None: ...

    def on_lost(self, ownership: Ownership) -> None: ...


class SimNode:
    def __init__(self, id: str, database: str, capacity: int, slow: float) -> None:
        terms = LeaseSettings(
            DEFAULT_LEASE_SETTINGS.ttl * slow,
            DEFAULT_LEASE_SETTINGS.renew_interval * slow,
            DEFAULT_LEASE_SETTINGS.hold * slow,
        )
        self.count: Counter[str] = Counter()  # statements by their first word, news, looks
        self.engine = open_engine(database)
        event.listen(self.engine.sync_engine, "before_cursor_execute", self._on_statement)
        nodes, self.places = NodeStore(self.engine, an_integrity(), terms), InstanceStore(self.engine)
        self.owners = OwnerCache(self.places)
        self.lists = ListStore(self.engine, an_integrity())
        self.following = ChangeFeed(ChangeReader(self.engine), TENANT)
        self.bus = Bus(CLUSTER, id, self._on_message, self.following.resync, TENANT)
        self.following.send = self.bus.publish
        self.following.on_change("lists", self._take_lists)
        self.following.on_message("instances", self._places_moved)
        self.member = Member(
            NodeInfo(id, "", "growth", capacity, (), TENANT), nodes, self.places, Quiet(), time.monotonic, terms
        )
        self.member.on_ownership_changed = self._moved
        self.listed_at = 0.0  # when it last took a change of lists
        self._running: asyncio.Task[None] | None = None

    async def start(self, nats: str) -> None:
        await self.bus.connect([nats])
        await self.following.start()
        self._running = asyncio.create_task(self.member.run())

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running
        await self.following.close()
        await self.owners.close()
        await self.bus.close()
        await self.engine.dispose()

    def _on_statement(self, db: Any, cursor: Any, statement: str, *rest: Any) -> None:
        table = "renewal" if statement.startswith("UPDATE nodes SET") else "other"
        self.count["statements"] += 1
        self.count[table] += 1

    def _on_message(self, kind: str, body: Json) -> None:
        self.count["heard"] += 1
        self.following.handle_message(kind, body)

    async def _take_lists(self, since: int) -> None:
        changed = await self.lists.load_changed(TENANT, since)
        self.count["lists"] += len(changed)
        if changed:
            self.listed_at = time.time()

    # -- as a replica does it -----------------------------------------------------------------------------------------

    def _moved(self, took: Sequence[Ownership], lost: Sequence[Ownership]) -> None:
        self.count["took"] += len(took)
        announce_ownership(self.following, took, lost)

    def _places_moved(self, body: Json) -> None:
        took = body.get("took")
        if took:
            self.owners.update(Ownership(ServerInstance(t, s, i), node, fence) for t, s, i, node, fence in took)
        else:
            self.member.wake()
